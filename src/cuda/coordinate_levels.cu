// SPDX-License-Identifier: Apache-2.0
/// Coordinates of several messages, added at once.
///
/// The mathematics is that of one message (coordinate_decode.cu): y becomes y + (alpha * v), message by
/// message, v = f32(level * step). Below 128 a level times an f32 is exact in f64, so that the f32
/// product is the same.
///
/// Mapping, two launches for up to four messages. read_levels: a warp a segment of 32,768 entries and
/// message puts levels into the workspace, a byte an entry; all segments run side by side, so that
/// none waits for those of the message before. sum_levels: a warp adds 1,024 entries, a lane four
/// neighbours at a time, of all messages. A segment with a wider level in one of them is left to
/// `add_wide` (coordinate_decode.cu).
///
/// Traffic in bytes an entry: a byte of levels is written and read a message, 8 for the tensor whatever
/// the number of messages, and the bodies, which are read again from L1.
///
/// Shared memory: 32 KiB (read_levels). Workspace: 4 bytes an entry. Determinism: every entry is one
/// lane's, in order of messages. Alignment: y is aligned to its entries, the message any.

#include "cuda/coordinate_segment.cuh"
#include "cuda/row_sums.cuh"

namespace atomo::cuda::coordinate {
namespace {

static_assert(kSummed % (kSumRows * kSumRow) == 0);

/// Levels in the workspace in place of values.
struct LevelOutput {
  std::int8_t* levels;
  std::uint32_t entries;
  std::uint32_t* marks;  ///< likewise
  std::uint32_t* kind;   ///< of the segment
};

/// A level on its way; one that takes more than a byte makes the segment one of wide levels.
class PendingLevel {
 public:
  __device__ explicit PendingLevel(const LevelOutput& out) : out_(out) {}

  __device__ void put(std::uint32_t place, std::int64_t level) {
    out_.levels[place] = static_cast<std::int8_t>(level);
    wide_ = wide_ || level < -127 || level > 127;
  }
  __device__ void finish() const {
    if (wide_) atomicMax(out_.kind, std::uint32_t{kWideLevels});
  }

 private:
  const LevelOutput& out_;
  bool wide_ = false;
};
__device__ PendingLevel pending(const LevelOutput& out) { return PendingLevel(out); }

__global__ void read_levels(const Frames frames, const DecodePlan plan, const std::uint32_t first) {
  const Frame frame = frames[first + blockIdx.y];
  const UnitOf unit = unit_of_warp(frame, plan.segments);
  if (!unit || !goes_together(frame, plan, unit.job)) return;
  if (frame(plan.modes)[unit.job] == kNothing) return;
  const std::uint32_t number = frame(plan.layers)[unit.job];
  const std::uint64_t begin = unit.index * kCoordinateSegment;
  std::uint32_t* const kind = frame(plan.kinds) + unit.number;
  SegmentWord word;
  const std::byte* content;
  bool good = find_content(frame, plan, unit, frame.layer(number), word, content);
  const bool zeros = frame(plan.modes)[unit.job] == kZeros || word.mode == SegmentMode::zero;
  if (good && !zeros) {
    const LevelOutput out{frame(plan.room.levels) + blockIdx.y * plan.room.of_message +
                              frame(plan.room.first)[unit.job] + begin,
                          entries_of_segment(frame, number, begin), clear_marks(), kind};
    auto* const words = reinterpret_cast<uint4*>(out.levels);
    for (std::uint32_t i = lane(); 16 * i < out.entries; i += kLanes)
      words[i] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    good = read_content(BitView(content, word.bytes), word, out);
  }
  __syncwarp();
  if (lane() != 0) return;
  if (good) {
    atomicMax(kind, std::uint32_t{zeros ? kZeroSegment : kLevels});
  } else {
    atomicExch(kind, std::uint32_t{kNoSegment});
    frame.refuse(number, Status::corrupt);
  }
}

/// Four levels, a byte each, as values: f32 products of integers below 128, which an f64 rounds alike.
__device__ void values_of(std::uint32_t levels, float step, float (&v)[4]) {
  constexpr std::uint32_t kLargest = 0x7F7FFFFFu;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) {
    const float value =
        static_cast<float>(static_cast<std::int32_t>(levels << (24 - 8 * k)) >> 24) * step;
    const std::uint32_t bits = __float_as_uint(value);
    v[k] = is_finite(value) ? value : __uint_as_float((bits & 0x80000000u) | kLargest);
  }
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
  queue.launch_warps_each(read_levels, plan.segments.units, count, frames, plan, first);
  queue.launch_warps(sum_levels, plan.sums.units, frames, plan, into, first, count);
}

}  // namespace atomo::cuda::coordinate
