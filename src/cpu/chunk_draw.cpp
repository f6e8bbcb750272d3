// SPDX-License-Identifier: Apache-2.0
/// Sums of shares in lanes, in two parts of a share so that 32 bits are enough; the draw itself adds one
/// entry's share after the other. A chunk stays in the L1 cache.

#include "cpu/chunk_draw.hpp"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_draw.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef ATOMO_CPU_CHUNK_DRAW_ONCE
#define ATOMO_CPU_CHUNK_DRAW_ONCE
namespace atomo::cpu {
namespace {

struct ChunkFacts {
  std::uint32_t least = 0x7F800000u, largest = 0, nonzero = 0;
  float sum = 0;  ///< of magnitudes, in any order
};

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls `visit(magnitudes, i)` for vectors of n entries, the last one filled up with zeros.
template <class D, typename Visit>
HWY_INLINE void each_vector(D d, const float* x, std::size_t n, Visit visit) {
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) visit(hn::Abs(hn::LoadU(d, x + i)), i);
  if (i == n) return;
  HWY_ALIGN float tail[16] = {};
  std::memcpy(tail, x + i, (n - i) * sizeof(float));
  visit(hn::Abs(hn::Load(d, tail)), i);
}

ChunkFacts find_facts(const float* x, std::size_t n) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  auto least = hn::Set(di, 0x7F800000), largest = hn::Zero(di), zeros = hn::Zero(di);
  auto sum = hn::Zero(d);
  each_vector(d, x, n, [&](auto v, std::size_t) {
    const auto magnitude = hn::BitCast(di, v);
    const auto zero = hn::Eq(magnitude, hn::Zero(di));
    largest = hn::Max(largest, magnitude);
    least = hn::Min(least, hn::IfThenElse(zero, least, magnitude));
    zeros = hn::Sub(zeros, hn::VecFromMask(di, zero));
    sum = hn::Add(sum, v);
  });
  const std::size_t filled = (n + hn::Lanes(d) - 1) / hn::Lanes(d) * hn::Lanes(d);
  const auto zero_count = static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(di, zeros)));
  return {static_cast<std::uint32_t>(hn::GetLane(hn::MinOfLanes(di, least))),
          static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest))),
          static_cast<std::uint32_t>(filled) - zero_count, hn::GetLane(hn::SumOfLanes(d, sum))};
}

/// `math::share_of` in lanes.
template <class D, class V>
HWY_INLINE auto shares_of(D d, V magnitude, math::LevelScale scale) {
  const auto z = hn::Mul(hn::Mul(magnitude, hn::Set(d, scale.pre)), hn::Set(d, scale.inv));
  return hn::NearestInt(hn::Min(z, hn::Set(d, static_cast<float>(math::kWholeShare))));
}

math::ShareSum sum_shares(const float* x, std::size_t n, math::LevelScale scale) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto low_bits = hn::Set(di, 2047);
  auto high = hn::Zero(di), low = hn::Zero(di), certain = hn::Zero(di);
  each_vector(d, x, n, [&](auto v, std::size_t) {
    const auto share = shares_of(d, v, scale);
    high = hn::Add(high, hn::ShiftRight<11>(share));
    low = hn::Add(low, hn::And(share, low_bits));
    certain = hn::Add(certain, hn::ShiftRight<30>(share));
  });
  HWY_ALIGN std::uint32_t lanes[16];
  hn::Store(hn::BitCast(du, high), du, lanes);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) sum += std::uint64_t{lanes[i]} << 11;
  return {sum + static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(di, low))),
          static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(di, certain)))};
}

void write_shares(const float* x, std::size_t n, math::LevelScale scale, std::uint32_t* shares) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  each_vector(d, x, n, [&](auto v, std::size_t i) {
    hn::StoreU(hn::BitCast(du, shares_of(d, v, scale)), du, shares + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(find_facts);
HWY_EXPORT(sum_shares);
HWY_EXPORT(write_shares);

format::DrawnChunk measure_chunk(const float* x, std::size_t n, std::uint32_t slots,
                                 std::uint32_t& guess) noexcept {
  const ChunkFacts facts = HWY_DYNAMIC_DISPATCH(find_facts)(x, n);
  format::DrawnChunk found{1, facts.least, facts.largest};
  if (facts.largest >= 0x7F800000u || facts.nonzero <= slots) return found;
  const float mean = facts.sum / static_cast<float>(slots);
  if (guess == 0) guess = mean < 0x1p127f ? std::bit_cast<std::uint32_t>(mean) >> 16 : 0x7F00;
  math::ScaleSearch search(slots, guess);
  while (!search.done())
    search.take(HWY_DYNAMIC_DISPATCH(sum_shares)(x, n, math::share_scale(search.word())));
  found.scale = guess = search.word();
  return found;
}

void draw_entries(const float* x, std::size_t n, std::uint32_t slots, float scale,
                  std::uint32_t random, Candidates& out) noexcept {
  std::uint32_t shares[kMaxChunk + 16];
  const std::uint32_t drawn = magnitude_of(scale);
  HWY_DYNAMIC_DISPATCH(write_shares)
  (x, n, math::level_scale(scale, static_cast<float>(math::kWholeShare)), shares);
  std::uint32_t sum = random >> 2, count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += shares[i];
    out.places[count] = static_cast<std::uint16_t>(i);
    count += sum >> 30;
    sum &= math::kWholeShare - 1;
    // Slots are short at the largest scale alone.
    if (count == slots) break;
  }
  out.count = count;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t place = out.places[i];
    out.magnitudes[i] = shares[place] == math::kWholeShare ? magnitude_of(x[place]) : drawn;
  }
}

}  // namespace atomo::cpu
#endif
