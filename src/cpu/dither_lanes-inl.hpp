// SPDX-License-Identifier: Apache-2.0
// Per-target include guard: this file is included once for each instruction set, by
// dither_kernels.cpp.
#if defined(ATOMO_CPU_DITHER_LANES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef ATOMO_CPU_DITHER_LANES_INL_HPP
#undef ATOMO_CPU_DITHER_LANES_INL_HPP
#else
#define ATOMO_CPU_DITHER_LANES_INL_HPP
#endif

/// \file
/// The arithmetic of one tile in lanes: sixteen draws, dithering and un-dithering of sixteen pairs,
/// sums of squares. Written twice: in plain f32 for machines without FMA (dither.hpp's templates,
/// which the tests enumerate), and in vectors. Both give the same bits.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <hwy/highway.h>

#include "cpu/dither_kernels.hpp"
#include "math/centroids.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace {

/// Sixteen counters' words: word w of counter i is word[w][i].
struct DrawBlock {
  alignas(64) std::uint32_t word[4][kTileDuos];
};

using RoundKeys = std::array<std::uint32_t, 20>;  ///< Philox::round_keys

/// The values that the tiles of a piece share.
struct TileCoding {
  float range, inverse;
  std::uint32_t raw, width, level_mask;
  bool centred;
};

/// A piece between its values and its words, a slot a pair: 16 a tile, of which a short tile uses the
/// first.
struct PieceCells {
  alignas(64) std::uint32_t entry[kPieceTiles * kTileDuos];  ///< index into DuoCoding::encode
  alignas(64) std::int32_t q0[kPieceTiles * kTileDuos];
  alignas(64) std::int32_t q1[kPieceTiles * kTileDuos];
};

/// How a tile's integers become values, those of a centred layer or of one with dither.
template <bool kCentred>
struct TileOutput {
  float step;     ///< of the content, a 32nd
  float unrange;  ///< 1 / range
  float alpha;
  std::int32_t offset;  ///< DuoCoding's
};

/// A short tile is laid out as a whole one: halves apart, zeros behind each.
HWY_INLINE void spread_tile(const float* tile, std::uint32_t entries, float* padded) {
  const std::uint32_t half = (entries + 1) / 2;
  std::memcpy(padded, tile, half * sizeof(float));
  std::memcpy(padded + kTileDuos, tile + half, (entries - half) * sizeof(float));
}

HWY_INLINE void gather_tile(const float* padded, std::uint32_t entries, float* tile) {
  const std::uint32_t half = (entries + 1) / 2;
  std::memcpy(tile, padded, half * sizeof(float));
  std::memcpy(tile + half, padded + kTileDuos, (entries - half) * sizeof(float));
}

template <bool kCentred>
HWY_INLINE float dequantise_one(std::int32_t q, std::uint32_t level,
                                const TileOutput<kCentred>& c) {
  const std::int32_t units = kCentred ? centred_units(q, c.offset) : dithered_units(q, level);
  return static_cast<float>(units) * c.step * c.unrange;
}

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void draw_block(const Philox& draws, const RoundKeys&, const std::uint32_t* low,
                           const std::uint32_t* high, DrawBlock& out) {
  const PhiloxWords rest = draws.counter(0);
  for (std::size_t i = 0; i < kTileDuos; ++i) {
    const PhiloxWords words =
        philox4x32({low[i], high[i], rest[2], rest[3]}, draws.key0(), draws.key1());
    for (std::size_t w = 0; w < 4; ++w) out.word[w][i] = words[w];
  }
}

HWY_INLINE void draw_from(const Philox& draws, const RoundKeys&, std::uint64_t first,
                          DrawBlock& out) {
  for (std::size_t i = 0; i < kTileDuos; ++i) {
    const PhiloxWords words = draws(first + i);
    for (std::size_t w = 0; w < 4; ++w) out.word[w][i] = words[w];
  }
}

