// SPDX-License-Identifier: Apache-2.0
// This file is compiled once for each instruction set: foreach_target.h includes it again and again.
#include "dither_kernels.hpp"

#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dither_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::detail {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Sixteen lanes at most: the pairs of a tile.
using U32 = hn::CappedTag<std::uint32_t, kTilePairs>;
using I32 = hn::RebindToSigned<U32>;
using F32 = hn::RebindToFloat<U32>;
using F64 = hn::CappedTag<double, 8>;
using VU = hn::Vec<U32>;
using VI = hn::Vec<I32>;
using VF = hn::Vec<F32>;

/// Whether MulAdd rounds once. Where it does not, std::fma does it a lane at a time.
constexpr bool kFused = HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128 &&
                        HWY_TARGET != HWY_SSSE3 && HWY_TARGET != HWY_SSE4;

HWY_INLINE VF fused_multiply_add(VF x, VF y, VF z) {
  const F32 d;
  if constexpr (kFused) return hn::MulAdd(x, y, z);
  HWY_ALIGN float a[kTilePairs], b[kTilePairs], c[kTilePairs];
  hn::Store(x, d, a);
  hn::Store(y, d, b);
  hn::Store(z, d, c);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) a[i] = std::fma(a[i], b[i], c[i]);
  return hn::Load(d, a);
}

HWY_INLINE VU odd_down(VU v) {
  const hn::Repartition<std::uint64_t, U32> wide;
  return hn::BitCast(U32(), hn::ShiftRight<32>(hn::BitCast(wide, v)));
}

HWY_INLINE VU multiply_even(VU a, VU b) { return hn::BitCast(U32(), hn::MulEven(a, b)); }

struct Words {
  VU word[4];
};

/// Philox of one counter a lane. Even and odd lanes run apart in the low halves of 64-bit lanes: the multiplication
/// ignores what is above, so nothing needs masking.
HWY_INLINE Words philox_lanes(const Philox& draws, VU c0, VU c1) {
  const U32 d;
  const hn::Repartition<std::uint64_t, U32> wide;
  const PhiloxWords rest = draws.counter(0);
  const VU m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  VU a0 = c0, a1 = odd_down(c0), b0 = c1, b1 = odd_down(c1);
  VU c20 = hn::Set(d, rest[2]), c21 = c20, c30 = hn::Set(d, rest[3]), c31 = c30;
  std::uint32_t key0 = draws.key0(), key1 = draws.key1();
  for (int round = 0; round < 10; ++round) {
    const VU p0 = multiply_even(a0, m0), p1 = multiply_even(a1, m0);
    const VU q0 = multiply_even(c20, m1), q1 = multiply_even(c21, m1);
    const VU k0 = hn::Set(d, key0), k1 = hn::Set(d, key1);
    a0 = hn::Xor(hn::Xor(odd_down(q0), b0), k0);
    a1 = hn::Xor(hn::Xor(odd_down(q1), b1), k0);
    c20 = hn::Xor(hn::Xor(odd_down(p0), c30), k1);
    c21 = hn::Xor(hn::Xor(odd_down(p1), c31), k1);
    b0 = q0;
    b1 = q1;
    c30 = p0;
    c31 = p1;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const auto merge = [&](VU even, VU odd) HWY_ATTR {
    return hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(hn::BitCast(wide, odd))), even);
  };
  return {{merge(a0, a1), merge(b0, b1), merge(c20, c21), merge(c30, c31)}};
}

/// Four bases at a time: sixteen counters.
void DrawLevels(const Philox& draws, const std::uint64_t* bases, std::size_t count, LevelWords* levels) noexcept {
  const U32 d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN std::uint32_t low[16], high[16], out[4][16];
  for (std::size_t first = 0; first < count; first += 4) {
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::uint64_t base = bases[std::min<std::size_t>(first + i / 4, count - 1)];
      const PhiloxWords counter = draws.counter(base * 4 + i % 4);
      low[i] = counter[0];
      high[i] = counter[1];
    }
    for (std::size_t i = 0; i < 16; i += lanes) {
      const Words words = philox_lanes(draws, hn::Load(d, low + i), hn::Load(d, high + i));
      for (std::size_t w = 0; w < 4; ++w) hn::Store(words.word[w], d, out[w] + i);
    }
    for (std::size_t b = 0; b < std::min<std::size_t>(4, count - first); ++b) {
      for (std::size_t w = 0; w < 4; ++w) std::memcpy(levels[first + b].word + 4 * w, out[w] + 4 * b, 16);
    }
  }
}

