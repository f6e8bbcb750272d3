// SPDX-License-Identifier: Apache-2.0
/// 8 n bytes of arithmetic for 4 n bytes read: limited by memory beyond the caches.

#include "cpu/reduce.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/run_tasks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// What is summed: of the last two, magnitudes of one side of zero.
enum class Term { magnitude, square, below, others };

constexpr std::size_t kSumLanes = 32;
constexpr std::size_t kSegment = 1024;

/// Magnitudes order as integers, Inf and NaN above all finite ones.
float max_abs(const float* x, std::size_t n) {
  const hn::CappedTag<std::uint32_t, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, 0x7FFFFFFFu);
  const hn::RebindToFloat<decltype(d)> df;
  const auto magnitude = [&](const float* at) {
    return hn::And(hn::BitCast(d, hn::LoadU(df, at)), mask);
  };
  auto a = hn::Zero(d), b = a;
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = hn::Max(a, magnitude(x + i));
    b = hn::Max(b, magnitude(x + i + lanes));
  }
  std::uint32_t m = hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
  for (; i < n; ++i) m = std::max(m, std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu);
  return std::bit_cast<float>(m);
}

/// Lanes [first, first + Lanes) of a segment whose length is a multiple of 32, then folded by the
/// caller.
template <Term kTerm>
HWY_INLINE void add_lanes(const float* x, std::size_t n, double* lane_sums) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> narrow;
  for (std::size_t first = 0; first < kSumLanes; first += hn::Lanes(d)) {
    auto sum = hn::LoadU(d, lane_sums + first);
    for (std::size_t i = first; i < n; i += kSumLanes) {
      const auto v = hn::PromoteTo(d, hn::LoadU(narrow, x + i));
      if constexpr (kTerm == Term::square) sum = hn::Add(sum, hn::Mul(v, v));
      if constexpr (kTerm == Term::magnitude) sum = hn::Add(sum, hn::Abs(v));
      if constexpr (kTerm == Term::below) sum = hn::Sub(sum, hn::Min(v, hn::Zero(d)));
      if constexpr (kTerm == Term::others) sum = hn::Add(sum, hn::Max(v, hn::Zero(d)));
    }
    hn::StoreU(sum, d, lane_sums + first);
  }
}

template <Term kTerm>
double segment_sum(const float* x, std::size_t n) {
  double lane_sums[kSumLanes] = {};
  const std::size_t whole = n / kSumLanes * kSumLanes;
  add_lanes<kTerm>(x, whole, lane_sums);
  if (whole < n) {
    float tail[kSumLanes] = {};
    std::memcpy(tail, x + whole, (n - whole) * sizeof(float));
    add_lanes<kTerm>(tail, kSumLanes, lane_sums);
  }
  for (std::size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) lane_sums[j] += lane_sums[j + half];
  }
  return lane_sums[0];
}

template <Term kTerm>
double tree_sum(const float* x, std::size_t n) {
  if (n <= kSegment) return segment_sum<kTerm>(x, n);
  TreeSum sum;
  for (std::size_t i = 0; i < n; i += kSegment)
    sum.add(segment_sum<kTerm>(x + i, std::min(kSegment, n - i)));
  return sum.total();
}

double sum_abs(const float* x, std::size_t n) { return tree_sum<Term::magnitude>(x, n); }
double sum_squares(const float* x, std::size_t n) { return tree_sum<Term::square>(x, n); }

std::size_t count_negatives(const float* x, std::size_t n) {
  const hn::ScalableTag<float> d;
  std::size_t i = 0, count = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    count += hn::CountTrue(d, hn::Lt(hn::LoadU(d, x + i), hn::Zero(d)));
  for (; i < n; ++i) count += x[i] < 0 ? 1 : 0;
  return count;
}

/// A segment at a time, which the second and the third look find in the nearest cache.
Sides sum_sides(const float* x, std::size_t n) {
  TreeSum below, others;
  Sides sides;
  for (std::size_t i = 0; i < n; i += kSegment) {
    const std::size_t count = std::min(kSegment, n - i);
    below.add(segment_sum<Term::below>(x + i, count));
    others.add(segment_sum<Term::others>(x + i, count));
    sides.negatives += count_negatives(x + i, count);
  }
  sides.below = below.total();
  sides.others = others.total();
  return sides;
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(max_abs);
HWY_EXPORT(sum_abs);
HWY_EXPORT(sum_squares);
HWY_EXPORT(sum_sides);

float max_abs(const float* x, std::size_t n) noexcept {
  return HWY_DYNAMIC_DISPATCH(max_abs)(x, n);
}
double sum_abs(const float* x, std::size_t n) noexcept {
  return HWY_DYNAMIC_DISPATCH(sum_abs)(x, n);
}
double sum_squares(const float* x, std::size_t n) noexcept {
  return HWY_DYNAMIC_DISPATCH(sum_squares)(x, n);
}
Sides sum_sides(const float* x, std::size_t n) noexcept {
  return HWY_DYNAMIC_DISPATCH(sum_sides)(x, n);
}

namespace {

double total_of(std::span<const double> grains) noexcept {
  TreeSum total;
  for (const double grain : grains) total.add(grain);
  return total.total();
}

float largest_of(std::span<const double> grains) noexcept {
  double m = 0;
  for (const double grain : grains) {
    if (!std::isfinite(grain)) return std::numeric_limits<float>::infinity();
    m = std::max(m, grain);
  }
  return static_cast<float>(m);
}

}  // namespace

float layer_max_abs(const float* x, std::size_t n, std::span<double> scratch,
                    Executor* executor) noexcept {
  run_ranges(executor, n, kReduceGrain, [&](std::size_t begin, std::size_t end) {
    scratch[begin / kReduceGrain] = max_abs(x + begin, end - begin);
  });
  return largest_of(scratch.first(reduce_scratch(n)));
}
MaxAndSquares layer_max_and_squares(const float* x, std::size_t n, std::span<double> scratch,
                                    Executor* executor) noexcept {
  const auto maxima = scratch.first(reduce_scratch(n));
  const auto squares = scratch.subspan(reduce_scratch(n), reduce_scratch(n));
  run_ranges(executor, n, kReduceGrain, [&](std::size_t begin, std::size_t end) {
    const std::size_t grain = begin / kReduceGrain;
    maxima[grain] = max_abs(x + begin, end - begin);
    squares[grain] = sum_squares(x + begin, end - begin);  // from a near cache
  });
  return {largest_of(maxima), total_of(squares)};
}
Sides layer_sum_sides(const float* x, std::size_t n, std::span<double> scratch,
                      Executor* executor) noexcept {
  const auto below = scratch.first(reduce_scratch(n));
  const auto others = scratch.subspan(reduce_scratch(n), reduce_scratch(n));
  std::atomic<std::size_t> negatives{0};
  run_ranges(executor, n, kReduceGrain, [&](std::size_t begin, std::size_t end) {
    const Sides sides = sum_sides(x + begin, end - begin);
    below[begin / kReduceGrain] = sides.below;
    others[begin / kReduceGrain] = sides.others;
    negatives += sides.negatives;
  });
  return {total_of(below), total_of(others), negatives};
}
double layer_sum_abs(const float* x, std::size_t n, std::span<double> scratch,
                     Executor* executor) noexcept {
  run_ranges(executor, n, kReduceGrain, [&](std::size_t begin, std::size_t end) {
    scratch[begin / kReduceGrain] = sum_abs(x + begin, end - begin);
  });
  return total_of(scratch.first(reduce_scratch(n)));
}

}  // namespace atomo::cpu
#endif