HWY_INLINE void quantise_tile(const float* first, const float* second,
                              const std::uint32_t* level_word, int level_shift,
                              const std::uint32_t* pre, const TileCoding& c, PieceCells& cells,
                              std::size_t slot) {
  const std::int32_t centre = static_cast<std::int32_t>((1u << c.raw) >> 1),
                     half = 1 << (c.width - 1);
  for (std::size_t l = 0; l < kTileDuos; ++l) {
    const std::uint32_t level = (level_word[l] >> level_shift) & 15u;
    const float x0 = first[l] * c.range, x1 = second[l] * c.range;
    std::int32_t q0, q1;
    if (c.centred) {
      q0 = nearest_level(x0, c.inverse), q1 = nearest_level(x1, c.inverse);
    } else {
      q0 = quantise<float>(x0, c.inverse, EntryDraw{level, pre[l] & 0xFFFFu});
      q1 = quantise<float>(x1, c.inverse, EntryDraw{level ^ kMateDither, pre[l] >> 16});
    }
    const auto i0 = static_cast<std::uint32_t>(((q0 + centre) >> c.raw) + half);
    const auto i1 = static_cast<std::uint32_t>(((q1 + centre) >> c.raw) + half);
    const std::uint32_t cell = ((i0 | i1) >> c.width) != 0 ? 0 : (i0 << c.width) | i1;
    cells.entry[slot + l] = ((level & c.level_mask) << (2 * c.width)) | cell;
    cells.q0[slot + l] = q0;
    cells.q1[slot + l] = q1;
  }
}

template <bool kAdd, bool kCentred>
HWY_INLINE void dequantise_tile(const std::int32_t* q0, const std::int32_t* q1,
                                const std::uint32_t* level_word, int level_shift,
                                const TileOutput<kCentred>& c, float* first, float* second) {
  for (std::size_t l = 0; l < kTileDuos; ++l) {
    const std::uint32_t level = (level_word[l] >> level_shift) & 15u;
    const float v0 = dequantise_one(q0[l], level, c),
                v1 = dequantise_one(q1[l], level ^ kMateDither, c);
    first[l] = kAdd ? first[l] + (c.alpha * v0) : v0;
    second[l] = kAdd ? second[l] + (c.alpha * v1) : v1;
  }
}

HWY_INLINE double segment_norm2(const float* x, std::size_t n) {
  double sum[32] = {};
  for (std::size_t i = 0; i < n; ++i)
    sum[i % 32] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) sum[l] += sum[l + half];
  }
  return sum[0];
}

#else

namespace hn = hwy::HWY_NAMESPACE;

using U32 = hn::CappedTag<std::uint32_t, kTileDuos>;
using I32 = hn::RebindToSigned<U32>;
using F32 = hn::RebindToFloat<U32>;
using F64 = hn::CappedTag<double, 8>;
using VU = hn::Vec<U32>;
using VI = hn::Vec<I32>;
using VF = hn::Vec<F32>;

HWY_INLINE VU odd_down(VU v) {
  const hn::Repartition<std::uint64_t, U32> wide;
  return hn::BitCast(U32(), hn::ShiftRight<32>(hn::BitCast(wide, v)));
}

HWY_INLINE VU multiply_even(VU a, VU b) { return hn::BitCast(U32(), hn::MulEven(a, b)); }

struct Words {
  VU word[4];
};

/// Philox of one counter a lane. Even and odd lanes run apart in the low halves of 64-bit lanes:
/// the multiplication ignores what is above, so nothing needs masking.
HWY_INLINE Words philox_lanes(const Philox& draws, const RoundKeys& keys, VU c0, VU c1) {
  const U32 d;
  const hn::Repartition<std::uint64_t, U32> wide;
  const PhiloxWords rest = draws.counter(0);
  const VU m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  VU a0 = c0, a1 = odd_down(c0), b0 = c1, b1 = odd_down(c1);
  VU c20 = hn::Set(d, rest[2]), c21 = c20, c30 = hn::Set(d, rest[3]), c31 = c30;
  for (std::size_t round = 0; round < 10; ++round) {
    const VU p0 = multiply_even(a0, m0), p1 = multiply_even(a1, m0);
    const VU q0 = multiply_even(c20, m1), q1 = multiply_even(c21, m1);
    const VU k0 = hn::Set(d, keys[2 * round]), k1 = hn::Set(d, keys[2 * round + 1]);
    a0 = hn::Xor3(odd_down(q0), b0, k0);
    a1 = hn::Xor3(odd_down(q1), b1, k0);
    c20 = hn::Xor3(odd_down(p0), c30, k1);
    c21 = hn::Xor3(odd_down(p1), c31, k1);
    b0 = q0;
    b1 = q1;
    c30 = p0;
    c31 = p1;
  }
  const auto merge = [&](VU even, VU odd) HWY_ATTR {
    return hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(hn::BitCast(wide, odd))), even);
  };
  return {{merge(a0, a1), merge(b0, b1), merge(c20, c21), merge(c30, c31)}};
}

