// SPDX-License-Identifier: Apache-2.0
#pragma once
/// identity on the device: src/codec/methods/identity_codec.cpp has the body. Fixed length, so there is no size
/// stage, and nothing to analyse.

#include "cuda/frame.cuh"

namespace atomo::cuda::identity {

struct Job {
  std::uint64_t n = 0;
  std::uint32_t layer = 0;
  DType wire = DType::f32;
};

/// One a job; zeroed.
struct State {
  unsigned long long done = 0;  ///< units written, plus 2^32 for each that overflowed
};

struct Plan {
  static constexpr Stages kStages{.write = true};
  Jobs<Job> jobs;
  Scratch<State> states;
  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void write(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::identity
