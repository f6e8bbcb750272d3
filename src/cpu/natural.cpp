// SPDX-License-Identifier: Apache-2.0
/// Tiles of 64 entries, 16 blocks of draws: `math::natural_code` and `math::natural_value` for each SIMD
/// target.

#include "cpu/natural.hpp"

#include <cstdint>
#include <cstring>

#include "core/bits.hpp"
#include "math/natural_rounding.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/natural.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/magnitude_marks-inl.hpp"
#include "cpu/philox_tile-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, 16>;

/// The codes of a tile; returns its signs, the first lowest.
HWY_INLINE std::uint64_t code_tile(const float* HWY_RESTRICT x,
                                   const std::uint32_t* HWY_RESTRICT random,
                                   std::uint8_t* HWY_RESTRICT codes) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> du;
  const hn::Rebind<std::uint8_t, Tag> d8;
  std::uint64_t signs = 0;
  for (std::size_t e = 0; e < kPhiloxTileWords; e += hn::Lanes(d)) {
    const auto entry = hn::LoadU(d, x + e);
    const auto missing =
        hn::ShiftRight<32 - math::kMantissaBits>(hn::Not(hn::Load(du, random + e)));
    const auto drawn = hn::Add(hn::BitCast(du, hn::Abs(entry)), missing);
    hn::StoreU(hn::TruncateTo(d8, hn::ShiftRight<math::kMantissaBits>(drawn)), d8, codes + e);
    signs |= bits_of(d, hn::Lt(entry, hn::Zero(d))) << e;
  }
  return signs;
}

void code_range(const float* x, const Philox& draws, std::size_t begin, std::size_t end,
                std::byte* signs, std::byte* codes) {
  std::uint8_t own[kPhiloxTileWords];
  visit_drawn_tiles(x, draws, begin, end,
                    [&](std::size_t first, std::size_t count, const float* entries,
                        const std::uint32_t* random) HWY_ATTR {
                      const std::uint64_t negative = code_tile(entries, random, own);
                      std::memcpy(codes + first, own, count);
                      store_le(signs + first / 8, static_cast<std::uint32_t>(negative));
                      if (count > 32)
                        store_le(signs + first / 8 + 4, static_cast<std::uint32_t>(negative >> 32));
                    });
}

/// 16 entries from 16 bits and as many codes.
template <bool kAdd>
HWY_INLINE void value_16(std::uint32_t negative, const std::uint8_t* HWY_RESTRICT codes,
                         float alpha, float* HWY_RESTRICT y) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> du;
  const hn::Rebind<std::uint8_t, Tag> d8;
  for (std::size_t i = 0; i < 16; i += hn::Lanes(d)) {
    const auto place = hn::Iota(du, static_cast<std::uint32_t>(i));
    const auto to_top = hn::Shl(hn::Set(du, negative), hn::Sub(hn::Set(du, 31u), place));
    const auto sign = hn::And(to_top, hn::Set(du, 0x80000000u));
    const auto power =
        hn::ShiftLeft<math::kMantissaBits>(hn::PromoteTo(du, hn::LoadU(d8, codes + i)));
    // Code 255 is the largest f32.
    auto v = hn::BitCast(d, hn::Or(hn::Min(power, hn::Set(du, 0x7F7FFFFFu)), sign));
    if constexpr (kAdd) v = hn::Add(hn::LoadU(d, y + i), hn::Mul(hn::Set(d, alpha), v));
    hn::StoreU(v, d, y + i);
  }
}

template <bool kAdd>
HWY_INLINE void value_range(const std::byte* signs, const std::byte* codes, std::size_t begin,
                            std::size_t end, float alpha, float* y) {
  std::uint8_t own[16] = {};
  std::size_t i = begin;
  for (; i + 16 <= end; i += 16) {
    std::memcpy(own, codes + i, 16);
    value_16<kAdd>(load_le<std::uint16_t>(signs + i / 8), own, alpha, y + i);
  }
  for (; i < end; ++i) {
    const std::uint32_t negative = std::to_integer<std::uint32_t>(signs[i / 8]) >> (i % 8) & 1u;
    const float v = math::natural_value(std::to_integer<std::uint32_t>(codes[i]), negative);
    y[i] = kAdd ? y[i] + (alpha * v) : v;
  }
}

void set_range(const std::byte* signs, const std::byte* codes, std::size_t begin, std::size_t end,
               float* y) {
  value_range<false>(signs, codes, begin, end, 1, y);
}
void add_range(const std::byte* signs, const std::byte* codes, std::size_t begin, std::size_t end,
               float alpha, float* y) {
  value_range<true>(signs, codes, begin, end, alpha, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(code_range);
HWY_EXPORT(set_range);
HWY_EXPORT(add_range);

void natural_codes(const float* x, const Philox& draws, std::size_t begin, std::size_t end,
                   std::byte* signs, std::byte* codes) noexcept {
  HWY_DYNAMIC_DISPATCH(code_range)(x, draws, begin, end, signs, codes);
}

void natural_values(const std::byte* signs, const std::byte* codes, std::size_t begin,
                    std::size_t end, const DecodeMode& mode, float* y) noexcept {
  if (mode.add) {
    HWY_DYNAMIC_DISPATCH(add_range)(signs, codes, begin, end, mode.alpha, y);
  } else {
    HWY_DYNAMIC_DISPATCH(set_range)(signs, codes, begin, end, y);
  }
}

}  // namespace atomo::cpu
#endif