/// A piece between dithering and writing, a slot a pair: 16 a tile, of which a short tile uses the first.
struct PieceCells {
  HWY_ALIGN std::uint32_t entry[kPieceTiles * kTilePairs];  ///< index into PairCoding::encode
  HWY_ALIGN std::int32_t q0[kPieceTiles * kTilePairs];
  HWY_ALIGN std::int32_t q1[kPieceTiles * kTilePairs];
};

/// Constants of one piece in all lanes.
struct QuantiseLanes {
  VF range, inverse;
  VI centre, half;
  VU level_mask, outside;
  int raw, width;
};

HWY_INLINE QuantiseLanes quantise_lanes(const VectorScale& scale, const PairCoding& coding) {
  const U32 d;
  const I32 di;
  const F32 df;
  return {hn::Set(df, scale.range),
          hn::Set(df, scale.inverse),
          hn::Set(di, static_cast<std::int32_t>((1u << coding.raw) >> 1)),
          hn::Set(di, 1 << (coding.width - 1)),
          hn::Set(d, coding.level_mask),
          hn::Set(d, ~((1u << coding.width) - 1)),
          static_cast<int>(coding.raw),
          static_cast<int>(coding.width)};
}

/// floor(fma(x, inverse, U)) - 1; kept within the i32 that escapes can hold whatever x is.
HWY_INLINE VI quantise_lane(VF x, VU uniform, const QuantiseLanes& c) {
  const F32 df;
  const VF y = hn::Floor(fused_multiply_add(x, c.inverse, hn::BitCast(df, uniform)));
  const VF bound = hn::Set(df, 33554430.0f);
  const VF inside = hn::Max(hn::Min(y, bound), hn::Neg(bound));
  return hn::Sub(hn::ConvertTo(I32(), inside), hn::Set(I32(), 1));
}

/// Lanes `lane ..` of a tile: `first` and `second` are the tile's two halves, `word` the pre-rounding draws.
HWY_INLINE void quantise_tile(const float* first, const float* second, VU level_word, int level_shift, VU word,
                              const QuantiseLanes& c, PieceCells& cells, std::size_t slot) {
  const U32 d;
  const I32 di;
  const F32 df;
  const VU level = hn::And(hn::ShiftRightSame(level_word, level_shift), hn::Set(d, 15u));
  const VU one = hn::Or(hn::ShiftLeft<19>(level), hn::Set(d, 0x3F800004u));
  const VU u0 = hn::Or(one, hn::ShiftRight<13>(hn::ShiftLeft<16>(word)));
  const VU u1 = hn::Or(hn::Xor(one, hn::Set(d, kMateLevel << 19)), hn::ShiftLeft<3>(hn::ShiftRight<16>(word)));
  const VI q0 = quantise_lane(hn::Mul(hn::LoadU(df, first), c.range), u0, c);
  const VI q1 = quantise_lane(hn::Mul(hn::LoadU(df, second), c.range), u1, c);
  const VU i0 = hn::BitCast(d, hn::Add(hn::ShiftRightSame(hn::Add(q0, c.centre), c.raw), c.half));
  const VU i1 = hn::BitCast(d, hn::Add(hn::ShiftRightSame(hn::Add(q1, c.centre), c.raw), c.half));
  const auto inside = hn::Eq(hn::And(hn::Or(i0, i1), c.outside), hn::Zero(d));
  const VU cell = hn::IfThenElseZero(inside, hn::Or(hn::ShiftLeftSame(i0, c.width), i1));
  const VU place = hn::ShiftLeftSame(hn::And(level, c.level_mask), 2 * c.width);
  hn::Store(hn::Or(place, cell), d, cells.entry + slot);
  hn::Store(q0, di, cells.q0 + slot);
  hn::Store(q1, di, cells.q1 + slot);
}

