// SPDX-License-Identifier: Apache-2.0
#pragma once
/// terngrad on the device: src/codec/methods/terngrad_codec.cpp has the body. Fixed length, so there is no size
/// stage.

#include "cuda/reduce.cuh"

namespace atomo::cuda {

struct TernaryJob {
  std::uint64_t n = 0;
  std::uint64_t norm = 0;  ///< number of the norm in the reduction's results
  std::uint32_t layer = 0;
};

struct TernaryPlan {
  Table<TernaryJob> jobs;
  Split units;
  ReducePlan norms;
  [[nodiscard]] bool empty() const { return units.jobs == 0; }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, TernaryPlan& plan);
void analyse(const TernaryPlan& plan, const Frame& frame, Queue& queue);
void write(const TernaryPlan& plan, const Frame& frame, Queue& queue);
void decode(const TernaryPlan& plan, const Frame& frame, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda
