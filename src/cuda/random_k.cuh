// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Random-k on the device (random_k.cu): k entries that both ends draw from the key. Bodies have a
/// fixed length, so there is nothing to analyse or to size.

#include "cuda/frame.cuh"

namespace atomo::cuda::random_k {

/// Most entries of a layer: draws and entries are 32 bits here, and the kind's parameters hold all
/// of k. A larger layer must be refused before it is planned.
inline constexpr std::size_t kMaxEntries = 0xFFFFFFFFu;

struct Job {
  std::uint64_t n = 0;
  std::uint64_t slots = 0;       ///< of the job's table of draws, two a draw, at most n
  std::uint64_t slot_scale = 0;  ///< floor(2^32 slots / n), at most 2^32
  std::uint64_t first_slot = 0;  ///< of the job's in `slots`
  std::uint64_t first_word = 0;  ///< of the job's in `words`
  std::uint64_t first_segment = 0;
  std::uint32_t layer = 0;
  std::uint32_t keep = 0;
  std::uint32_t draws = 0;       ///< min(keep, n - keep)
  std::uint32_t complement = 0;  ///< 1: the entries not drawn are kept
  float scale = 1;               ///< n / k
};

struct Plan {
  static constexpr Stages kStages{.write = true};
  Table<Job> jobs;
  Split draws;     ///< a unit kDrawsOfUnit draws
  Split segments;  ///< a unit a segment of 4,096 entries
  /// Zeroed. Where a value was drawn first: value + 1 in the upper, the complement of the least
  /// draw's number in the lower half; 0 is free.
  Scratch<unsigned long long> slots;
  Scratch<std::uint32_t> words;  ///< zeroed; bit i % 32 of word i / 32: entry i is drawn
  Scratch<std::uint32_t> ranks;  ///< for each segment: what it keeps, then what those before it do
  std::uint32_t count = 0;

  [[nodiscard]] bool empty() const { return count == 0; }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void write(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frame& frame, const Plan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::random_k
