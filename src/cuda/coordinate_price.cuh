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

/// Of a team that is a warp. A team that is a block has the first; each of its warps leaves its part of
/// `levels` in the one that the warp would have.
struct SizeMemory {
  HalvedSums sums;
  std::uint64_t levels[3][kLanes];  ///< from a base, under the parameter that is the lane's number
  std::uint64_t levels_from[3];
  std::uint64_t gaps[kLists];
  std::uint64_t nonzero, others;
};
/// Of all teams of a block.
struct SizeMemories {
  SizeMemory of[kMaxWarps];
};

/// Neighbouring bins of magnitudes have the same bins of levels, mostly: a thread adds up until
/// others come.
class LevelRun {
 public:
  __device__ explicit LevelRun(HalvedSums& sums) : sums_(sums) {}
  /// Units of a level, and of the one above.
  __device__ void take(std::uint32_t level, std::uint64_t at, std::uint64_t above) {
    const std::uint32_t bins = price::level_bin(level) | price::level_bin(level + 1) << 16;
    if (bins != bins_) {
      flush();
      bins_ = bins;
      at_ = above_ = 0;
    }
    at_ += at;
    above_ += above;
  }
  /// Must be called after the last.
  __device__ void flush() {
    if (at_ != 0) sums_.add(bins_ & 0xFFFFu, at_);
    if (above_ != 0) sums_.add(bins_ >> 16, above_);
  }

 private:
  HalvedSums& sums_;
  std::uint32_t bins_ = 0;
  std::uint64_t at_ = 0, above_ = 0;
};

/// Adds what the threads of a warp have found of levels 1 and of the error.
template <bool kWithError, typename Units>
__device__ inline void add_ones_and_error(HalvedSums& sums, Units to_one, Units error) {
  to_one = warp_sum(to_one);
  if (lane() == 0) sums.add(1, to_one);
  if constexpr (kWithError) {
    error = warp_sum(error);
    if (lane() == 0) sums.add(HalvedSums::kError, error);
  }
}

/// count_levels of a layer whose entries are bins of one: sums are below 2^32.
template <bool kWithError>
__device__ inline void count_listed(const Entries& x, std::uint64_t n, double scale, Team team,
                                    HalvedSums& sums) {
  static_assert(kListed < 1u << (32 - kUnitBits));
  constexpr std::uint32_t kEntry = 1u << kUnitBits;
  std::uint32_t error = 0, to_one = 0;  // most entries are of level 0 or 1
  for (std::uint64_t at = 4 * team.rank(); at < n; at += 4 * team.threads()) {
    float v[4];
    x.four(at, n, v);
#pragma unroll
    for (const float entry : v) {
      const std::uint32_t bits = magnitude_bits(entry);
      if (bits == 0) continue;
      const LevelShare share = price::share_of_bin(bits >> 16, scale);
      if constexpr (kWithError) error += share.up * (kEntry - share.up) >> kUnitBits;
      if (share.level == 0) {
        to_one += share.up;
        continue;
      }
      atomicAdd(&sums.low[price::level_bin(share.level)], kEntry - share.up);
      atomicAdd(&sums.low[price::level_bin(share.level + 1)], share.up);
    }
  }
  add_ones_and_error<kWithError>(sums, to_one, error);
}

