// SPDX-License-Identifier: Apache-2.0
/// Sums of shares in lanes, in two parts of a share so that 32 bits are enough. The draw needs no more than
/// the running sum's lower 32 bits: bit 30 changes where an entry is kept. A chunk stays in the L1 cache.

#include "cpu/chunk_draw.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_draw.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/magnitude_marks-inl.hpp"

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

/// What lanes are moved by: up by a number of places with zeros behind them, or from the last one to all.
template <class D>
struct LaneMoves {
  static constexpr std::size_t kLanes = hn::MaxLanes(D()), kSteps = std::bit_width(kLanes) - 1;
  using Indices = decltype(hn::SetTableIndices(D(), static_cast<const std::int32_t*>(nullptr)));

  HWY_INLINE explicit LaneMoves(D d) {
    HWY_ALIGN std::int32_t from[kLanes];
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (std::size_t i = 0; i < kLanes; ++i)
        from[i] = static_cast<std::int32_t>((i - (std::size_t{1} << step)) % kLanes);
      up[step] = hn::SetTableIndices(d, from);
      filled[step] = hn::Not(hn::FirstN(d, std::size_t{1} << step));
    }
    std::fill_n(from, kLanes, static_cast<std::int32_t>(kLanes - 1));
    last = hn::SetTableIndices(d, from);
  }

  Indices up[kSteps + 1], last;
  hn::Mask<D> filled[kSteps + 1];
};

/// Of each lane the sum of those up to it, modulo 2^32.
template <class Moves, class V>
HWY_INLINE V running_sums(const Moves& moves, V v) {
  for (std::size_t step = 0; step < moves.kSteps; ++step)
    v = hn::Add(v, hn::IfThenElseZero(moves.filled[step], hn::TableLookupLanes(v, moves.up[step])));
  return v;
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

/// Marks the entries that are drawn where the sum of shares starts at `sum`.
void mark_drawn(const float* x, std::size_t n, math::LevelScale scale, std::uint32_t sum,
                std::uint64_t* words) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const LaneMoves<decltype(du)> moves(du);
  const auto kept_bit = hn::Set(du, math::kWholeShare);
  auto before = hn::Set(du, sum);
  each_64(x, n, [&](const float* in, std::size_t at) {
    std::uint64_t marks = 0;
    for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
      const auto share = hn::BitCast(du, shares_of(d, hn::Abs(hn::LoadU(d, in + i)), scale));
      const auto behind = hn::Add(before, running_sums(moves, share));
      const auto changed = hn::Xor(behind, hn::Sub(behind, share));
      marks |= bits_of(du, hn::TestBit(changed, kept_bit)) << i;
      before = hn::TableLookupLanes(behind, moves.last);
    }
    words[at / 64] = marks;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(find_facts);
HWY_EXPORT(sum_shares);
HWY_EXPORT(mark_drawn);

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
  std::uint64_t words[kMaxChunk / 64];
  const math::LevelScale factors = math::level_scale(scale, static_cast<float>(math::kWholeShare));
  HWY_DYNAMIC_DISPATCH(mark_drawn)(x, n, factors, random >> 2, words);
  out.collect(x, n, words);
  // Slots are short at the largest scale alone.
  out.count = std::min(out.count, slots);
  const std::uint32_t drawn = magnitude_of(scale);
  for (std::uint32_t i = 0; i < out.count; ++i) {
    std::uint32_t& magnitude = out.magnitudes[i];
    if (!math::has_whole_share(std::bit_cast<float>(magnitude), factors)) magnitude = drawn;
  }
}

}  // namespace atomo::cpu
#endif