void quantise_piece(const float* x, const Piece& piece, const VectorScale& scale, const PairCoding& coding,
                    const Philox& pre_round, const LevelWords* levels, PieceCells& cells) {
  const U32 d;
  const std::size_t lanes = hn::Lanes(d);
  const QuantiseLanes constants = quantise_lanes(scale, coding);
  const std::uint32_t tiles = tiles_of_piece(piece.entries), short_tile = piece.entries % kTile;
  HWY_ALIGN float padded[kTile] = {};
  if (short_tile != 0) {
    const std::uint32_t half = (short_tile + 1) / 2;
    const float* const from = x + std::size_t{tiles - 1} * kTile;
    std::memcpy(padded, from, half * sizeof(float));
    std::memcpy(padded + kTilePairs, from + half, (short_tile - half) * sizeof(float));
  }
  const std::uint64_t base = 16 * (piece.vector * ((piece.tiles + 3) / 4) + piece.first_tile / 4);
  for (std::uint32_t group = 0; group < tiles; group += 4) {
    const PhiloxWords counter = pre_round.counter(base + group * 4);
    const LevelWords& level = levels[group / kLevelTiles];
    for (std::size_t lane = 0; lane < kTilePairs; lane += lanes) {
      const VU index = hn::Iota(d, static_cast<std::uint32_t>(counter[0] + lane));
      const Words words = philox_lanes(pre_round, index, hn::Set(d, counter[1]));
      const VU level_word = hn::Load(d, level.word + lane);
      const std::uint32_t end = std::min(tiles, group + 4);
      for (std::uint32_t u = group; u < end; ++u) {
        const bool whole = u + 1 < tiles || short_tile == 0;
        const float* const tile = whole ? x + std::size_t{u} * kTile : padded;
        quantise_tile(tile + lane, tile + kTilePairs + lane, level_word, static_cast<int>(4 * (u % kLevelTiles)),
                      words.word[u % 4], constants, cells, u * kTilePairs + lane);
      }
    }
  }
}

/// One pair from its table entry: its word, then an escape's integers or the raw bits.
HWY_INLINE void write_pair(const PieceCells& cells, std::size_t slot, std::uint32_t entry, const PairCoding& coding,
                           BitWriter& out) {
  const bool escaped = (entry & kEscapeFlag) != 0;
  const unsigned bits = escaped ? coding.escape_bits : coding.raw, length = (entry >> 16) & 0xFFu;
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const std::int32_t shift = escaped ? 0 : static_cast<std::int32_t>((1u << coding.raw) >> 1);
  const std::uint64_t low0 = static_cast<std::uint32_t>(cells.q0[slot] + shift) & mask;
  const std::uint64_t low1 = static_cast<std::uint32_t>(cells.q1[slot] + shift) & mask;
  out.put(entry & 0xFFFFu, length);
  out.put(low0 | (low1 << bits), 2 * bits);
}

void write_pairs(const PieceCells& cells, std::size_t slot, std::size_t pairs, const PairCoding& coding,
                 BitWriter& out) {
  const std::uint32_t* const encode = coding.encode;
  std::size_t i = slot;
  const std::size_t end = slot + pairs;
  if (coding.raw == 0) {
    for (; i + 4 <= end; i += 4) {  // four words of at most 11 bits in one go
      const std::uint32_t e0 = encode[cells.entry[i]], e1 = encode[cells.entry[i + 1]];
      const std::uint32_t e2 = encode[cells.entry[i + 2]], e3 = encode[cells.entry[i + 3]];
      if (((e0 | e1 | e2 | e3) & kEscapeFlag) != 0) [[unlikely]] {
        for (std::size_t k = i; k < i + 4; ++k) write_pair(cells, k, encode[cells.entry[k]], coding, out);
        continue;
      }
      const unsigned n0 = e0 >> 16, n1 = e1 >> 16, n2 = e2 >> 16, n3 = e3 >> 16;
      const std::uint64_t low = (e0 & 0xFFFFu) | (std::uint64_t{e1 & 0xFFFFu} << n0);
      const std::uint64_t high = (e2 & 0xFFFFu) | (std::uint64_t{e3 & 0xFFFFu} << n2);
      out.put(low | (high << (n0 + n1)), n0 + n1 + n2 + n3);
    }
  }
  for (; i < end; ++i) write_pair(cells, i, encode[cells.entry[i]], coding, out);
}

void EncodePiece(const float* x, const Piece& piece, const VectorScale& scale, const PairCoding& coding,
                 const Philox& pre_round, const LevelWords* levels, BitWriter& out) noexcept {
  PieceCells cells;
  quantise_piece(x, piece, scale, coding, pre_round, levels, cells);
  const std::uint32_t whole = piece.entries / kTile, short_tile = piece.entries % kTile;
  BitWriter local = out;  // a copy the compiler can keep in registers
  write_pairs(cells, 0, std::size_t{whole} * kTilePairs, coding, local);
  write_pairs(cells, std::size_t{whole} * kTilePairs, (short_tile + 1) / 2, coding, local);
  out = local;
}

