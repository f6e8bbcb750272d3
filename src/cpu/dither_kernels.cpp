// SPDX-License-Identifier: Apache-2.0
// This file is compiled once for each instruction set: foreach_target.h includes it again and
// again.
#include "cpu/dither_kernels.hpp"

#include "cpu/fma_targets-inl.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dither_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/dither_lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace {

/// Four bases at a time: sixteen counters.
void DrawDither(const Philox& draws, const std::uint64_t* bases, std::size_t count,
                DitherWords* levels) {
  alignas(64) std::uint32_t low[kTileDuos], high[kTileDuos];
  DrawBlock block;
  const RoundKeys keys = draws.round_keys();
  for (std::size_t first = 0; first < count; first += 4) {
    for (std::uint32_t i = 0; i < kTileDuos; ++i) {
      const PhiloxWords counter =
          draws.counter(bases[std::min<std::size_t>(first + i / 4, count - 1)] * 4 + i % 4);
      low[i] = counter[0];
      high[i] = counter[1];
    }
    draw_block(draws, keys, low, high, block);
    for (std::size_t b = 0; b < std::min<std::size_t>(4, count - first); ++b) {
      for (std::size_t w = 0; w < 4; ++w)
        std::memcpy(levels[first + b].word + 4 * w, block.word[w] + 4 * b, 16);
    }
  }
}

