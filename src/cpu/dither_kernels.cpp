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

/// A short tile is laid out as a whole one: halves apart, zeros behind each.
void spread_tile(const float* tile, std::uint32_t entries, float* padded) {
  const std::uint32_t half = (entries + 1) / 2;
  std::memcpy(padded, tile, half * sizeof(float));
  std::memcpy(padded + kTileDuos, tile + half, (entries - half) * sizeof(float));
}

void gather_tile(const float* padded, std::uint32_t entries, float* tile) {
  const std::uint32_t half = (entries + 1) / 2;
  std::memcpy(tile, padded, half * sizeof(float));
  std::memcpy(tile + half, padded + kTileDuos, (entries - half) * sizeof(float));
}

void quantise_piece(const float* x, const Piece& piece, const VectorScale& scale,
                    const DuoCoding& coding, const Philox& pre_round, const DitherWords* levels,
                    PieceCells& cells) {
  const TileCoding tile_coding{scale.range, scale.inverse, coding.raw, coding.width,
                               coding.level_mask};
  const std::uint32_t tiles = tiles_of_piece(piece.entries), short_tile = piece.entries % kTile;
  alignas(64) float padded[kTile] = {};
  if (short_tile != 0) spread_tile(x + std::size_t{tiles - 1} * kTile, short_tile, padded);
  const std::uint64_t base = 16 * (piece.vector * ((piece.tiles + 3) / 4) + piece.first_tile / 4);
  DrawBlock pre;
  const RoundKeys keys = pre_round.round_keys();
  for (std::uint32_t group = 0; group < tiles; group += 4) {
    draw_from(pre_round, keys, base + group * 4, pre);
    for (std::uint32_t u = group; u < std::min(tiles, group + 4); ++u) {
      const bool whole = u + 1 < tiles || short_tile == 0;
      const float* const tile = whole ? x + std::size_t{u} * kTile : padded;
      quantise_tile(tile, tile + kTileDuos, levels[u / kDitherTiles].word,
                    static_cast<int>(4 * (u % kDitherTiles)), pre.word[u % 4], tile_coding, cells,
                    u * kTileDuos);
    }
  }
}

/// One pair from its table entry: its word, then an escape's integers or the raw bits.
HWY_INLINE void write_pair(const PieceCells& cells, std::size_t slot, std::uint32_t entry,
                           const DuoCoding& coding, BitWriter& out) {
  const bool escaped = (entry & kEscapeFlag) != 0;
  const unsigned bits = escaped ? coding.escape_bits : coding.raw, length = (entry >> 16) & 0xFFu;
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const std::int32_t shift = escaped ? 0 : static_cast<std::int32_t>((1u << coding.raw) >> 1);
  const std::uint64_t low0 = static_cast<std::uint32_t>(cells.q0[slot] + shift) & mask;
  const std::uint64_t low1 = static_cast<std::uint32_t>(cells.q1[slot] + shift) & mask;
  out.put(entry & 0xFFFFu, length);
  out.put(low0 | (low1 << bits), 2 * bits);
}

#if HWY_TARGET != HWY_SCALAR

