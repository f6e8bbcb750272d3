// SPDX-License-Identifier: Apache-2.0
/// Tiles of 128 entries rounded to levels: the loops of math/stochastic_level.hpp for each SIMD target.
/// Included once a target.
///
/// Draws: 16 bits an entry (core/short_draw.hpp), 128 to 16 blocks.

#if defined(ATOMO_CPU_LEVEL_TILE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef ATOMO_CPU_LEVEL_TILE_INL_HPP
#undef ATOMO_CPU_LEVEL_TILE_INL_HPP
#else
#define ATOMO_CPU_LEVEL_TILE_INL_HPP
#endif

#include <hwy/highway.h>

#include <cstring>

#include "cpu/level_tile.hpp"
#include "cpu/philox_tile-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {

/// Sixteen entries: codes level | sign << sign_bit. `ties` keeps the largest lower half of a sum,
/// which is all ones where the first 16 bits tie.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V level_codes(D di, V random, const float* x, const float* pre, const float* inv,
                         float limit, int sign_bit, V& ties) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<float, D> df;
  const hn::RebindToUnsigned<D> du;
  const auto entry = hn::LoadU(df, x);
  const auto z = hn::Min(hn::Mul(hn::Mul(hn::Abs(entry), hn::Load(df, pre)), hn::Load(df, inv)),
                         hn::Set(df, limit));
  // threshold + (65535 - random) carries into the level exactly when random < threshold, and is all
  // ones on a tie.
  const auto low16 = hn::Set(di, 0xFFFF);
  const auto sum = hn::Add(hn::ConvertTo(di, z), hn::Xor(random, low16));
  ties = hn::Max(ties, hn::And(sum, low16));
  const auto level = hn::ShiftRight<16>(sum);
  const auto negative = hn::BitCast(di, hn::ShiftRight<31>(hn::BitCast(du, entry)));
  const auto sign = hn::ShiftLeftSame(negative, sign_bit);
  return hn::Or(level, hn::IfThenElseZero(hn::Gt(level, hn::Zero(di)), sign));
}

/// Sixteen entries at one bit: code 1 where x decodes to -N.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V sign_codes(D di, V random, const float* x, const float* pre, const float* inv,
                        V& ties) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<float, D> df;
  const auto scaled = hn::Mul(hn::Mul(hn::LoadU(df, x), hn::Load(df, pre)), hn::Load(df, inv));
  const auto z = hn::Clamp(scaled, hn::Set(df, -32768.0f), hn::Set(df, 32768.0f));
  const auto threshold = hn::Add(hn::ConvertTo(di, hn::Floor(z)), hn::Set(di, 32768));
  const auto low16 = hn::Set(di, 0xFFFF);
  const auto sum = hn::Add(threshold, hn::Xor(random, low16));
  ties = hn::Max(ties, hn::And(sum, low16));
  return hn::Xor(hn::ShiftRight<16>(sum), hn::Set(di, 1));
}

/// Writes 128 codes of one byte. `bits` is 1, or one more than a level needs. Returns whether any
/// entry tied.
template <bool kOneBit>
HWY_INLINE bool level_tile(const float* HWY_RESTRICT x, const LevelTileScales& scales, float limit,
                           int bits, const std::uint16_t* HWY_RESTRICT draws,
                           std::uint8_t* HWY_RESTRICT codes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<std::int32_t, 16> di;
  const hn::Rebind<std::uint8_t, decltype(di)> d8;
  const hn::Rebind<std::uint16_t, decltype(di)> d16;
  const hn::RebindToUnsigned<decltype(di)> du;
  auto ties = hn::Zero(di);
  for (std::size_t e = 0; e < kLevelTile; e += hn::Lanes(di)) {
    const auto random = hn::PromoteTo(di, hn::LoadU(d16, draws + e));
    if constexpr (kOneBit) {
      const auto code = sign_codes(di, random, x + e, scales.pre + e, scales.inv + e, ties);
      hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, code)), d8, codes + e);
    } else {
      const auto code =
          level_codes(di, random, x + e, scales.pre + e, scales.inv + e, limit, bits - 1, ties);
      hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, code)), d8, codes + e);
    }
  }
  return !hn::AllFalse(di, hn::Eq(ties, hn::Set(di, 0xFFFF)));
}

