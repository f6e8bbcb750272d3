// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The digits by which top-k selects (topk.cu), and the tiles in which blocks count them.

#include "cuda/rounds.cuh"
#include "cuda/topk.cuh"

namespace atomo::cuda::topk {

inline constexpr std::uint64_t kTile = 16384;
inline constexpr unsigned kBins = 2048;

/// Candidates that there is room for in each tile of a tensor.
__host__ __device__ constexpr std::uint32_t candidates_of_tile(std::uint64_t n) {
  return static_cast<std::uint32_t>(((n < kTile ? n : kTile) + 7) / 8);
}

struct Bins {
  std::uint32_t count[kBins];
};

/// Bits of the magnitude that a pass looks at.
struct Digit {
  unsigned shift, width;

  __device__ explicit Digit(unsigned pass) : shift(20 - 10 * pass), width(pass == 0 ? 11 : 10) {}
  __device__ std::uint32_t bins() const { return 1u << width; }
  __device__ std::uint32_t of(std::uint32_t magnitude) const {
    return (magnitude >> shift) & (bins() - 1);
  }
  /// The bits above the digit; there are none in the first pass.
  __device__ std::uint32_t prefix(std::uint32_t magnitude) const {
    return magnitude >> shift >> width;
  }
};

__device__ inline std::uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

/// By a whole block: the largest digit that, with those above it, reaches what is wanted.
__device__ inline void choose_digit(const Job& job, State& state, unsigned pass, Digit digit,
                                    std::uint32_t* bins) {
  const std::uint32_t wanted = pass == 0 ? job.keep : state.ties;
  const std::uint32_t key = state.key, top = digit.bins() - 1;
  if (threadIdx.x == 0) bins[0] = wanted;  // all that is left
  __syncthreads();
  scan_blockwide<std::uint32_t>(
      digit.bins(), [&](std::uint64_t i) { return bins[top - i]; },
      [&](std::uint64_t i, std::uint32_t above) {
        const std::uint32_t value = top - static_cast<std::uint32_t>(i);
        if (above >= wanted || bins[value] < wanted - above) return;
        state.key = key | (value << digit.shift);
        state.ties = wanted - above;
      });
}

/// A tile of a job, and room for the job's counts of a digit in shared memory.
struct Tile {
  UnitOf at;
  const Job& job;
  State& state;
  std::uint64_t begin, end;
  std::uint32_t* bins;

  __device__ Tile(const Frame& frame, const Plan& plan, std::uint64_t unit)
      : at(find_unit(frame, plan.tiles, unit)),
        job(frame(plan.jobs)[at.job]),
        state(frame(plan.states)[at.job]),
        begin(at.index * kTile),
        end(job.n - begin < kTile ? job.n : begin + kTile),
        bins(shared<Bins>().count) {}
  /// By a whole block: nothing of the digit is counted in shared memory.
  __device__ void clear(Digit digit) const {
    for (unsigned b = threadIdx.x; b < digit.bins(); b += kScanThreads) bins[b] = 0;
    __syncthreads();
  }
  /// Where the counts of all tiles meet, if there are several.
  [[nodiscard]] __device__ std::uint32_t* histogram(const Frame& frame, const Plan& plan) const {
    return frame(plan.histograms) + std::uint64_t{job.histogram} * kBins;
  }
  /// By a whole block: the tile is counted in shared memory.
  __device__ void finish(const Frame& frame, const Plan& plan, unsigned pass) const {
    const Digit digit(pass);
    __syncthreads();
    if (job.tiles == 1) return choose_digit(job, state, pass, digit, bins);
    std::uint32_t* const all = histogram(frame, plan);
    for (unsigned b = threadIdx.x; b < digit.bins(); b += kScanThreads) {
      if (bins[b] != 0) atomicAdd(&all[b], bins[b]);
    }
    choose_behind_all(all, pass, digit);
  }
  /// By a whole block of several: the tile's counts are among those of all.
  __device__ void choose_behind_all(std::uint32_t* all, unsigned pass, Digit digit) const {
    if (!block_comes_last(&state.tickets, job.tiles)) return;
    for (unsigned b = threadIdx.x; b < digit.bins(); b += kScanThreads)
      bins[b] = atomicExch(&all[b], 0u);
    choose_digit(job, state, pass, digit, bins);
  }
  [[nodiscard]] __device__ std::uint32_t capacity() const { return candidates_of_tile(job.n); }
  [[nodiscard]] __device__ Candidate* candidates(const Frame& frame, const Plan& plan) const {
    return frame(plan.candidates) + job.first_candidate + at.index * capacity();
  }
};

}  // namespace atomo::cuda::topk
