// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Reading top-k on the device. Encoding has a plan of its own (topk.cuh).

#include "cuda/marks.cuh"

namespace atomo::cuda::topk {

struct DecodeJob {
  std::uint64_t n = 0;
  std::uint32_t layer = 0;
  std::uint32_t keep = 0;
};

struct DecodePlan {
  static constexpr Stages kStages{};  ///< decoding alone
  Table<DecodeJob> jobs;
  MarksPlan marks;                  ///< without words; its segments are also what values are put by
  Scratch<std::uint32_t> readable;  ///< one a job, zeroed; 1: the body's frame holds
  std::uint32_t count = 0;
  [[nodiscard]] bool empty() const { return count == 0; }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan);
/// Three launches for all messages.
void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::topk