/// The pairs of whole tiles under a code without raw bits. Four words of at most 11 bits are put
/// together in each 128 bits of a vector.
HWY_INLINE std::size_t write_tiles(const PieceCells& cells, std::size_t i, std::size_t end,
                                   const DuoCoding& coding, BitWriter& out) {
  const U32 d;
  const I32 di;
  const hn::Repartition<std::uint64_t, U32> wide;
  const std::size_t lanes = hn::Lanes(d);
  const auto low32 = hn::Set(wide, 0xFFFFFFFFu);
  alignas(64) std::uint64_t words[8], lengths[8];
  for (; i + kTileDuos <= end; i += lanes) {
    const VI place = hn::BitCast(di, hn::Load(d, cells.entry + i));
    const VU entry = hn::GatherIndex(d, coding.encode, place);
    if (!hn::AllFalse(di, hn::Lt(hn::BitCast(di, entry), hn::Zero(di)))) [[unlikely]] {
      for (std::size_t k = i; k < i + lanes; ++k)
        write_pair(cells, k, coding.encode[cells.entry[k]], coding, out);
      continue;
    }
    const auto word = hn::BitCast(wide, hn::And(entry, hn::Set(d, 0xFFFFu)));
    const auto length = hn::BitCast(wide, hn::ShiftRight<16>(entry));
    const auto first = hn::And(length, low32);
    const auto two = hn::Or(hn::And(word, low32), hn::Shl(hn::ShiftRight<32>(word), first));
    const auto both = hn::Add(first, hn::ShiftRight<32>(length));
    hn::Store(hn::Or(two, hn::Shl(hn::Shuffle01(two), both)), wide, words);
    hn::Store(hn::Add(both, hn::Shuffle01(both)), wide, lengths);
    for (std::size_t k = 0; k < lanes / 2; k += 2)
      out.put(words[k], static_cast<unsigned>(lengths[k]));
  }
  return i;
}

#endif

void write_duos(const PieceCells& cells, std::size_t slot, std::size_t pairs,
                const DuoCoding& coding, BitWriter& stream) {
  BitWriter out = stream;  // a copy the compiler can keep in registers
  const std::uint32_t* const encode = coding.encode;
  std::size_t i = slot;
  const std::size_t end = slot + pairs;
  if (coding.raw == 0) {
#if HWY_TARGET != HWY_SCALAR
    i = write_tiles(cells, i, end, coding, out);
#endif
    for (; i + 4 <= end; i += 4) {  // four words of at most 11 bits in one go
      const std::uint32_t e0 = encode[cells.entry[i]], e1 = encode[cells.entry[i + 1]];
      const std::uint32_t e2 = encode[cells.entry[i + 2]], e3 = encode[cells.entry[i + 3]];
      if (((e0 | e1 | e2 | e3) & kEscapeFlag) != 0) [[unlikely]] {
        for (std::size_t k = i; k < i + 4; ++k)
          write_pair(cells, k, encode[cells.entry[k]], coding, out);
        continue;
      }
      const unsigned n0 = e0 >> 16, n1 = e1 >> 16, n2 = e2 >> 16, n3 = e3 >> 16;
      const std::uint64_t low = (e0 & 0xFFFFu) | (std::uint64_t{e1 & 0xFFFFu} << n0);
      const std::uint64_t high = (e2 & 0xFFFFu) | (std::uint64_t{e3 & 0xFFFFu} << n2);
      out.put(low | (high << (n0 + n1)), n0 + n1 + n2 + n3);
    }
  }
  for (; i < end; ++i) write_pair(cells, i, encode[cells.entry[i]], coding, out);
  stream = out;
}

void EncodePiece(const float* x, const Piece& piece, const VectorScale& scale,
                 const DuoCoding& coding, const Philox& pre_round, const DitherWords* levels,
                 BitWriter& out) {
  PieceCells cells;
  quantise_piece(x, piece, scale, coding, pre_round, levels, cells);
  const std::uint32_t whole = piece.entries / kTile, short_tile = piece.entries % kTile;
  write_duos(cells, 0, std::size_t{whole} * kTileDuos, coding, out);
  write_duos(cells, std::size_t{whole} * kTileDuos, (short_tile + 1) / 2, coding, out);
}

