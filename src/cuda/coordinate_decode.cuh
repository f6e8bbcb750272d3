// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Reading coordinates (FORMAT.md, "2 coordinate") on the device.

#include "cuda/frame.cuh"

namespace atomo::cuda::coordinate {

/// Levels of up to four messages, a byte each, of layers that are coordinates whatever a message says.
struct LevelRoom {
  CallScratch<std::int8_t> levels;
  Table<std::uint64_t> first;    ///< of the jobs' entries, bytes
  std::uint64_t of_message = 0;  ///< bytes from one message's to the next
};
/// Messages whose levels are in the workspace at once.
inline constexpr std::uint32_t kReadTogether = 4;

struct DecodePlan {
  static constexpr Stages kStages{};  ///< decoding alone
  Table<std::uint32_t> layers;        ///< their numbers, a job each
  std::uint32_t count = 0;
  Split segments;                 ///< a unit a segment of 32,768 entries
  Scratch<std::uint64_t> starts;  ///< of the units' contents, bytes from the body's start
  Scratch<std::uint32_t> modes;   ///< of the jobs: what becomes of the layer
  Scratch<std::uint32_t> kinds;   ///< of the units, zeroed: SegmentKind
  Split sums;  ///< units of entries that a warp adds, of jobs whose levels have room
  LevelRoom room;
  bool turns = false;  ///< some jobs are layers that choose a form
  [[nodiscard]] bool empty() const { return count == 0; }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan);
[[nodiscard]] __host__ __device__ inline bool is_several(const Frames& frames, DecodeInto into) {
  return frames.count > 1 && into.add;
}
/// Looks at the words of all messages, a launch; adds several where layers have no other form, three
/// launches for every kReadTogether.
void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);
[[nodiscard]] inline bool has_turns(const Frames& frames, const DecodePlan& plan, DecodeInto into) {
  return plan.turns || !is_several(frames, into);
}
/// All other segments of the messages of a turn: a launch. Values that are added of layers that choose a form
/// are kept apart (FramePlan::apart).
void decode_in_turn(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
                    DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::coordinate
