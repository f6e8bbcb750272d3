// SPDX-License-Identifier: Apache-2.0
#pragma once
/// qsgd on the device: src/codec/methods/qsgd_codec.cpp has the body. Fixed length, so there is no size stage.

#include "cuda/reduce.cuh"

namespace atomo::cuda::qsgd {

struct Job {
  std::uint64_t n = 0;
  std::uint64_t buckets = 0;
  std::uint64_t code_bytes = 0;
  std::uint64_t first_norm = 0;  ///< number of the first bucket's norm in the reduction's results
  std::uint32_t layer = 0;
  std::uint32_t bucket = 0;  ///< entries, at most n
  std::uint32_t bits = 0;
  std::uint32_t unit = 0;     ///< entries of a warp's unit, a multiple of a tile
  std::uint32_t inverse = 0;  ///< floor(2^32 / bucket); 0 when the norms are reduced beforehand
  /// Log2 of the bucket where each is a whole number of lanes of one row, or of rows, of one unit; else 0.
  std::uint32_t shift = 0;
  bool l2 = false;
};

struct Plan {
  static constexpr Stages kStages{.analyse = true, .write = true};
  Jobs<Job> jobs;
  ReducePlan norms;  ///< of layers whose buckets are longer than a warp's unit
  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void analyse(const Frame& frame, const Plan& plan, Queue& queue);
void write(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::qsgd