template <bool kAdd>
void dequantise_piece(const PieceCells& cells, std::uint32_t entries, const VectorScale& scale,
                      const DitherWords* levels, float alpha, float* y) {
  const TileOutput output{scale.step * 0.03125f, 1.0f / scale.range, alpha};
  const std::uint32_t tiles = tiles_of_piece(entries), short_tile = entries % kTile;
  alignas(64) float padded[kTile] = {};
  for (std::uint32_t u = 0; u < tiles; ++u) {
    float* const place = y + std::size_t{u} * kTile;
    const bool whole = u + 1 < tiles || short_tile == 0;
    float* const tile = whole ? place : padded;
    if (kAdd && !whole) spread_tile(place, short_tile, padded);
    dequantise_tile<kAdd>(cells.q0 + u * kTileDuos, cells.q1 + u * kTileDuos,
                          levels[u / kDitherTiles].word, static_cast<int>(4 * (u % kDitherTiles)),
                          output, tile, tile + kTileDuos);
    if (!whole) gather_tile(padded, short_tile, place);
  }
}

/// One stream of a lockstep: a tile at a time of a piece whose code has no raw bits.
struct TileStream {
  std::uint64_t bit;
  const DuoCoding* coding;
  std::uint32_t level[kTileDuos];
  std::int32_t *q0, *q1;
};

HWY_INLINE void load_dither(const DitherWords* levels, std::uint32_t tile, std::uint32_t* level) {
  const DitherWords& words = levels[tile / kDitherTiles];
  for (std::uint32_t l = 0; l < kTileDuos; ++l)
    level[l] = (words.word[l] >> (4 * (tile % kDitherTiles))) & 15u;
}

HWY_INLINE void read_pairs(const BitReader& in, TileStream& s, std::uint32_t from,
                           std::uint32_t to) {
  for (std::uint32_t k = from; k < to; ++k) {
    const DecodedDuo pair = get_duo(in, *s.coding, s.level[k], s.bit);
    s.q0[k] = pair.q0;
    s.q1[k] = pair.q1;
  }
}

/// The 16 pairs of a whole tile of each stream, four words of at most 11 bits to a look at the
/// bits. A word's place is known only when the one before has been read; streams side by side hide
/// that.
template <std::size_t kStreams>
HWY_INLINE void read_tiles(const BitReader& in, TileStream* streams) {
  std::uint32_t place[kStreams][kTileDuos];
  for (std::size_t s = 0; s < kStreams; ++s) {
    const DuoCoding& c = *streams[s].coding;
    for (std::uint32_t l = 0; l < kTileDuos; ++l)
      place[s][l] = (streams[s].level[l] & c.level_mask) << c.limit;
  }
  for (std::uint32_t l = 0; l < kTileDuos; l += 4) {
    std::uint64_t window[kStreams];
    std::uint32_t used[kStreams] = {};
    bool escaped[kStreams] = {}, any = false;
    for (std::size_t s = 0; s < kStreams; ++s) window[s] = in.peek(streams[s].bit);
    for (std::uint32_t k = l; k < l + 4; ++k) {
      for (std::size_t s = 0; s < kStreams; ++s) {
        const std::uint32_t mask = (1u << streams[s].coding->limit) - 1;
        const std::uint32_t entry =
            streams[s].coding->decode[place[s][k] | (static_cast<std::uint32_t>(window[s]) & mask)];
        window[s] >>= entry & 15u;
        used[s] += entry & 15u;
        streams[s].q0[k] = static_cast<std::int32_t>(entry << 22) >> 26;
        streams[s].q1[k] = static_cast<std::int32_t>(entry << 16) >> 26;
        escaped[s] |= streams[s].q0[k] == kEscapeCell;
      }
    }
    for (std::size_t s = 0; s < kStreams; ++s) any |= escaped[s];
    if (!any) [[likely]] {
      for (std::size_t s = 0; s < kStreams; ++s) streams[s].bit += used[s];
      continue;
    }
    for (std::size_t s = 0; s < kStreams; ++s) {
      if (escaped[s]) {
        read_pairs(in, streams[s], l, l + 4);
      } else {
        streams[s].bit += used[s];
      }
    }
  }
}

void finish_piece(const PieceCells& cells, const PieceStream& piece, cpu::DecodeMode mode) {
  if (mode.add) {
    dequantise_piece<true>(cells, piece.entries, piece.scale, piece.levels, mode.alpha, piece.y);
  } else {
    dequantise_piece<false>(cells, piece.entries, piece.scale, piece.levels, mode.alpha, piece.y);
  }
}