/// count_levels of a layer with a histogram.
template <bool kWithError>
__device__ inline void count_bins(const std::uint64_t* counts, const State& state, double scale,
                                  Team team, HalvedSums& sums) {
  constexpr unsigned kNeighbours = 4;  // of a thread, two after two: these are in the L1 cache then
  std::uint64_t error = 0, to_one = 0;  // most entries are of level 0 or 1
  LevelRun run(sums);
  const std::uint32_t first = (~state.smallest >> 16) / kNeighbours * kNeighbours;
  const std::uint32_t end = (state.largest >> 16) + 1;
  for (std::uint32_t i = first + kNeighbours * team.rank(); i < end;
       i += (i % kNeighbours == 0 ? 2 : kNeighbours * team.threads() - 2)) {
    const ulonglong2 pair = *reinterpret_cast<const ulonglong2*>(counts + i);
    const std::uint64_t count[2] = {pair.x, pair.y};
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      if (count[k] == 0) continue;
      const LevelShare share = price::share_of_bin(i + k, scale);
      const std::uint64_t up = count[k] * share.up;
      if constexpr (kWithError) {
        const std::uint64_t rest = (std::uint64_t{1} << kUnitBits) - share.up;
        error += count[k] * (share.up * rest >> kUnitBits);
      }
      if (share.level == 0) {
        to_one += up;
        continue;
      }
      run.take(share.level, (count[k] << kUnitBits) - up, up);
    }
  }
  run.flush();
  add_ones_and_error<kWithError>(sums, to_one, error);
}

/// A whole team finds the expected counts of the layer's levels above 0 at a step, and, where it is
/// asked for, the error (GridExpected::error16).
template <bool kWithError>
__device__ inline void count_levels(const Frame& frame, const Plan& plan, const Job& job,
                                    const State& state, double scale, Team team, HalvedSums& sums) {
  for (unsigned i = team.rank(); i <= kLevelBins; i += team.threads()) sums.set(i, 0);
  team.sync();
  if (job.counts == kNoCounts)
    count_listed<kWithError>(frame.entries(job.layer), frame.info(job.layer).n, scale, team, sums);
  else
    count_bins<kWithError>(counts_of(frame, plan, job), state, scale, team, sums);
  team.sync();
}

/// By a whole warp, each lane with what a parameter takes: least_level_bits_256.
__device__ inline std::uint64_t least_of_parameters(std::uint64_t own) {
  const std::uint64_t before = __shfl_up_sync(kAllLanes, own, 1);
  const bool rises = lane() > 0 && lane() <= kMaxLevelRice && own > before;
  const int first = __ffs(static_cast<int>(__ballot_sync(kAllLanes, rises ? 1 : 0))) - 1;
  return __shfl_sync(kAllLanes, own, first > 0 ? first - 1 : static_cast<int>(kMaxLevelRice));
}

/// By a whole warp: its part of what levels take from every base under every parameter, but for
/// levels of 0: each `step`-th bin from `first` on, 1 or more. `units(b)` are those of bin b; a type of 32
/// bits holds what all bins take.
template <typename UnitsOf>
__device__ inline void weigh_levels(UnitsOf units, std::uint32_t first, std::uint32_t end,
                                    unsigned step, std::uint64_t (&levels)[3][kLanes]) {
  using Units = decltype(units(0));
  Units own[3] = {};
  for (std::uint32_t b = first; b < end; b += step) {
    const Units counted = units(b);
    if (counted == 0) continue;
    const std::uint32_t level = price::level_of_bin(b);
#pragma unroll
    for (std::uint32_t base = 0; base < 3; ++base) {
      if (base == 2 && level < base) continue;
      const std::uint32_t bits_256 = 256 * rice_bits(level - base, lane(), kLevelBits);
      if constexpr (sizeof(Units) == sizeof(std::uint32_t))
        own[base] += price::scaled_32(counted, bits_256);
      else
        own[base] += price::scaled(counted, bits_256);
    }
  }
  for (unsigned base = 0; base < 3; ++base) levels[base][lane()] = own[base];
}

/// By a whole warp, a parameter a lane: what levels take from a base at the best one. `parts` has those of
/// `rows` warps.
__device__ inline std::uint64_t least_of_levels(const SizeMemory* parts, unsigned rows,
                                                std::uint32_t base, std::uint64_t zeros) {
  std::uint64_t own = base == 0 ? price::scaled(zeros, 256 * rice_bits(0, lane(), kLevelBits)) : 0;
  for (unsigned row = 0; row < rows; ++row) own += parts[row].levels[base][lane()];
  return least_of_parameters(own);
}

