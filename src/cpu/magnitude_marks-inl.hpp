// SPDX-License-Identifier: Apache-2.0
/// Marks of entries, a bit each, for each SIMD target: of signs, and those by which both forms of top-k find their
/// candidates and draw entries. Included once a target.

#if defined(ATOMO_CPU_MAGNITUDE_MARKS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef ATOMO_CPU_MAGNITUDE_MARKS_INL_HPP
#undef ATOMO_CPU_MAGNITUDE_MARKS_INL_HPP
#else
#define ATOMO_CPU_MAGNITUDE_MARKS_INL_HPP
#endif

#include <hwy/highway.h>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {

/// Calls `mark(in, at)` for each 64 entries of x, from `at` on: `in` are these, zeros behind the last one.
template <class Mark>
HWY_INLINE void each_64(const float* x, std::size_t n, Mark mark) {
  std::size_t at = 0;
  for (; n - at >= 64; at += 64) mark(x + at, at);
  if (at == n) return;
  float tail[64] = {};
  std::memcpy(tail, x + at, (n - at) * sizeof(float));
  mark(static_cast<const float*>(tail), at);
}

/// The bits of a mask of up to 16 lanes.
template <class D, class Mask>
HWY_INLINE std::uint64_t bits_of(D d, Mask mask) {
  std::uint8_t bits[8] = {};
  hwy::HWY_NAMESPACE::StoreMaskBits(d, mask, bits);
  return std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 8;
}

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
    marks |= bits_of(d, hn::Gt(magnitude, least)) << i;
  }
  return marks;
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#endif
