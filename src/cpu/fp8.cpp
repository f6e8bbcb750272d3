// SPDX-License-Identifier: Apache-2.0
/// Tiles of 64 entries, 16 blocks of draws: `math::fp8_step` for each SIMD target. A layer whose largest
/// number is beyond the largest f32 is coded an entry at a time.

#include "cpu/fp8.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/fp8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/philox_tile-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void fp8_tile(const math::Fp8Grid& grid, const float* HWY_RESTRICT x,
                         const std::uint32_t* HWY_RESTRICT random,
                         std::uint8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const auto one = hn::Set(di, 1), hidden_bit = hn::Set(di, 0x800000);
  const auto origin = hn::Set(di, static_cast<std::int32_t>(grid.origin));
  const auto rest = hn::Set(di, 23 - grid.mantissa), most = hn::Set(di, 31);
  const auto lift = hn::Set(d, grid.lift);
  // Every number here but a significand that was shifted left is below 2^31.
  for (std::size_t e = 0; e < kPhiloxTileWords; e += hn::Lanes(d)) {
    const auto entry = hn::LoadU(d, x + e);
    const auto bits = hn::BitCast(di, hn::Mul(hn::Abs(entry), lift));
    const auto own = hn::Max(hn::ShiftRight<23>(bits), one);
    const auto hidden = hn::Min(bits, hidden_bit);
    const auto significand = hn::Or(hn::And(bits, hn::Set(di, 0x7FFFFF)), hidden);
    const auto above = hn::Max(own, origin);
    const auto f = hn::Add(hn::Sub(above, own), rest);
    const auto units = hn::Shr(significand, hn::Min(f, most));
    const auto over = hn::Sub(f, hn::Set(di, 32));
    const auto left = hn::BitCast(du, hn::Max(hn::Neg(over), hn::Zero(di)));
    const auto right = hn::BitCast(du, hn::Min(hn::Max(over, hn::Zero(di)), most));
    const auto unit = hn::Sub(hn::Shl(hn::Set(du, 1u), right), hn::Set(du, 1u));
    const auto fraction = hn::Shl(hn::BitCast(du, significand), left);
    const auto chance = hn::Shr(hn::Add(fraction, unit), right);
    const auto up = hn::Lt(hn::Load(du, random + e), chance);
    const auto code = hn::Add(hn::ShiftLeftSame(hn::Sub(above, origin), grid.mantissa), units);
    const auto drawn = hn::Sub(hn::BitCast(du, code), hn::VecFromMask(du, up));
    const auto negative = hn::VecFromMask(du, hn::RebindMask(du, hn::Lt(entry, hn::Zero(d))));
    const auto sign = hn::And(negative, hn::Set(du, 0x80u));
    hn::StoreU(hn::TruncateTo(d8, hn::Or(drawn, sign)), d8, codes + e);
  }
}

void fp8_range(const math::Fp8Grid& grid, const float* x, const Philox& draws, std::size_t begin,
               std::size_t end, std::byte* out) {
  std::uint8_t codes[kPhiloxTileWords];
  visit_drawn_tiles(x, draws, begin, end,
                    [&](std::size_t first, std::size_t count, const float* entries,
                        const std::uint32_t* random) HWY_ATTR {
                      fp8_tile(grid, entries, random, codes);
                      std::memcpy(out + first, codes, count);
                    });
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(fp8_range);

void fp8_codes(const math::Fp8Grid& grid, const float* x, const Philox& draws, std::size_t begin,
               std::size_t end, std::byte* codes) noexcept {
  if (!grid.at_top) {
    HWY_DYNAMIC_DISPATCH(fp8_range)(grid, x, draws, begin, end, codes);
    return;
  }
  for (std::size_t first = begin; first < end; first += 4) {
    const PhiloxWords words = draws(first / 4);
    for (std::size_t i = first; i < std::min(end, first + 4); ++i) {
      const std::uint32_t sign = x[i] < 0 ? 0x80u : 0u;
      codes[i] = static_cast<std::byte>(math::fp8_code(grid, std::abs(x[i]), words[i % 4]) | sign);
    }
  }
}

}  // namespace atomo::cpu
#endif
