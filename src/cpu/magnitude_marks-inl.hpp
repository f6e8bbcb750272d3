// SPDX-License-Identifier: Apache-2.0
/// Marks of 64 entries whose magnitude is above a bound, for each SIMD target: what both forms of top-k find
/// their candidates with. Included once a target.

#if defined(ATOMO_CPU_MAGNITUDE_MARKS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef ATOMO_CPU_MAGNITUDE_MARKS_INL_HPP
#undef ATOMO_CPU_MAGNITUDE_MARKS_INL_HPP
#else
#define ATOMO_CPU_MAGNITUDE_MARKS_INL_HPP
#endif

#include <hwy/highway.h>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {

/// Bit i is set where the magnitude of x[i], as an integer, is above `least`. `largest` keeps the largest
/// of each lane.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE std::uint64_t marks_of_64(D d, const float* x, V least, V& largest) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToFloat<D> df;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, 0x7FFFFFFF);
  std::uint64_t marks = 0;
  for (std::size_t i = 0; i < 64; i += lanes) {
    const auto magnitude = hn::And(hn::BitCast(d, hn::LoadU(df, x + i)), mask);
    largest = hn::Max(largest, magnitude);
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(d, hn::Gt(magnitude, least), bits);
    marks |= (std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 8) << i;
  }
  return marks;
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#endif
