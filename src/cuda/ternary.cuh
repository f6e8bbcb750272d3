// SPDX-License-Identifier: Apache-2.0
#pragma once
/// terngrad on the device: src/codec/methods/ternary_codec.cpp has the body. Fixed length, so there is no size
/// stage.

#include "cuda/reduce.cuh"

namespace atomo::cuda::ternary {

struct Job {
  std::uint64_t n = 0;
  std::uint64_t norm = 0;  ///< number of the norm in the reduction's results
  std::uint32_t layer = 0;
};

struct Plan {
  static constexpr Stages kStages{.analyse = true, .write = true};
  Jobs<Job> jobs;
  ReducePlan norms;
  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void analyse(const Frame& frame, const Plan& plan, Queue& queue);
void write(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::ternary
