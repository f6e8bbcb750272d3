// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A chunk in the registers of a block, and the slots of what is kept of it: what selecting and drawing
/// share (chunk_topk.cu, chunk_draw.cu).

#include "cuda/chunk_topk.cuh"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"
#include "format/drawn_values.hpp"

namespace atomo::cuda::chunk_topk {

using format::ChunkBody;

inline constexpr unsigned kRows = 4, kRow = 4 * kScanThreads;
inline constexpr unsigned kWords = kSpan / 32;
static_assert(kRows * kRow == kSpan);

__device__ inline std::uint32_t magnitude(std::uint32_t entry) { return entry & 0x7FFFFFFFu; }

/// A chunk's entries, sixteen a thread; those behind its end are 0.
struct Own {
  std::uint32_t entry[kRows][4];

  [[nodiscard]] __device__ static std::uint32_t place(unsigned row, unsigned k) {
    return row * kRow + 4 * threadIdx.x + k;
  }
  /// Returns whether all are finite.
  __device__ bool load(const Entries& x, std::uint64_t begin, std::uint32_t n) {
    const Entries own = x.from(begin);
    bool finite = true;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      float v[4];
      own.four(place(row, 0), n, v);
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        entry[row][k] = __float_as_uint(v[k]);
        finite = finite && is_finite(v[k]);
      }
    }
    return finite;
  }
  template <typename Visit>
  __device__ void each(Visit visit) const {
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) visit(place(row, k), entry[row][k]);
    }
  }
};

/// By one warp: how many bits are set before each word.
__device__ inline std::uint32_t count_before(const std::uint32_t* words, std::uint32_t* before) {
  std::uint32_t sum = 0;
  for (unsigned base = 0; base < kWords; base += kLanes) {
    std::uint32_t total;
    const auto own = static_cast<std::uint32_t>(__popc(words[base + lane()]));
    before[base + lane()] = sum + warp_exclusive_sum(own, total);
    sum += total;
  }
  return sum;
}

__device__ inline std::uint32_t rank_of(const std::uint32_t* words, const std::uint32_t* before,
                                        std::uint32_t place) {
  return before[place / 32] +
         static_cast<std::uint32_t>(__popc(words[place / 32] & ((1u << place % 32) - 1)));
}

/// The entries of a job, or the sequence of its tiles.
[[nodiscard]] __device__ inline Entries entries_of(const Frame& frame, const Plan& plan,
                                                   const Job& job) {
  return job.has_tiles() ? Entries{frame(plan.sequence) + job.first_entry, DType::f32}
                         : frame.entries(job.layer);
}

/// By a whole block: what the chunks of a group of a drawn job have together.
[[nodiscard]] __device__ inline format::DrawnChunk drawn_group(const Frame& frame, const Plan& plan,
                                                               const Job& job, std::uint64_t g) {
  struct Memory {
    std::uint32_t scale, least, largest;
  };
  auto& memory = shared<Memory>();
  if (threadIdx.x == 0) memory.scale = 1, memory.least = 0x7F800000u, memory.largest = 0;
  __syncthreads();
  if (threadIdx.x < job.body.chunks_of(g)) {
    const format::DrawnChunk own =
        frame(plan.measured)[job.first_chunk + g * job.body.group_chunks + threadIdx.x];
    atomicMax(&memory.scale, own.scale);
    atomicMin(&memory.least, own.least);
    atomicMax(&memory.largest, own.largest);
  }
  __syncthreads();
  return {memory.scale, memory.least, memory.largest};
}
static_assert(ChunkBody::kMaxGroup <= kScanThreads);

}  // namespace atomo::cuda::chunk_topk
