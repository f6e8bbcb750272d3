// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the price of coordinates (coordinate_price.cu) and their price as a form (grid_form.cu) are
/// found with: histograms of magnitudes, and what a layer comes to at a step.

#include "cuda/coordinate.cuh"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"
#include "price/coordinate_levels.hpp"
#include "price/price.hpp"
#include "price/price_math.hpp"

namespace atomo::cuda::coordinate {

using format::kMaxGapRice;
using format::kMaxLevelRice;
using price::GridDemand;
using price::kLevelBins;
using price::kMagnitudeBins;
using price::kUnitBits;
using price::LevelShare;

/// Bins counted in shared memory, the first of them.
inline constexpr std::uint32_t kWindowBins = 96 * 128, kWindowFirst = (127 - 64) * 128;

/// Two counts of 16 bits a word.
struct Window {
  std::uint32_t pairs[kWindowBins / 2];
};

/// A whole block calls it, as everything here that takes a window.
__device__ inline void clear(Window& window) {
  for (std::uint32_t i = threadIdx.x; i < kWindowBins / 2; i += kScanThreads) window.pairs[i] = 0;
  __syncthreads();
}
/// `at` is below kWindowBins.
__device__ inline void count_in(Window& window, std::uint32_t at) {
  atomicAdd(&window.pairs[at / 2], 1u << (16 * (at % 2)));
}
__device__ inline std::uint32_t count_of(const Window& window, std::uint32_t at) {
  return window.pairs[at / 2] >> (16 * (at % 2)) & 0xFFFFu;
}

__device__ inline std::uint64_t* counts_of(const Frame& frame, const Plan& plan, const Job& job) {
  return frame(plan.counts) + std::uint64_t{job.counts} * kMagnitudeBins;
}

/// Of the entries a block has seen.
struct Extent {
  std::uint32_t largest, smallest, nonzero, non_finite;
};

/// Counts entries begin to end - 1 into the window, or into `counts` where it has no bin; null:
/// looks at their extent alone.
__device__ inline Extent count_entries(const Entries& x, std::uint64_t begin, std::uint64_t end,
                                       Window& window, std::uint64_t* counts) {
  Extent mine{};
  for (std::uint64_t at = begin + 4 * threadIdx.x; at < end; at += 4 * kScanThreads) {
    float v[4];
    x.four(at, end, v);
    for (const float entry : v) {
      const std::uint32_t bits = magnitude_bits(entry);
      if (bits == 0) continue;
      if (bits >= 0x7F800000u) {
        mine.non_finite = 1;
        continue;
      }
      mine.largest = bits > mine.largest ? bits : mine.largest;
      mine.smallest = ~bits > mine.smallest ? ~bits : mine.smallest;
      ++mine.nonzero;
      if (counts == nullptr) continue;
      const std::uint32_t bin = bits >> 16, place = bin - kWindowFirst;
      if (place < kWindowBins)
        count_in(window, place);
      else
        atomic_add(&counts[bin], 1);
    }
  }
  return mine;
}

/// A whole block adds the window's counts to the histogram.
__device__ inline void put_counts(const Window& window, std::uint64_t* counts) {
  for (std::uint32_t i = threadIdx.x; i < kWindowBins; i += kScanThreads) {
    const std::uint32_t count = count_of(window, i);
    if (count != 0) atomic_add(&counts[kWindowFirst + i], count);
  }
}

/// There is a step to find: the layer is finite and not all zero.
__device__ inline bool demands(const Frame& frame, const Job& job, const State& state) {
  return !was_non_finite(frame, job.layer) && state.nonzero != 0;
}

/// The threads that weigh a candidate of a layer of `n` entries.
struct Team {
  bool warp = false;  ///< each warp of the block is one; else the block is
  Team() = default;
  __device__ explicit Team(std::uint64_t n) : warp(candidates_together(n) > 1) {}
  /// Of the team in its block.
  [[nodiscard]] __device__ unsigned number() const { return warp ? warp_in_block() : 0; }
  /// Of the thread in its team.
  [[nodiscard]] __device__ unsigned rank() const { return warp ? lane() : threadIdx.x; }
  [[nodiscard]] __device__ unsigned threads() const { return warp ? kLanes : kScanThreads; }
  /// Of the warp in its team.
  [[nodiscard]] __device__ unsigned row() const { return rank() / kLanes; }
  [[nodiscard]] __device__ unsigned rows() const { return threads() / kLanes; }
  __device__ void sync() const {
    if (warp)
      __syncwarp();
    else
      __syncthreads();
  }
};

/// Sums of 64 bits as two halves: shared memory adds 32 bits at once, 64 by trial and error.
struct HalvedSums {
  static constexpr unsigned kError = kLevelBins;  ///< behind those of the levels
  std::uint32_t low[kLevelBins + 1], high[kLevelBins + 1];