/// 128 codes to values: +-level * step, one rounded product; at one bit +-step.
template <bool kAdd>
HWY_INLINE void value_tile(const std::uint8_t* HWY_RESTRICT codes, const float* HWY_RESTRICT step,
                           int bits, float alpha, float* HWY_RESTRICT y) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<std::int32_t, 16> di;
  const hn::Rebind<std::uint8_t, decltype(di)> d8;
  const hn::Rebind<float, decltype(di)> df;
  const auto one = hn::Set(di, 1);
  const auto magnitude_mask = hn::Set(di, (1 << (bits - 1)) - 1);
  for (std::size_t e = 0; e < kLevelTile; e += hn::Lanes(di)) {
    const auto code = hn::PromoteTo(di, hn::LoadU(d8, codes + e));
    const auto negative = hn::ShiftRightSame(code, bits - 1);
    const auto magnitude = bits == 1 ? one : hn::And(code, magnitude_mask);
    const auto level = hn::Add(hn::Xor(magnitude, hn::Neg(negative)), negative);
    auto v = hn::Mul(hn::ConvertTo(df, level), hn::Load(df, step + e));
    if constexpr (kAdd) v = hn::Add(hn::LoadU(df, y + e), hn::Mul(hn::Set(df, alpha), v));
    hn::StoreU(v, df, y + e);
  }
}

/// 128 codes of `bits` bits, one a byte, to a bit stream: code i at bits [i * bits, (i + 1) *
/// bits), least significant bit first. Eight codes are a 64-bit word, folded to 8 * bits bits in
/// three halvings. Writes 16 * bits bytes and up to 8 more.
HWY_INLINE void pack_tile(const std::uint8_t* HWY_RESTRICT codes, int bits,
                          std::byte* HWY_RESTRICT out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<std::uint64_t, 8> d;
  const int gap = 8 - bits;
  const auto fold = [&](auto v, std::uint64_t low, int shift) {
    const auto keep = hn::Set(d, low);
    return hn::Or(hn::And(v, keep), hn::ShiftRightSame(hn::AndNot(keep, v), shift));
  };
  alignas(64) std::uint64_t groups[kLevelTile / 8];
  std::memcpy(groups, codes, sizeof groups);
  for (std::size_t g = 0; g < kLevelTile / 8; g += hn::Lanes(d)) {
    auto v = hn::Load(d, groups + g);
    v = fold(v, 0x00FF00FF00FF00FFu, gap);
    v = fold(v, 0x0000FFFF0000FFFFu, 2 * gap);
    hn::Store(fold(v, 0x00000000FFFFFFFFu, 4 * gap), d, groups + g);
  }
  for (std::size_t g = 0; g < kLevelTile / 8; ++g)
    std::memcpy(out + static_cast<std::size_t>(bits) * g, groups + g, 8);
}

/// The inverse of `pack_tile`. Reads 16 * bits bytes and up to 8 more.
HWY_INLINE void unpack_tile(const std::byte* HWY_RESTRICT in, int bits,
                            std::uint8_t* HWY_RESTRICT codes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<std::uint64_t, 8> d;
  const int gap = 8 - bits;
  const std::uint64_t low1 = ((std::uint64_t{1} << bits) - 1) * 0x0001000100010001u,
                      low2 = ((std::uint64_t{1} << (2 * bits)) - 1) * 0x0000000100000001u,
                      low4 = (std::uint64_t{1} << (4 * bits)) - 1;
  const auto valid = hn::Set(d, low4 | (low4 << (4 * bits)));
  const auto spread = [&](auto v, std::uint64_t low, int shift) {
    const auto keep = hn::Set(d, low);
    return hn::Or(hn::And(v, keep), hn::ShiftLeftSame(hn::AndNot(keep, v), shift));
  };
  alignas(64) std::uint64_t groups[kLevelTile / 8];
  for (std::size_t g = 0; g < kLevelTile / 8; ++g)
    std::memcpy(groups + g, in + static_cast<std::size_t>(bits) * g, 8);
  for (std::size_t g = 0; g < kLevelTile / 8; g += hn::Lanes(d)) {
    auto v = hn::And(hn::Load(d, groups + g), valid);
    v = spread(v, low4, 4 * gap);
    v = spread(v, low2, 2 * gap);
    hn::Store(spread(v, low1, gap), d, groups + g);
  }
  std::memcpy(codes, groups, sizeof groups);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#endif
