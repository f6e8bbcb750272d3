// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A rounded chunk of coordinates that a warp has in hand, as the choice of how to write it and its
/// writing see it (coordinate_weigh.cu, coordinate_write.cu): what it is a part of, its lists' gaps,
/// its levels above 1.

#include "cuda/coordinate.cuh"
#include "cuda/cub.cuh"

namespace atomo::cuda::coordinate {

constexpr unsigned kThreads = 4 * kLanes;  ///< of a block, at most

struct ChunkInHand {
  std::uint64_t segment;   ///< number among all
  std::uint32_t index;     ///< in its segment
  std::uint32_t siblings;  ///< chunks of its segment
  std::uint32_t place;     ///< its first place in the segment
  std::uint32_t entries, segment_entries;
  Chunk* states;  ///< of its segment's chunks
  const ChunkBits* bits;
  std::uint32_t* slot;
  Entries x;  ///< its own
  float step;
  double scale;
  std::uint32_t at_top;

  [[nodiscard]] __device__ bool is_last() const { return index + 1 == siblings; }
  [[nodiscard]] __device__ std::uint32_t level_of(double entry, std::uint32_t carried) const {
    const std::uint64_t fixed =
        at_top != 0 ? grid_fixed_at_top(entry, step, scale) : grid_fixed(entry, scale);
    return static_cast<std::uint32_t>(fixed >> 32) + carried;
  }
  [[nodiscard]] __device__ std::uint32_t level(std::uint32_t i, std::uint32_t carried) const {
    return level_of(x(i), carried);
  }
};

/// By a whole warp. False when there is no such chunk, or nothing of its layer is sent.
__device__ inline bool take_chunk(const Frame& frame, const Plan& plan, ChunkInHand& out) {
  const std::uint64_t number = warp_in_grid();
  if (number >= plan.chunks.units) return false;
  const UnitOf unit = find_unit_together(frame, plan.chunks, number);
  const Job& job = frame(plan.jobs)[unit.job];
  const float price = frame(plan.states)[unit.job].step;
  if (!(price > 0)) return false;
  const std::uint64_t segment = unit.index / kSegmentChunks, n = frame.info(job.layer).n;
  const std::uint64_t rest = n - segment * kCoordinateSegment;
  out.segment = frame(plan.segments.begin)[unit.job] + segment;
  out.index = static_cast<std::uint32_t>(unit.index % kSegmentChunks);
  out.segment_entries =
      static_cast<std::uint32_t>(rest < kCoordinateSegment ? rest : kCoordinateSegment);
  out.siblings = static_cast<std::uint32_t>(divide_up(out.segment_entries, kCoordinateChunk));
  out.place = static_cast<std::uint32_t>(out.index * kCoordinateChunk);
  const auto left = static_cast<std::uint32_t>(out.segment_entries - out.place);
  out.entries = left < kCoordinateChunk ? left : static_cast<std::uint32_t>(kCoordinateChunk);
  out.states = frame(plan.chunk_states) + (number - out.index);
  out.bits = frame(plan.bits) + number;
  out.slot = frame(Scratch<std::uint32_t>{job.slots}) + segment * job.slot_words;
  const Entries x = frame.entries(job.layer);
  const std::uint64_t bytes = unit.index * kCoordinateChunk * (x.dtype == DType::f32 ? 4 : 2);
  out.x = {static_cast<const std::byte*>(x.x) + bytes, x.dtype};
  out.step = price;
  out.scale = grid_scale(price);
  out.at_top = out.states[out.index].at_top;
  return true;
}

/// A whole warp adds up the counts of the segment's chunks.
__device__ inline SegmentCounts count_segment(const ChunkInHand& chunk) {
  SegmentCounts counts;
  counts.entries = chunk.segment_entries;
  const bool mine = lane() < chunk.siblings;
  counts.nonzero = warp_sum(mine ? chunk.states[lane()].nonzero : 0u);
  counts.large = warp_sum(mine ? chunk.states[lane()].large : 0u);
  counts.total = warp_sum(mine ? chunk.states[lane()].total : std::uint64_t{0});
  return counts;
}

/// A whole warp finds the place behind the list's last entry in the first `count` chunks.
__device__ inline std::uint32_t place_after(const ChunkInHand& chunk, unsigned list,
                                            std::uint32_t count) {
  return warp_max(lane() < count ? chunk.states[lane()].after[list] : 0u);
}

/// A whole warp finds the place from which this lane's first gap of the list counts.
__device__ inline std::uint32_t gap_begin(const ChunkInHand& chunk, unsigned list,
                                          const LaneEntries& entries) {
  const std::uint32_t after = entries.after();
  const std::uint32_t before =
      __ballot_sync(kAllLanes, after != 0) & ((std::uint32_t{1} << lane()) - 1);
  const int from = before == 0 ? 0 : 31 - __clz(static_cast<int>(before));
  const std::uint32_t neighbour = chunk.place + __shfl_sync(kAllLanes, after, from);
  const std::uint32_t seed = place_after(chunk, list, chunk.index);
  return before == 0 ? seed : neighbour;
}

/// Of the levels above 1 of a chunk, in the order of its entries: their entries first, then they
/// themselves.
struct LargeLevels {
  std::uint16_t of[kCoordinateChunk];
};
/// In place of a level that takes more than 16 bits.
inline constexpr std::uint32_t kLongLevel = 0xFFFF;

/// By a whole warp: calls found(number, level) for all levels above 1, whose entries are listed, in no
/// order. found may put something else in place of of[number].
template <typename Found>
__device__ inline void read_large_levels(const ChunkInHand& chunk, const LargeLevels& large,
                                         std::uint32_t all, Found found) {
  constexpr unsigned kTogether = 4;  // entries on their way together
  __syncwarp();
  if (chunk.at_top != 0) {
#pragma unroll 1
    for (std::uint32_t number = lane(); number < all; number += kLanes) {
      const std::uint32_t i = large.of[number];
      found(number, chunk.level(i, chunk.bits->carried(i)));
    }
    __syncwarp();
    return;
  }
  for (std::uint32_t number = lane(); number < all; number += kTogether * kLanes) {
    const std::uint32_t own = large.of[number];
    float x[kTogether];
    std::uint32_t carried = 0;  // a bit an entry
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const std::uint32_t i = number + k * kLanes < all ? large.of[number + k * kLanes] : own;
      x[k] = chunk.x(i);
      carried |= chunk.bits->carried(i) << k;
    }
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const std::uint64_t fixed = grid_fixed_in_range(x[k], chunk.scale);
      if (number + k * kLanes < all)
        found(number + k * kLanes, static_cast<std::uint32_t>(fixed >> 32) + (carried >> k & 1));
    }
  }
  __syncwarp();
}

/// Launches a warp a chunk, each with so many bytes of shared memory.
inline void launch_chunks(void (*kernel)(Frame, Plan), std::size_t warp_bytes, const Frame& frame,
                          const Plan& plan, Queue& queue) {
  const unsigned warps = std::min(warps_per_block, kThreads / kLanes);
  queue.launch_blocks(kernel, divide_up(plan.chunks.units, warps), warps * kLanes,
                      warps * warp_bytes, frame, plan);
}

}  // namespace atomo::cuda::coordinate