/// By a whole warp, a parameter a lane of each half: a gap of a list at the best one. The halves may have
/// different lists.
__device__ inline std::uint64_t least_of_gaps(std::uint64_t listed, std::uint64_t entries) {
  constexpr unsigned kTries = kMaxGapRice + 1;
  static_assert(kTries == kLanes / 2);
  const unsigned k = lane() % kTries;
  std::uint64_t out = price::not_listed(listed, entries);
  for (unsigned i = 0; i < k; ++i) out = price::squared_not_listed(out);
  std::uint64_t best = price::gap_bits_256_at(out, k);
  for (unsigned step = kTries / 2; step != 0; step /= 2) {
    const std::uint64_t other = __shfl_xor_sync(kAllLanes, best, static_cast<int>(step));
    best = other < best ? other : best;
  }
  return best < price::kMostGapBits256 ? best : price::kMostGapBits256;
}

struct GridSize {
  Expected expected;        ///< as GridExpected has it
  std::uint64_t error = 0;  ///< likewise, where it is asked for
};

/// By a whole team: what a layer comes to at a step, in its first thread.
template <bool kWithError>
__device__ inline GridSize expected_size(const Frame& frame, const Plan& plan, const Job& job,
                                         const State& state, float step, Team team,
                                         SizeMemories& memories) {
  const double scale = math::grid_scale(step);
  const auto largest = [&] { return price::share_of_bin(state.largest >> 16, scale); };
  if (largest().level == 0 && largest().up == 0) return {};  // every entry is certain to become 0
  SizeMemory& memory = memories.of[team.number()];
  count_levels<kWithError>(frame, plan, job, state, scale, team, memory.sums);
  const std::uint64_t n = frame.info(job.layer).n, entries = n << kUnitBits;
  const std::uint32_t end = price::level_bin(largest().level + 1) + 1;
  auto& levels = memories.of[warp_in_block()].levels;
  const HalvedSums& sums = memory.sums;
  if (job.counts == kNoCounts)
    weigh_levels([&](unsigned b) { return sums.low[b]; }, 1 + team.row(), end, team.rows(), levels);
  else
    weigh_levels([&](unsigned b) { return sums[b]; }, 1 + team.row(), end, team.rows(), levels);
  if (team.row() == 0) {
    std::uint64_t others = 0;
    for (unsigned b = 2 + lane(); b < end; b += kLanes) others += memory.sums[b];
    others = warp_sum(others);
    if (lane() == 0) {
      memory.others = others;
      memory.nonzero = others + memory.sums[1];
    }
  }
  team.sync();
  const std::uint64_t nonzero = memory.nonzero, others = memory.others, ones = nonzero - others;
  constexpr unsigned kEveryAndOnes = 3, kOthersAlone = 4;  // behind the rows of the three bases
  for (unsigned row = team.row(); row <= kOthersAlone; row += team.rows()) {
    if (row < 3) {
      const std::uint64_t least = least_of_levels(&memory, team.rows(), row, entries - nonzero);
      if (lane() == 0) memory.levels_from[row] = least;
      continue;
    }
    const bool lower = lane() < kLanes / 2;
    const std::uint64_t least = least_of_gaps(row != kEveryAndOnes ? others
                                              : lower              ? nonzero
                                                                   : ones,
                                              entries);
    if (lane() == 0) memory.gaps[row == kEveryAndOnes ? kEvery : kOthers] = least;
    if (lane() == kLanes / 2 && row == kEveryAndOnes) memory.gaps[kOnes] = least;
  }
  team.sync();
  if (team.rank() != 0) return {};
  GridDemand demand{n, nonzero, others};
  demand.every_gap = memory.gaps[kEvery];
  demand.ones_gap = memory.gaps[kOnes];
  demand.others_gap = memory.gaps[kOthers];
  for (unsigned base = 0; base < 3; ++base) demand.levels_from[base] = memory.levels_from[base];
  return {{price::grid_bits_256(demand), price::worth_of_coordinates(nonzero)},
          kWithError ? memory.sums[HalvedSums::kError] : 0};
}

}  // namespace atomo::cuda::coordinate