void quantise_piece(const float* x, const Piece& piece, const VectorScale& scale,
                    const DuoCoding& coding, const Philox& pre_round, const DitherWords* levels,
                    PieceCells& cells) {
  const TileCoding tile_coding{scale.range,  scale.inverse,     coding.raw,
                               coding.width, coding.level_mask, coding.centred()};
  const std::uint32_t tiles = tiles_of_piece(piece.entries), short_tile = piece.entries % kTile;
  alignas(64) float padded[kTile] = {};
  if (short_tile != 0) spread_tile(x + std::size_t{tiles - 1} * kTile, short_tile, padded);
  const std::uint64_t base = 16 * (piece.vector * ((piece.tiles + 3) / 4) + piece.first_tile / 4);
  DrawBlock pre;
  const RoundKeys keys = pre_round.round_keys();
  for (std::uint32_t group = 0; group < tiles; group += 4) {
    if (!coding.centred()) draw_from(pre_round, keys, base + group * 4, pre);
    for (std::uint32_t u = group; u < std::min(tiles, group + 4); ++u) {
      const bool whole = u + 1 < tiles || short_tile == 0;
      const float* const tile = whole ? x + std::size_t{u} * kTile : padded;
      quantise_tile(tile, tile + kTileDuos, levels[u / kDitherTiles].word,
                    static_cast<int>(4 * (u % kDitherTiles)), pre.word[u % 4], tile_coding, cells,
                    u * kTileDuos);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR

/// The pairs of whole tiles under a code without raw bits. Four words of at most 11 bits are put
/// together in each 128 bits of a vector.
template <Direction kDirection>
HWY_INLINE std::size_t write_tiles(const PieceCells& cells, std::size_t i, std::size_t end,
                                   const DuoCoding& coding, DirectedBitWriter<kDirection>& out) {
  const U32 d;
  const I32 di;
  const hn::Repartition<std::uint64_t, U32> wide;
  const std::size_t lanes = hn::Lanes(d);
  const auto low32 = hn::Set(wide, 0xFFFFFFFFu);
  const VU only = hn::Set(d, EncodeEntry::kWord);
  alignas(64) std::uint64_t words[8], lengths[8];
  for (; i + kTileDuos <= end; i += lanes) {
    const VI place = hn::BitCast(di, hn::Load(d, cells.entry + i));
    const VU entry = hn::GatherIndex(d, coding.encode, place);
    if (!hn::AllFalse(di, hn::Lt(hn::BitCast(di, entry), hn::Zero(di)))) [[unlikely]] {
      for (std::size_t k = i; k < i + lanes; ++k)
        put_duo(out, coding, coding.encode[cells.entry[k]], cells.q0[k], cells.q1[k]);
      continue;
    }
    const auto length = hn::BitCast(wide, hn::ShiftRight<EncodeEntry::kLengthShift>(entry));
    const auto first = hn::And(length, low32), second = hn::ShiftRight<32>(length);
    const auto both = hn::Add(first, second), next = hn::Shuffle01(both);
    if constexpr (kDirection == Direction::upward) {
      const auto word = hn::BitCast(wide, hn::And(entry, only));
      const auto two = hn::Or(hn::And(word, low32), hn::Shl(hn::ShiftRight<32>(word), first));
      hn::Store(hn::Or(two, hn::Shl(hn::Shuffle01(two), both)), wide, words);
    } else {
      const auto word =
          hn::BitCast(wide, hn::And(hn::ShiftRight<EncodeEntry::kDownwardShift>(entry), only));
      const auto two = hn::Or(hn::Shl(hn::And(word, low32), second), hn::ShiftRight<32>(word));
      hn::Store(hn::Or(hn::Shl(two, next), hn::Shuffle01(two)), wide, words);
    }
    hn::Store(hn::Add(both, next), wide, lengths);
    for (std::size_t k = 0; k < lanes / 2; k += 2)
      out.put(words[k], static_cast<unsigned>(lengths[k]));
  }
  return i;
}

#endif

/// The pairs in slots `i` to before `end`.
template <Direction kDirection>
void write_duos(const PieceCells& cells, std::size_t i, std::size_t end, const DuoCoding& coding,
                DirectedBitWriter<kDirection>& strand) {
  DirectedBitWriter<kDirection> out = strand;  // a copy the compiler can keep in registers
#if HWY_TARGET != HWY_SCALAR
  if (coding.raw == 0) i = write_tiles(cells, i, end, coding, out);
#endif
  for (; i < end; ++i)
    put_duo(out, coding, coding.encode[cells.entry[i]], cells.q0[i], cells.q1[i]);
  strand = out;
}

void EncodePiece(const float* x, const Piece& piece, std::uint32_t upward, const VectorScale& scale,
                 const DuoCoding& coding, const Philox& pre_round, const DitherWords* levels,
                 GroupWriter& out) {
  PieceCells cells;
  quantise_piece(x, piece, scale, coding, pre_round, levels, cells);
  const std::size_t pairs = duos_of(piece.entries);
  const std::size_t turn = std::min<std::size_t>(pairs, std::size_t{upward} * kTileDuos);
  write_duos(cells, 0, turn, coding, out.upward());
  write_duos(cells, turn, pairs, coding, out.downward());
}

/// A balanced tree over segments, as a binary counter: equal subtrees merge as they meet, what is
/// left at the end is carried up.
double norm2(const float* x, std::uint64_t n) {
  if (n <= kPieceEntries) return segment_norm2(x, n);
  double tree[64];
  std::size_t depth = 0;
  std::uint64_t segments = 0;
  for (std::uint64_t i = 0; i < n; i += kPieceEntries) {
    tree[depth++] = segment_norm2(x + i, std::min<std::uint64_t>(kPieceEntries, n - i));
    ++segments;
    for (std::uint64_t full = segments; (full & 1) == 0; full >>= 1, --depth)
      tree[depth - 2] += tree[depth - 1];
  }
  for (; depth > 1; --depth) tree[depth - 2] += tree[depth - 1];
  return tree[0];
}

double AtomAmplitudes(const float* x, const AtomLayout& layout, double* rms) {
  double energy = 0;
  for (std::uint64_t t = 0; t < layout.count; ++t) {
    const std::uint64_t length = layout.length_of(t);
    const double sum = norm2(x + t * layout.length, length);
    energy += sum;
    rms[t] = std::sqrt(sum / static_cast<double>(length));
  }
  return energy;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <atomic>
#include <cmath>

#include "core/run_tasks.hpp"

namespace atomo::cpu {

HWY_EXPORT(DrawDither);
HWY_EXPORT(EncodePiece);
HWY_EXPORT(AtomAmplitudes);

namespace {

/// Entries that a task takes.
constexpr std::uint64_t kTaskEntries = std::uint64_t{1} << 17;

}  // namespace

void draw_dither(const Philox& draws, const std::uint64_t* bases, std::size_t count,
                 DitherWords* levels) noexcept {
  HWY_DYNAMIC_DISPATCH(DrawDither)(draws, bases, count, levels);
}

void encode_piece(const float* x, const Piece& piece, std::uint32_t upward,
                  const VectorScale& scale, const DuoCoding& coding, const Philox& pre_round,
                  const DitherWords* levels, GroupWriter& out) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodePiece)(x, piece, upward, scale, coding, pre_round, levels, out);
}

bool atom_amplitudes(const float* x, const AtomLayout& layout, double* rms,
                     Executor* executor) noexcept {
  if (layout.count == 0) return true;
  std::atomic<bool> finite{true};
  const std::uint64_t grain = std::max<std::uint64_t>(1, kTaskEntries / layout.length);
  core::run_ranges(executor, layout.count, grain, [&](std::size_t begin, std::size_t end) {
    AtomLayout part = layout;
    part.count = end - begin;
    part.last = layout.length_of(end - 1);
    // Sums of squares of finite f32 cannot overflow f64, so the sum tells.
    const double energy =
        HWY_DYNAMIC_DISPATCH(AtomAmplitudes)(x + begin * layout.length, part, rms + begin);
    if (!std::isfinite(energy)) finite = false;
  });
  return finite;
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