  __device__ void add(unsigned i, std::uint64_t value) {
    const auto own = static_cast<std::uint32_t>(value);
    const std::uint32_t before = atomicAdd(&low[i], own);
    const std::uint32_t carry = before + own < own ? 1 : 0;
    const std::uint32_t above = static_cast<std::uint32_t>(value >> 32) + carry;
    if (above != 0) atomicAdd(&high[i], above);
  }
  [[nodiscard]] ATOMO_HD std::uint64_t operator[](unsigned i) const {
    return std::uint64_t{high[i]} << 32 | low[i];
  }
  __device__ void set(unsigned i, std::uint64_t value) {
    low[i] = static_cast<std::uint32_t>(value);
    high[i] = static_cast<std::uint32_t>(value >> 32);
  }
};

/// Of a team.
struct SizeMemory {
  HalvedSums sums;
  std::uint64_t levels_from[3];
  std::uint64_t gaps[kLists];
  std::uint64_t nonzero, others;
};
/// Of all teams of a block.
struct SizeMemories {
  SizeMemory of[kMaxWarps];
};

/// A whole team finds the expected counts of the layer's levels above 0 at a step, and the error
/// (GridExpected::error16).
__device__ inline void count_levels(const Frame& frame, const Plan& plan, const Job& job,
                                    const State& state, double scale, Team team, HalvedSums& sums) {
  for (unsigned i = team.rank(); i <= kLevelBins; i += team.threads()) sums.set(i, 0);
  team.sync();
  std::uint64_t error = 0;
  std::uint64_t low[3] = {};  // the bins that most threads meet at the same time
  const auto put = [&](std::uint32_t bin, std::uint64_t count) {
    if (bin == 1)
      low[1] += count;
    else if (bin == 2)
      low[2] += count;
    else if (bin != 0 && count != 0)
      sums.add(bin, count);
  };
  const auto add = [&](std::uint32_t bin, std::uint64_t count) {
    const LevelShare share = price::share_of_bin(bin, scale);
    const std::uint64_t up = count * share.up, rest = (std::uint64_t{1} << kUnitBits) - share.up;
    error += count * (share.up * rest >> kUnitBits);
    put(price::level_bin(share.level), (count << kUnitBits) - up);
    put(price::level_bin(share.level + 1), up);
  };
  if (job.counts == kNoCounts) {
    const Entries x = frame.entries(job.layer);
    const std::uint64_t n = frame.info(job.layer).n;
    for (std::uint64_t i = 4 * team.rank(); i < n; i += 4 * team.threads()) {
      float v[4];
      x.four(i, n, v);
#pragma unroll
      for (const float entry : v) {
        const std::uint32_t bits = magnitude_bits(entry);
        if (bits != 0) add(bits >> 16, 1);
      }
    }
  } else {
    const std::uint64_t* const counts = counts_of(frame, plan, job);
    const std::uint32_t last = state.largest >> 16;
    for (std::uint32_t bin = (~state.smallest >> 16) + team.rank(); bin <= last;
         bin += team.threads()) {
      if (counts[bin] != 0) add(bin, counts[bin]);
    }
  }
  for (unsigned b = 1; b <= 2; ++b) {
    low[b] = warp_sum(low[b]);
    if (lane() == 0) sums.add(b, low[b]);
  }
  error = warp_sum(error);
  if (lane() == 0) sums.add(HalvedSums::kError, error);
  team.sync();
}

/// By a whole warp, each lane with what a parameter takes: least_level_bits_256.
__device__ inline std::uint64_t least_of_parameters(std::uint64_t own) {
  const std::uint64_t before = __shfl_up_sync(kAllLanes, own, 1);
  const bool rises = lane() > 0 && lane() <= kMaxLevelRice && own > before;
  const int first = __ffs(static_cast<int>(__ballot_sync(kAllLanes, rises ? 1 : 0))) - 1;
  return __shfl_sync(kAllLanes, own, first > 0 ? first - 1 : static_cast<int>(kMaxLevelRice));
}

struct GridSize {
  Expected expected;        ///< as GridExpected has it
  std::uint64_t error = 0;  ///< likewise
};

/// By a whole team: what a layer comes to at a step, in its first thread.
__device__ inline GridSize expected_size(const Frame& frame, const Plan& plan, const Job& job,
                                         const State& state, float step, Team team,
                                         SizeMemory& memory) {
  const double scale = math::grid_scale(step);
  count_levels(frame, plan, job, state, scale, team, memory.sums);
  const std::uint64_t n = frame.info(job.layer).n, entries = n << kUnitBits;
  const std::uint32_t end =
      price::level_bin(price::share_of_bin(state.largest >> 16, scale).level + 1) + 1;
  if (team.row() == 0) {
    std::uint64_t others = 0;
    for (unsigned b = 2 + lane(); b < end; b += kLanes) others += memory.sums[b];
    others = warp_sum(others);
    if (lane() == 0) {
      memory.others = others;
      memory.nonzero = others + memory.sums[1];
      memory.sums.set(0, entries - memory.nonzero);
    }
  }
  team.sync();
  for (unsigned row = team.row(); row < 3 + kLists; row += team.rows()) {
    if (row < 3) {
      const std::uint64_t least = least_of_parameters(
          lane() <= kMaxLevelRice ? price::level_bits_256_at(memory.sums, end, row, lane()) : 0);
      if (lane() == 0) memory.levels_from[row] = least;
      continue;
    }
    const unsigned list = row - 3;
    const std::uint64_t listed = list == kEvery  ? memory.nonzero
                                 : list == kOnes ? memory.nonzero - memory.others
                                                 : memory.others;
    std::uint64_t out = price::not_listed(listed, entries);
    const bool tries = lane() <= kMaxGapRice;
    for (unsigned k = 0; tries && k < lane(); ++k) out = price::squared_not_listed(out);
    const std::uint64_t own = tries ? price::gap_bits_256_at(out, lane()) : price::kMostGapBits256;
    const std::uint64_t best = ~warp_max(~own);
    if (lane() == 0)
      memory.gaps[list] = best < price::kMostGapBits256 ? best : price::kMostGapBits256;
  }
  team.sync();
  if (team.rank() != 0) return {};
  GridDemand demand{n, memory.nonzero, memory.others};
  demand.every_gap = memory.gaps[kEvery];
  demand.ones_gap = memory.gaps[kOnes];
  demand.others_gap = memory.gaps[kOthers];
  for (unsigned base = 0; base < 3; ++base) demand.levels_from[base] = memory.levels_from[base];
  return {{price::grid_bits_256(demand), price::worth_of_coordinates(memory.nonzero)},
          memory.sums[HalvedSums::kError]};
}

}  // namespace atomo::cuda::coordinate