/// Pieces of as many whole tiles, side by side; what is left of each is read alone.
template <std::size_t kStreams>
void decode_together(const BitReader& in, PieceStream* pieces, cpu::DecodeMode mode) {
  PieceCells cells[kStreams];
  TileStream streams[kStreams];
  const std::uint32_t entries = pieces[0].entries, tiles = tiles_of_piece(entries);
  bool raw = false;
  for (std::size_t s = 0; s < kStreams; ++s) {
    streams[s] = {pieces[s].bit, pieces[s].coding, {}, cells[s].q0, cells[s].q1};
    raw |= pieces[s].coding->raw != 0;
  }
  for (std::uint32_t u = 0; u < tiles; ++u) {
    const std::uint32_t pairs = (std::min(kTile, entries - u * kTile) + 1) / 2;
    for (std::size_t s = 0; s < kStreams; ++s) load_dither(pieces[s].levels, u, streams[s].level);
    if (pairs == kTileDuos && !raw) {
      read_tiles<kStreams>(in, streams);
    } else {
      for (std::uint32_t k = 0; k < pairs; ++k) {
        for (TileStream& stream : streams) read_pairs(in, stream, k, k + 1);
      }
      for (TileStream& stream : streams) {
        std::fill(stream.q0 + pairs, stream.q0 + kTileDuos, 0);
        std::fill(stream.q1 + pairs, stream.q1 + kTileDuos, 0);
      }
    }
    for (TileStream& stream : streams) {
      stream.q0 += kTileDuos;
      stream.q1 += kTileDuos;
    }
  }
  for (std::size_t s = 0; s < kStreams; ++s) {
    pieces[s].bit = streams[s].bit;
    finish_piece(cells[s], pieces[s], mode);
  }
}

void DecodePieces(const BitReader& in, PieceStream* pieces, std::size_t count,
                  cpu::DecodeMode mode) {
  const BitReader stream = in;
  while (count > 0) {
    std::size_t same = 1;
    while (same < count && same < 4 && pieces[same].entries == pieces[0].entries) ++same;
    const std::size_t together = same == 4 ? 4 : same >= 2 ? 2 : 1;
    if (together == 4) {
      decode_together<4>(stream, pieces, mode);
    } else if (together == 2) {
      decode_together<2>(stream, pieces, mode);
    } else {
      decode_together<1>(stream, pieces, mode);
    }
    pieces += together;
    count -= together;
  }
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
HWY_EXPORT(DecodePieces);
HWY_EXPORT(AtomAmplitudes);

namespace {

/// Entries that a task takes.
constexpr std::uint64_t kTaskEntries = std::uint64_t{1} << 17;

}  // namespace

void draw_dither(const Philox& draws, const std::uint64_t* bases, std::size_t count,
                 DitherWords* levels) noexcept {
  HWY_DYNAMIC_DISPATCH(DrawDither)(draws, bases, count, levels);
}

void encode_piece(const float* x, const Piece& piece, const VectorScale& scale,
                  const DuoCoding& coding, const Philox& pre_round, const DitherWords* levels,
                  BitWriter& out) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodePiece)(x, piece, scale, coding, pre_round, levels, out);
}

void decode_pieces(const BitReader& in, PieceStream* pieces, std::size_t count,
                   cpu::DecodeMode mode) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodePieces)(in, pieces, count, mode);
}

void decode_piece(const BitReader& in, std::uint64_t& bit, std::uint32_t entries,
                  const VectorScale& scale, const DuoCoding& coding, const DitherWords* levels,
                  cpu::DecodeMode mode, float* y) noexcept {
  PieceStream piece{bit, entries, scale, &coding, levels, y};
  decode_pieces(in, &piece, 1, mode);
  bit = piece.bit;
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
