// SPDX-License-Identifier: Apache-2.0
#pragma once
/// fp8 on the device: src/codec/methods/fp8_codec.cpp has the body. Fixed length, so there is no size stage.

#include "cuda/reduce.cuh"

namespace atomo::cuda::fp8 {

struct Job {
  std::uint64_t n = 0;
  std::uint64_t largest = 0;  ///< number of the largest magnitude in the reduction's results
  std::uint32_t layer = 0;
  std::uint32_t params = 0;  ///< of the kind
};

struct Plan {
  static constexpr Stages kStages{.analyse = true, .write = true};
  Jobs<Job> jobs;
  ReducePlan maxima;
  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void analyse(const Frame& frame, const Plan& plan, Queue& queue);
void write(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::fp8