HWY_INLINE void draw_block(const Philox& draws, const RoundKeys& keys, const std::uint32_t* low,
                           const std::uint32_t* high, DrawBlock& out) {
  const U32 d;
  for (std::size_t i = 0; i < kTileDuos; i += hn::Lanes(d)) {
    const Words words = philox_lanes(draws, keys, hn::Load(d, low + i), hn::Load(d, high + i));
    for (std::size_t w = 0; w < 4; ++w) hn::Store(words.word[w], d, out.word[w] + i);
  }
}

/// The same from `first` on, a multiple of 16: the counters differ in their low words alone.
HWY_INLINE void draw_from(const Philox& draws, const RoundKeys& keys, std::uint64_t first,
                          DrawBlock& out) {
  const U32 d;
  const PhiloxWords counter = draws.counter(first);
  for (std::size_t i = 0; i < kTileDuos; i += hn::Lanes(d)) {
    const VU low = hn::Iota(d, counter[0] + static_cast<std::uint32_t>(i));
    const Words words = philox_lanes(draws, keys, low, hn::Set(d, counter[1]));
    for (std::size_t w = 0; w < 4; ++w) hn::Store(words.word[w], d, out.word[w] + i);
  }
}

/// floor(fma(x, inverse, U)) - 1.
HWY_INLINE VI quantise_lane(VF x, VF inverse, VU uniform) {
  const F32 d;
  const VF y = hn::Floor(hn::MulAdd(x, inverse, hn::BitCast(d, uniform)));
  const VF bound = hn::Set(d, kLargestLevel);
  const VF inside = hn::Max(hn::Min(y, bound), hn::Neg(bound));
  return hn::Sub(hn::ConvertTo(I32(), inside), hn::Set(I32(), 1));
}

/// The nearest integer, ties to even.
HWY_INLINE VI nearest_lane(VF x, VF inverse) {
  const F32 d;
  const VF y = hn::Round(hn::Mul(x, inverse)), bound = hn::Set(d, kLargestLevel);
  return hn::ConvertTo(I32(), hn::Max(hn::Min(y, bound), hn::Neg(bound)));
}

/// `pre` is not read in centred layers.
HWY_INLINE void quantise_tile(const float* first, const float* second,
                              const std::uint32_t* level_word, int level_shift,
                              const std::uint32_t* pre, const TileCoding& c, PieceCells& cells,
                              std::size_t slot) {
  const U32 d;
  const I32 di;
  const F32 df;
  const auto raw = static_cast<int>(c.raw), width = static_cast<int>(c.width);
  const VF range = hn::Set(df, c.range), inverse = hn::Set(df, c.inverse);
  const VI centre = hn::Set(di, static_cast<std::int32_t>((1u << c.raw) >> 1)),
           half = hn::Set(di, 1 << (width - 1));
  const VU outside = hn::Set(d, ~((1u << c.width) - 1)), level_mask = hn::Set(d, c.level_mask);
  for (std::size_t l = 0; l < kTileDuos; l += hn::Lanes(d)) {
    const VU level =
        hn::And(hn::ShiftRightSame(hn::Load(d, level_word + l), level_shift), hn::Set(d, 15u));
    const VF x0 = hn::Mul(hn::LoadU(df, first + l), range);
    const VF x1 = hn::Mul(hn::LoadU(df, second + l), range);
    VI q0, q1;
    if (c.centred) {
      q0 = nearest_lane(x0, inverse), q1 = nearest_lane(x1, inverse);
    } else {
      const VU one = hn::Or(hn::ShiftLeft<19>(level), hn::Set(d, 0x3F800004u));
      const VU word = hn::Load(d, pre + l);
      const VU u0 = hn::Or(one, hn::ShiftRight<13>(hn::ShiftLeft<16>(word)));
      const VU u1 = hn::Or(hn::Xor(one, hn::Set(d, kMateDither << 19)),
                           hn::ShiftLeft<3>(hn::ShiftRight<16>(word)));
      q0 = quantise_lane(x0, inverse, u0), q1 = quantise_lane(x1, inverse, u1);
    }
    const VU i0 = hn::BitCast(d, hn::Add(hn::ShiftRightSame(hn::Add(q0, centre), raw), half));
    const VU i1 = hn::BitCast(d, hn::Add(hn::ShiftRightSame(hn::Add(q1, centre), raw), half));
    const auto inside = hn::Eq(hn::And(hn::Or(i0, i1), outside), hn::Zero(d));
    const VU cell = hn::IfThenElseZero(inside, hn::Or(hn::ShiftLeftSame(i0, width), i1));
    const VU place = hn::ShiftLeftSame(hn::And(level, level_mask), 2 * width);
    hn::Store(hn::Or(place, cell), d, cells.entry + slot + l);
    hn::Store(q0, di, cells.q0 + slot + l);
    hn::Store(q1, di, cells.q1 + slot + l);
  }
}