/// Values of one tile's lanes into `first` and `second`, its two halves.
template <bool kAdd>
HWY_INLINE void dequantise_tile(const std::int32_t* q0, const std::int32_t* q1, VU level_word, int level_shift, VF step,
                                VF range, VF alpha, float* first, float* second) {
  const I32 di;
  const F32 df;
  const VI level = hn::BitCast(di, hn::And(hn::ShiftRightSame(level_word, level_shift), hn::Set(U32(), 15u)));
  const auto value = [&](VI q, VI j) HWY_ATTR {
    const VI n = hn::Add(hn::Sub(hn::ShiftLeft<5>(q), hn::ShiftLeft<1>(j)), hn::Set(di, 15));
    return hn::Mul(hn::Mul(hn::ConvertTo(df, n), step), range);
  };
  const VI mate = hn::Xor(level, hn::Set(di, static_cast<std::int32_t>(kMateLevel)));
  VF v0 = value(hn::Load(di, q0), level), v1 = value(hn::Load(di, q1), mate);
  if constexpr (kAdd) {
    v0 = hn::Add(hn::LoadU(df, first), hn::Mul(alpha, v0));
    v1 = hn::Add(hn::LoadU(df, second), hn::Mul(alpha, v1));
  }
  hn::StoreU(v0, df, first);
  hn::StoreU(v1, df, second);
}

template <bool kAdd>
void dequantise_piece(const PieceCells& cells, std::uint32_t entries, const VectorScale& scale,
                      const LevelWords* levels, float alpha, float* y) {
  const U32 d;
  const F32 df;
  const VF step = hn::Set(df, scale.step * 0.03125f), range = hn::Set(df, 1.0f / scale.range);
  const VF factor = hn::Set(df, alpha);
  const std::uint32_t tiles = tiles_of_piece(entries), short_tile = entries % kTile, half = (short_tile + 1) / 2;
  HWY_ALIGN float padded[kTile] = {};
  for (std::uint32_t u = 0; u < tiles; ++u) {
    float* const place = y + std::size_t{u} * kTile;
    const bool whole = u + 1 < tiles || short_tile == 0;
    float* const tile = whole ? place : padded;
    if (kAdd && !whole) {
      std::memcpy(padded, place, half * sizeof(float));
      std::memcpy(padded + kTilePairs, place + half, (short_tile - half) * sizeof(float));
    }
    const LevelWords& level = levels[u / kLevelTiles];
    for (std::size_t lane = 0; lane < kTilePairs; lane += hn::Lanes(d)) {
      dequantise_tile<kAdd>(cells.q0 + u * kTilePairs + lane, cells.q1 + u * kTilePairs + lane,
                            hn::Load(d, level.word + lane), static_cast<int>(4 * (u % kLevelTiles)), step, range, factor,
                            tile + lane, tile + kTilePairs + lane);
    }
    if (!whole) {
      std::memcpy(place, padded, half * sizeof(float));
      std::memcpy(place + half, padded + kTilePairs, (short_tile - half) * sizeof(float));
    }
  }
}

/// The 16 pairs of a tile of a code without raw bits: four words of at most 11 bits to a look at the stream.
HWY_INLINE std::uint64_t read_tile(const BitReader& in, std::uint64_t bit, const PairCoding& coding,
                                   const std::uint32_t* level, std::int32_t* q0, std::int32_t* q1) {
  const std::uint32_t mask = (1u << coding.limit) - 1;
  const std::uint16_t* const decode = coding.decode;
  std::uint32_t place[kTilePairs];
  for (std::uint32_t l = 0; l < kTilePairs; ++l) place[l] = (level[l] & coding.level_mask) << coding.limit;
  for (std::uint32_t l = 0; l < kTilePairs; l += 4) {
    std::uint64_t window = in.peek(bit);
    std::uint32_t used = 0;
    bool escaped = false;
    for (std::uint32_t k = l; k < l + 4; ++k) {
      const std::uint32_t entry = decode[place[k] | (static_cast<std::uint32_t>(window) & mask)];
      const std::uint32_t length = entry & 15u;
      window >>= length;
      used += length;
      q0[k] = static_cast<std::int32_t>(entry << 22) >> 26;
      q1[k] = static_cast<std::int32_t>(entry << 16) >> 26;
      escaped |= q0[k] == kEscapeCell;
    }
    if (!escaped) [[likely]] {
      bit += used;
      continue;
    }
    for (std::uint32_t k = l; k < l + 4; ++k) {
      const DecodedPair pair = get_pair(in, coding, level[k], bit);
      q0[k] = pair.q0;
      q1[k] = pair.q1;
    }
  }
  return bit;
}

