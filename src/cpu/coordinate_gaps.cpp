// SPDX-License-Identifier: Apache-2.0
/// The bits of a list's gaps: limited by reading the places.
#include "cpu/coordinate_write.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/coordinate_gaps.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Of the gaps between neighbours.
std::uint32_t gaps_between(const std::uint16_t* places, std::size_t count, unsigned k) {
  const hn::CappedTag<std::uint16_t, 32> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto constant = [&](unsigned v) { return hn::Set(d, static_cast<std::uint16_t>(v)); };
  const auto one = constant(1), limit = constant(kRiceLimit - 1), shortest = constant(k + 1),
             escaped = constant(kRiceLimit + kGapRawBits);
  // A word has at most 36 bits: a lane holds 1,024 of them, and fewer lanes are emptied sooner.
  constexpr std::size_t kTogether = 1024;
  std::uint32_t bits = 0;
  std::size_t i = 1;
  while (i + lanes <= count) {
    auto sum = hn::Zero(d);
    const std::size_t stop = std::min(count, i + kTogether * lanes);
    for (; i + lanes <= stop; i += lanes) {
      const auto gap =
          hn::Sub(hn::Sub(hn::LoadU(d, places + i), hn::LoadU(d, places + i - 1)), one);
      const auto q = hn::ShiftRightSame(gap, static_cast<int>(k));
      sum = hn::Add(sum, hn::IfThenElse(hn::Gt(q, limit), escaped, hn::Add(q, shortest)));
    }
    alignas(64) std::uint16_t lane_sums[32];
    hn::Store(sum, d, lane_sums);
    for (std::size_t l = 0; l < lanes; ++l) bits += lane_sums[l];
  }
  for (; i < count; ++i)
    bits += rice_bits(std::uint32_t{places[i]} - places[i - 1] - 1u, k, kGapRawBits);
  return bits;
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(gaps_between);

std::uint32_t gaps_bits(std::span<const std::uint16_t> places, std::size_t m, unsigned k) noexcept {
  if (places.empty()) return rice_bits(static_cast<std::uint32_t>(m), k, kGapRawBits);
  return rice_bits(places.front(), k, kGapRawBits) +
         rice_bits(static_cast<std::uint32_t>(m - places.back() - 1), k, kGapRawBits) +
         HWY_DYNAMIC_DISPATCH(gaps_between)(places.data(), places.size(), k);
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