/// The values of 32 q at levels twice which are `twice_level`.
template <bool kCentred>
HWY_INLINE VF values_of(VI n, VI twice_level, const TileOutput<kCentred>& c) {
  const F32 d;
  const I32 di;
  VI units;
  if constexpr (kCentred) {
    const VI offset = hn::Set(di, c.offset);
    units = hn::Sub(n, hn::Max(hn::Min(n, offset), hn::Neg(offset)));
  } else {
    units = hn::Add(hn::Sub(n, twice_level), hn::Set(di, 15));
  }
  return hn::Mul(hn::Mul(hn::ConvertTo(d, units), hn::Set(d, c.step)), hn::Set(d, c.unrange));
}

/// Values of a tile into `first` and `second`, its two halves.
template <bool kAdd, bool kCentred>
HWY_INLINE void dequantise_tile(const std::int32_t* q0, const std::int32_t* q1,
                                const std::uint32_t* level_word, int level_shift,
                                const TileOutput<kCentred>& c, float* first, float* second) {
  const I32 di;
  const U32 d;
  const F32 df;
  const VF alpha = hn::Set(df, c.alpha);
  const auto value = [&](VI q, VI level) HWY_ATTR {
    return values_of(hn::ShiftLeft<5>(q), hn::ShiftLeft<1>(level), c);
  };
  for (std::size_t l = 0; l < kTileDuos; l += hn::Lanes(d)) {
    const VU shifted = hn::ShiftRightSame(hn::Load(d, level_word + l), level_shift);
    const VI level = hn::BitCast(di, hn::And(shifted, hn::Set(d, 15u)));
    const VI mate = hn::Xor(level, hn::Set(di, static_cast<std::int32_t>(kMateDither)));
    VF v0 = value(hn::Load(di, q0 + l), level), v1 = value(hn::Load(di, q1 + l), mate);
    if constexpr (kAdd) {
      v0 = hn::Add(hn::LoadU(df, first + l), hn::Mul(alpha, v0));
      v1 = hn::Add(hn::LoadU(df, second + l), hn::Mul(alpha, v1));
    }
    hn::StoreU(v0, df, first + l);
    hn::StoreU(v1, df, second + l);
  }
}

/// Sum of squares of at most 1,024 entries in 32 lanes.
HWY_INLINE double segment_norm2(const float* x, std::size_t n) {
  const F64 d;
  const hn::Rebind<float, F64> narrow;
  constexpr std::size_t lanes = hn::MaxLanes(F64()), vectors = 32 / lanes;
  HWY_ALIGN double sum[32];
  hn::Vec<F64> lane_sum[vectors];
  for (std::size_t v = 0; v < vectors; ++v) lane_sum[v] = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (std::size_t v = 0; v < vectors; ++v) {
      const auto value = hn::PromoteTo(d, hn::LoadU(narrow, x + i + v * lanes));
      lane_sum[v] =
          hn::MulAdd(value, value, lane_sum[v]);  // the product is exact: fused or not is the same
    }
  }
  for (std::size_t v = 0; v < vectors; ++v) hn::Store(lane_sum[v], d, sum + v * lanes);
  for (std::size_t l = 0; i + l < n; ++l)
    sum[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) sum[l] += sum[l + half];
  }
  return sum[0];
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
