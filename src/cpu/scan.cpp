// SPDX-License-Identifier: Apache-2.0
/// Limited by reading: two comparisons an entry.
#include "cpu/scan.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "core/run_tasks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Magnitudes as integers: zero is 0, Inf and NaN are the exponent's bits or more.
EntryScan ScanEntries(const float* x, std::size_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(du, 0x7FFFFFFFu), zero = hn::Zero(du), one = hn::Set(du, 1u);
  auto largest = zero, zeros = zero;
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::And(hn::BitCast(du, hn::LoadU(d, x + i)), magnitude);
    largest = hn::Max(largest, bits);
    zeros = hn::Add(zeros, hn::IfThenElseZero(hn::Eq(bits, zero), one));
  }
  std::uint32_t top = hn::GetLane(hn::MaxOfLanes(du, largest));
  EntryScan found;
  found.zeros = hn::GetLane(hn::SumOfLanes(du, zeros));
  for (; i < n; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu;
    top = std::max(top, bits);
    found.zeros += bits == 0 ? 1 : 0;
  }
  found.finite = top < 0x7F800000u;
  found.largest = std::bit_cast<float>(top);
  return found;
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
namespace {

/// Entries of a task; a lane counts at most as many.
constexpr std::size_t kGrain = std::size_t{1} << 18;

}  // namespace

HWY_EXPORT(ScanEntries);

EntryScan scan_entries(const float* x, std::size_t n, Executor* executor) noexcept {
  if (n <= kGrain) return HWY_DYNAMIC_DISPATCH(ScanEntries)(x, n);
  std::atomic<bool> finite{true};
  std::atomic<std::size_t> zeros{0};
  std::atomic<std::uint32_t> largest{0};
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    const EntryScan part = HWY_DYNAMIC_DISPATCH(ScanEntries)(x + begin, end - begin);
    if (!part.finite) finite = false;
    zeros += part.zeros;
    const auto own = std::bit_cast<std::uint32_t>(part.largest);
    std::uint32_t seen = largest;
    while (own > seen && !largest.compare_exchange_weak(seen, own)) {
    }
  });
  return {finite, zeros, std::bit_cast<float>(largest.load())};
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
