// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Reading coordinates (FORMAT.md, "2 coordinate") on the device.

#include "cuda/frame.cuh"

namespace atomo::cuda::coordinate {

struct DecodePlan {
  static constexpr Stages kStages{};  ///< decoding alone
  Table<std::uint32_t> layers;        ///< their numbers, a job each
  std::uint32_t count = 0;
  Split segments;                 ///< a unit a segment of 32,768 entries
  Scratch<std::uint64_t> starts;  ///< of the units' contents, bytes from the body's start
  Scratch<std::uint32_t> modes;   ///< of the jobs: what becomes of the layer
  [[nodiscard]] bool empty() const { return count == 0; }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan);
void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);
[[nodiscard]] inline bool has_turns(const Frames&, const DecodePlan&, DecodeInto) { return true; }
void decode_in_turn(const Frames& frames, std::uint32_t m, const DecodePlan& plan, DecodeInto into,
                    Queue& queue);

}  // namespace atomo::cuda::coordinate