void DecodePiece(const BitReader& in, std::uint64_t& bit, std::uint32_t entries, const VectorScale& scale,
                 const PairCoding& coding, const LevelWords* levels, cpu::DecodeMode mode, float* y) noexcept {
  PieceCells cells;
  const BitReader stream = in;
  std::uint64_t at = bit;
  const std::uint32_t tiles = tiles_of_piece(entries);
  for (std::uint32_t u = 0; u < tiles; ++u) {
    const std::uint32_t here = std::min(kTile, entries - u * kTile), pairs = (here + 1) / 2;
    std::uint32_t level[kTilePairs];
    for (std::uint32_t l = 0; l < kTilePairs; ++l) {
      level[l] = (levels[u / kLevelTiles].word[l] >> (4 * (u % kLevelTiles))) & 15u;
    }
    std::int32_t* const q0 = cells.q0 + u * kTilePairs;
    std::int32_t* const q1 = cells.q1 + u * kTilePairs;
    if (pairs == kTilePairs && coding.raw == 0) {
      at = read_tile(stream, at, coding, level, q0, q1);
      continue;
    }
    for (std::uint32_t l = 0; l < kTilePairs; ++l) {
      const DecodedPair pair = l < pairs ? get_pair(stream, coding, level[l], at) : DecodedPair{0, 0};
      q0[l] = pair.q0;
      q1[l] = pair.q1;
    }
  }
  bit = at;
  if (mode.add) {
    dequantise_piece<true>(cells, entries, scale, levels, mode.alpha, y);
  } else {
    dequantise_piece<false>(cells, entries, scale, levels, mode.alpha, y);
  }
}

/// Sum of squares of at most 1,024 entries in 32 lanes.
HWY_INLINE double segment_norm2(const float* x, std::size_t n) {
  const F64 d;
  const hn::Rebind<float, F64> narrow;
  constexpr std::size_t kMaxVectors = 32;
  const std::size_t lanes = hn::Lanes(d), vectors = 32 / lanes;
  HWY_ALIGN double sum[32];
  hn::Vec<F64> lane_sum[kMaxVectors];
  for (std::size_t v = 0; v < vectors; ++v) lane_sum[v] = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (std::size_t v = 0; v < vectors; ++v) {
      const auto value = hn::PromoteTo(d, hn::LoadU(narrow, x + i + v * lanes));
      lane_sum[v] = hn::MulAdd(value, value, lane_sum[v]);  // the product is exact: fused or not is the same
    }
  }
  for (std::size_t v = 0; v < vectors; ++v) hn::Store(lane_sum[v], d, sum + v * lanes);
  for (std::size_t l = 0; i + l < n; ++l) sum[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) sum[l] += sum[l + half];
  }
  return sum[0];
}

/// A balanced tree over segments, as a binary counter: equal subtrees merge as they meet, what is left at the end is
/// carried up.
double norm2(const float* x, std::uint64_t n) {
  if (n <= kPieceEntries) return segment_norm2(x, n);
  double tree[64];
  std::size_t depth = 0;
  std::uint64_t segments = 0;
  for (std::uint64_t i = 0; i < n; i += kPieceEntries) {
    tree[depth++] = segment_norm2(x + i, std::min<std::uint64_t>(kPieceEntries, n - i));
    ++segments;
    for (std::uint64_t full = segments; (full & 1) == 0; full >>= 1, --depth) tree[depth - 2] += tree[depth - 1];
  }
  for (; depth > 1; --depth) tree[depth - 2] += tree[depth - 1];
  return tree[0];
}

double AtomAmplitudes(const float* x, const AtomLayout& layout, double* rms) noexcept {
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
}  // namespace atomo::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::detail {

HWY_EXPORT(DrawLevels);
HWY_EXPORT(EncodePiece);
HWY_EXPORT(DecodePiece);
HWY_EXPORT(AtomAmplitudes);

void draw_levels(const Philox& draws, const std::uint64_t* bases, std::size_t count, LevelWords* levels) noexcept {
  HWY_DYNAMIC_DISPATCH(DrawLevels)(draws, bases, count, levels);
}

void encode_piece(const float* x, const Piece& piece, const VectorScale& scale, const PairCoding& coding,
                  const Philox& pre_round, const LevelWords* levels, BitWriter& out) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodePiece)(x, piece, scale, coding, pre_round, levels, out);
}

void decode_piece(const BitReader& in, std::uint64_t& bit, std::uint32_t entries, const VectorScale& scale,
                  const PairCoding& coding, const LevelWords* levels, cpu::DecodeMode mode, float* y) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodePiece)(in, bit, entries, scale, coding, levels, mode, y);
}

double atom_amplitudes(const float* x, const AtomLayout& layout, double* rms) noexcept {
  return HWY_DYNAMIC_DISPATCH(AtomAmplitudes)(x, layout, rms);
}

}  // namespace atomo::detail
#endif  // HWY_ONCE
