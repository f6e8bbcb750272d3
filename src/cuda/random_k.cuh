// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Random-k on the device (random_k.cu): k entries, or blocks, that both ends draw from the key. Bodies have a
/// fixed length, so there is nothing to analyse or to size.

#include "cuda/frame.cuh"

namespace atomo::cuda::random_k {

/// Most entries of a layer: products of two counts of entries are 64 bits here, and the kind's
/// parameters hold all of k. A larger layer must be refused before it is planned.
inline constexpr std::size_t kMaxEntries = 0xFFFFFFFFu;

struct Job {
  std::uint64_t n = 0;
  std::uint32_t layer = 0;
  std::uint32_t keep = 0;      ///< units
  std::uint32_t unit_log = 0;  ///< a unit has 2 to this entries: 0, or 6 of blocks
  float scale = 1;             ///< units / keep

  /// What is kept or left out as a whole.
  [[nodiscard]] __host__ __device__ std::uint64_t units() const {
    return (n + (std::uint64_t{1} << unit_log) - 1) >> unit_log;
  }
  [[nodiscard]] __host__ __device__ std::uint64_t body_bytes() const {
    return 4 * (std::uint64_t{keep} << unit_log);
  }
};

struct Plan {
  static constexpr Stages kStages{.write = true};
  Jobs<Job> jobs;  ///< a unit a segment of 4,096 entries

  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void write(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::random_k
