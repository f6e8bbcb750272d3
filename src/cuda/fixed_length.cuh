// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Operations whose bodies have a fixed length and follow from the layer alone: they differ in two
/// kernels. One is declared for each ATOMO_FIXED_LENGTH row of format/methods.def.

#include "cuda/frame.cuh"

namespace atomo::cuda::fixed_length {

/// Entries of a warp's unit.
inline constexpr unsigned kUnit = 1024;

struct Job {
  std::uint64_t n = 0;
  std::uint32_t layer = 0;
  std::uint32_t params = 0;  ///< of the kind
};

template <MethodId id>
struct Plan {
  static constexpr Stages kStages{.write = true};
  Jobs<Job> jobs;
  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

template <MethodId id>
void plan(std::span<const LayerPlan> layers, Layout& layout, Plan<id>& plan) {
  const std::size_t count = count_of_method<id>(layers);
  plan = {};
  if (count == 0) return;
  JobMaker<Job> jobs(layout, count);
  for_each_of_method<id>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    jobs.add({layer.n, number, layer.kind.params}, divide_up(layer.n, kUnit));
  });
  plan.jobs = jobs.jobs();
}

#define ATOMO_FIXED_LENGTH(id)                                                  \
  void write(const Frame& frame, const Plan<MethodId::id>& plan, Queue& queue); \
  void decode(const Frames& frames, const Plan<MethodId::id>& plan, DecodeInto into, Queue& queue);
#include "format/methods.def"

}  // namespace atomo::cuda::fixed_length
