// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Chunked top-k on the device (chunk_topk.cu, chunk_topk_decode.cu): the largest entries of each chunk,
/// their places as gaps, their values in a few bits. Bodies vary in length; there is no price.

#include "cuda/frame.cuh"
#include "format/chunk_values.hpp"

namespace atomo::cuda::chunk_topk {

/// Entries that a block decodes: whole chunks.
inline constexpr std::uint32_t kSpan = format::ChunkConfig::kMaxChunk;

struct Job {
  format::ChunkConfig config;
  format::ChunkBody body;
  std::uint64_t first_slot = 0;    ///< of the job's in `places` and `kept`
  std::uint64_t first_chunk = 0;   ///< in `counts`
  std::uint64_t first_group = 0;   ///< in `ends` and `starts`
  std::uint64_t first_prefix = 0;  ///< of its words
  std::uint64_t first_gaps = 0;    ///< of its words
  std::uint32_t gap_words = 0;     ///< u32 from one group's gaps to the next
  std::uint32_t layer = 0;
};

struct Plan {
  static constexpr Stages kStages{.size = true};
  Table<Job> jobs;
  Split chunks, groups;
  Scratch<std::uint16_t> places;  ///< for each slot: the place in the chunk
  Scratch<std::uint32_t> kept;    ///< for each slot: the entry
  Scratch<std::uint32_t> counts;  ///< for each chunk: kept entries
  Scratch<std::uint32_t> prefix;  ///< zeroed; lengths, levels and values as they are sent
  Scratch<std::uint32_t> gaps;    ///< zeroed; as they are sent
  Scratch<std::uint64_t> ends;    ///< for each group: bits of its gaps and of those before
  std::uint32_t count = 0;

  [[nodiscard]] bool empty() const { return count == 0; }
};

struct DecodePlan {
  Table<Job> jobs;
  Split groups, spans;
  Scratch<std::uint16_t> places;    ///< for each slot: what it holds
  Scratch<std::uint64_t> starts;    ///< for each group: where its gaps begin in the body
  Scratch<std::uint32_t> readable;  ///< zeroed; for each job: the body's lengths are sound
  Scratch<std::uint32_t> sound;     ///< for each group: it holds what the format says
  std::uint32_t count = 0;

  [[nodiscard]] bool empty() const { return count == 0; }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan);
void size(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::chunk_topk
