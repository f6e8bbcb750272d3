// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Words of the duo code in the workspace, as atoms_find.cu leaves them and atoms_add.cu takes them: as they
/// were looked up (duo_code.cuh), two bytes a pair, in the order of atoms and their pairs. A word with
/// more behind it, an escape or raw bits, stays in the message; its place in the tile is left.

#include "cuda/strand_words.cuh"

namespace atomo::cuda::atoms {

/// A word in the workspace that stands for its place: cell kEscapeCell, then ten bits.
inline constexpr std::uint32_t kPlaceMark = (kEscapeCell & 63) << 4;
__device__ inline std::uint32_t put_place(std::uint32_t place) {
  return kPlaceMark | (place & 15u) | (place >> 4) << 10;
}
__device__ inline std::uint32_t place_of(std::uint32_t word) {
  return (word & 15u) | word >> 10 << 4;
}

/// What stands beside a tile with places: its first bit, from the body's begin, or the numbers of its
/// only pair that has one.
inline constexpr std::uint64_t kOnePair = std::uint64_t{1} << 63;
inline constexpr unsigned kNumberBits = 31;
__device__ inline std::uint64_t put_start(std::uint64_t bit, bool upward) {
  return bit << 1 | (upward ? 1 : 0);
}
__device__ inline std::uint64_t put_numbers(std::int32_t q0, std::int32_t q1) {
  constexpr std::uint32_t kMask = (1u << kNumberBits) - 1;
  return kOnePair | std::uint64_t{static_cast<std::uint32_t>(q0) & kMask} << kNumberBits |
         (static_cast<std::uint32_t>(q1) & kMask);
}
__device__ inline std::int32_t number_of(std::uint64_t numbers, unsigned which) {
  const auto bits = static_cast<std::uint32_t>(numbers >> (which == 0 ? kNumberBits : 0));
  return static_cast<std::int32_t>(bits << (32 - kNumberBits)) >> (32 - kNumberBits);
}

/// Room of the messages that are decoded together: of message `slot` of them.
struct Room {
  std::uint16_t* words;
  std::uint64_t* starts;

  __device__ Room(const Frame& frame, const DecodePlan& plan, const DecodeJob& job,
                  std::uint32_t slot)
      : words(frame(plan.room.words) + slot * plan.room.of_message + job.first_duo),
        starts(frame(plan.room.starts) + slot * plan.room.tiles_of_message + job.first_tile) {}
};

/// Leaves the words of `count` messages from `first` on: one launch.
void find_words(const Frames& frames, const DecodePlan& plan, std::uint32_t first,
                std::uint32_t count, Queue& queue);

}  // namespace atomo::cuda::atoms
