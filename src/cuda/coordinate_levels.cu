// SPDX-License-Identifier: Apache-2.0
/// Coordinates of several messages, added at once.
///
/// The mathematics is that of one message (coordinate_decode.cu): y becomes y + (alpha * v), message by
/// message, v = f32(level * step). Below 128 a level times an f32 is exact in f64, so that the f32
/// product is the same.
///
/// Mapping, two launches for up to four messages. read_levels: a block of 128 threads a segment of 32,768
/// entries and message puts levels into the workspace, a byte an entry; all segments run side by side, so
/// that none waits for those of the message before. sum_levels: a warp adds 1,024 entries, a lane four
/// neighbours at a time, of all messages. A segment with a wider level in one of them is left to
/// `add_wide` (coordinate_decode.cu).
///
/// Traffic in bytes an entry: a byte of levels is written and read a message, 8 for the tensor whatever
/// the number of messages, and the bodies.
///
/// Shared memory: 37 KiB (read_levels). Workspace: 4 bytes an entry. Determinism: every entry is one
/// lane's, in order of messages. Alignment: y is aligned to its entries, the message any.

#include "cuda/coordinate_segment.cuh"
#include "cuda/row_sums.cuh"

namespace atomo::cuda::coordinate {
namespace {

static_assert(kSummed % (kSumRows * kSumRow) == 0);

__global__ void __launch_bounds__(kReadThreads, kReadBlocks)
    read_levels(const Frames frames, const DecodePlan plan, const std::uint32_t first) {
  const Frame frame = frames[first + blockIdx.y];
  const UnitOf unit = unit_of_block(frame, plan);
  if (!goes_together(frame, plan, unit.job)) return;
  if (frame(plan.modes)[unit.job] == kNothing) return;
  const std::uint32_t number = frame(plan.layers)[unit.job];
  const std::uint64_t begin = unit.index * kCoordinateSegment;
  SegmentWord word;
  const std::byte* content;
  bool good = find_content(frame, plan, unit, frame.layer(number), word, content);
  const bool zeros = frame(plan.modes)[unit.job] == kZeros || word.mode == SegmentMode::zero;
  bool wide = false;
  if (good && !zeros) {
    SegmentOutput out{shared<SegmentMemory>(), entries_of_segment(frame, number, begin),
                      [](std::uint32_t, std::int64_t) {}};
    clear_levels(out.memory);
    good = read_content(BitView(content, word.bytes), word, out);
    wide = __syncthreads_or(out.has_far ? 1 : 0) != 0;
    const auto* const from = reinterpret_cast<const uint4*>(out.memory.levels);
    auto* const to =
        reinterpret_cast<uint4*>(frame(plan.room.levels) + blockIdx.y * plan.room.of_message +
                                 frame(plan.room.first)[unit.job] + begin);
    for (std::uint32_t i = threadIdx.x; 16 * i < out.entries; i += kReadThreads) to[i] = from[i];
  }
  if (threadIdx.x != 0) return;
  frame(plan.kinds)[unit.number] = !good   ? kNoSegment
                                   : zeros ? kZeroSegment
                                   : wide  ? kWideLevels
                                           : kLevels;
  if (!good) frame.refuse(number, Status::corrupt);
}

__global__ void sum_levels(const Frames frames, const DecodePlan plan, const DecodeInto into,
                           const std::uint32_t first, const std::uint32_t count) {
  const Frame& frame = frames.first;
  const UnitOf at = unit_of_warp(frame, plan.sums);
  if (!at) return;
  constexpr std::uint64_t kOfSegment = kCoordinateSegment / kSummed;
  const std::uint64_t segment = frame(plan.segments.begin)[at.job] + at.index / kOfSegment;
  const std::uint32_t kind = kind_of_lane(frames, plan, segment, first, count);
  const std::uint32_t wide = __ballot_sync(kAllLanes, kind == kWideLevels),
                      there = __ballot_sync(kAllLanes, kind != kNoSegment),
                      levels = __ballot_sync(kAllLanes, kind == kLevels);
  if (wide != 0 || there == 0) return;
  const std::uint32_t number = frame(plan.layers)[at.job];
  const float own_step = lane() < count ? frames[first + lane()].layer(number).price : 0.0f;
  const std::uint64_t n = frame.info(number).n;
  const std::int8_t* const room = frame(plan.room.levels) + frame(plan.room.first)[at.job];
  with_add(into, [&](auto adds) {
#pragma unroll 1
    for (std::uint64_t part = 0; part < kSummed; part += kSumRows * kSumRow) {
      RowSums<kSumRows, decltype(adds)::value> sums(frame.layer(number).y,
                                                    at.index * kSummed + part, n, into);
#pragma unroll 1
      for (std::uint32_t left = there; left != 0;) {
        const std::uint32_t m = take_message(left);
        const float step = __shfl_sync(kAllLanes, own_step, static_cast<int>(m));
        const bool has_levels = (levels >> m & 1u) != 0;
#pragma unroll
        for (unsigned row = 0; row < kSumRows; ++row) {
          std::uint32_t four = 0;
          if (has_levels && sums.at(row) < n)
            four = *reinterpret_cast<const std::uint32_t*>(room + m * plan.room.of_message +
                                                           sums.at(row));
          float v[4];
          values_of(four, step, v);
          sums.put(row, v);
        }
      }
      sums.store();
    }
  });
}

}  // namespace

void add_levels(const Frames& frames, const DecodePlan& plan, DecodeInto into, std::uint32_t first,
                std::uint32_t count, Queue& queue) {
  queue.launch_blocks_each(read_levels, plan.segments.units, count, kReadThreads, 0, frames, plan,
                           first);
  queue.launch_warps(sum_levels, plan.sums.units, frames, plan, into, first, count);
}

}  // namespace atomo::cuda::coordinate
