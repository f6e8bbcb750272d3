// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Chunked top-k on the device (chunk_topk.cu, chunk_topk_decode.cu): the largest entries of each chunk,
/// their places as gaps, their values in a few bits. Bodies vary in length; there is no price.

#include "cuda/frame.cuh"
#include "format/drawn_values.hpp"
#include "math/tile_transform.hpp"

namespace atomo::cuda::chunk_topk {

/// Entries that a block decodes: whole chunks.
inline constexpr std::uint32_t kSpan = format::ChunkConfig::kMaxChunk;

struct Job {
  format::ChunkConfig config;
  format::ChunkBody body;
  math::Tiles tiles;
  std::uint64_t first_slot = 0;    ///< of the job's in `places` and `kept`
  std::uint64_t first_chunk = 0;   ///< in `counts` and `measured`
  std::uint64_t first_group = 0;   ///< in `ends` and `starts`
  std::uint64_t first_prefix = 0;  ///< of its words
  std::uint64_t first_gaps = 0;    ///< of its words
  std::uint64_t first_entry = 0;   ///< in `sequence`, where it has tiles
  std::uint32_t gap_words = 0;     ///< u32 from one group's gaps to the next
  std::uint32_t layer = 0;

  [[nodiscard]] __host__ __device__ bool has_tiles() const {
    return config.layout != format::ChunkLayout::entries;
  }
  [[nodiscard]] __host__ __device__ bool transforms() const {
    return config.layout == format::ChunkLayout::dct;
  }
};

struct Plan {
  static constexpr Stages kStages{.size = true};
  Table<Job> jobs;
  Split chunks, drawn;                   ///< of the jobs that keep the largest, that draw
  Split groups, drawn_groups;            ///< likewise
  Split tiles;                           ///< of the jobs that have them
  Scratch<float> sequence;               ///< of these
  Scratch<std::uint16_t> places;         ///< for each slot: the place in the chunk
  Scratch<std::uint32_t> kept;           ///< for each slot: the entry
  Scratch<std::uint32_t> counts;         ///< for each chunk: kept entries
  Scratch<format::DrawnChunk> measured;  ///< for each chunk, where any are drawn
  Scratch<std::uint32_t> prefix;         ///< zeroed; lengths, levels and values as they are sent
  Scratch<std::uint32_t> gaps;           ///< zeroed; as they are sent
  Scratch<std::uint64_t> ends;           ///< for each group: bits of its gaps and of those before
  std::uint32_t count = 0;

  [[nodiscard]] bool empty() const { return count == 0; }
};

struct DecodePlan {
  static constexpr Stages kStages{};
  Table<Job> jobs;
  Split groups;
  Split spans;                      ///< of the jobs without tiles
  Split tiles, transforms;          ///< of those whose tiles are sent as they are, of the others
  Scratch<std::uint16_t> places;    ///< for each slot: what it holds
  Scratch<std::uint64_t> starts;    ///< for each group: where its gaps begin in the body
  Scratch<std::uint32_t> readable;  ///< zeroed; for each job: the body's lengths are sound
  Scratch<std::uint32_t>
      broken;  ///< zeroed; for each job: a group does not hold what the format says
  std::uint32_t gap_words = 0;    ///< u32 of a group's gaps at most, and one
  std::uint32_t upper_words = 0;  ///< u32 of a bit a slot of a group
  std::uint32_t count = 0;

  [[nodiscard]] bool empty() const { return count == 0; }
};

/// Positions of a folded vector of length n whose segments begin at multiples of four.
[[nodiscard]] __host__ __device__ inline std::uint32_t positions_of(std::uint32_t n) {
  if (n == 1) return 1;  // not transformed, and needs none beside it
  std::uint32_t half = math::dct::folded_length(n), positions = divide_up(half, 4) * 4;
  for (; half < n; half *= 2) positions += divide_up(half, 4) * 4;
  return positions;
}

/// Tiles that a block takes, one above the other.
[[nodiscard]] __host__ __device__ inline std::uint32_t tiles_together(const math::Tiles& tiles) {
  return math::kMaxTileSide / positions_of(tiles.height);
}
/// Blocks that all tiles take.
[[nodiscard]] inline std::uint64_t stacks_of(const math::Tiles& tiles) {
  return divide_up(tiles.count(), tiles_together(tiles));
}

[[nodiscard]] inline math::Tiles tiles_of(const LayerPlan& layer,
                                          const format::ChunkConfig& config) {
  if (config.layout == format::ChunkLayout::entries) return {};
  const Shape& shape = layer.kind.shape;
  const auto dim0 = static_cast<std::uint64_t>(shape.rank() > 0 ? shape[0] : 1);
  return math::Tiles::of(shape.rank(), dim0, layer.n, config.side);
}

/// What the jobs of a plan have together.
struct Sums {
  std::uint64_t entries = 0;  ///< of those with tiles
  std::uint64_t slots = 0, chunks = 0, groups = 0;
};

/// The table of a plan's jobs, each one's places among those of all; `add(job)` sees them in order.
template <typename AnyPlan, typename Add>
Sums plan_jobs(std::span<const LayerPlan> layers, Layout& layout, AnyPlan& plan, Add add) {
  TableMaker<Job> jobs(layout, count_of_method<MethodId::chunk_topk>(layers));
  Sums sums;
  for_each_of_method<MethodId::chunk_topk>(layers,
                                           [&](std::uint32_t number, const LayerPlan& layer) {
                                             Job job;
                                             job.config = format::chunk_config(layer.kind.params);
                                             job.body = format::ChunkBody(job.config, layer.n);
                                             job.tiles = tiles_of(layer, job.config);
                                             if (job.tiles.entries() == 1)
                                               job.config.layout = format::ChunkLayout::entries;
                                             job.first_entry = sums.entries;
                                             job.first_slot = sums.slots;
                                             job.first_chunk = sums.chunks;
                                             job.first_group = sums.groups;
                                             job.layer = number;
                                             sums.entries += job.has_tiles() ? layer.n : 0;
                                             sums.slots += job.body.chunks * job.body.keep;
                                             sums.chunks += job.body.chunks;
                                             sums.groups += job.body.groups;
                                             add(job);
                                             jobs.add(job);
                                           });
  plan.count = jobs.count();
  plan.jobs = jobs.table();
  return sums;
}

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan);
void size(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);

// chunk_draw.cu: slots of the jobs that draw.
void draw_entries(const Frame& frame, const Plan& plan, Queue& queue);

// chunk_put.cu: entries that are not transformed, into the tensor.
void put_entries(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);

// tile_transform.cu: tensors to sequences of tiles, and transformed tiles into the tensor.
void make_sequences(const Frame& frame, const Plan& plan, Queue& queue);
void put_transforms(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::chunk_topk
