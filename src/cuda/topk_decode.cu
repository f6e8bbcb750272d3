// SPDX-License-Identifier: Apache-2.0
/// Reading top-k: marks and values of all messages of a call at once.
///
/// Mapping, three launches. count_kept: a warp a segment of 4,096 entries of a message looks at what it
/// states. open_bodies: a block a layer and message sums these up and checks the frame. read, or
/// add_read of several messages: a warp a segment reads the marks of one message after the other into
/// shared memory; then lanes take four neighbouring entries each and add what the messages have for
/// them, in their order.
///
/// Traffic an entry: 4 bytes written (`add` reads 4 and writes the sectors that change), whatever the
/// number of messages, and their bodies: the least possible.
///
/// Shared memory: 4.6 KiB a warp and 512 bytes for gaps. Workspace: 80 bytes a segment and message.
/// Determinism: an entry is one lane's, messages are added in order. Alignment: tensors as their
/// entries, the message any.

#include "cuda/topk_decode.cuh"

#include <algorithm>

#include "cuda/kept_entries.cuh"
#include "cuda/row_sums.cuh"
#include "format/topk_body.hpp"

namespace atomo::cuda::topk {
namespace {

/// Warps of a block of `read`, at most: what shared memory holds with room for other blocks.
constexpr unsigned kReadWarps = 4;

/// Of a segment, what a warp has read of each message.
struct SegmentOfMessages {
  std::uint64_t word[kMessagesAtOnce][kSegmentWords];
  const std::byte* values[kMessagesAtOnce];  ///< of its first kept entry
};
struct BlockSegments {
  SegmentOfMessages of[kReadWarps];
};

__global__ void count_kept(const Frames frames, const DecodePlan plan) {
  const Frame frame = frames[blockIdx.y];
  const UnitOf at = unit_of_warp(frame, plan.marks.segments);
  if (!at) return;
  const LayerState& layer = frame.layer(frame(plan.jobs)[at.job].layer);
  if (layer.decodes == 0) return;
  count_segment(frame, plan.marks, at.number, frame.message + layer.body_at, layer.bytes);
}

/// k marks, zeros up to a whole word, and nothing but their values behind them.
__global__ void __launch_bounds__(kLongScanThreads, 1)
    open_bodies(const Frames frames, const DecodePlan plan) {
  const Frame frame = frames[blockIdx.y];
  const DecodeJob& job = frame(plan.jobs)[blockIdx.x];
  const LayerState& layer = frame.layer(job.layer);
  if (layer.decodes == 0) return;
  const std::byte* const body = frame.message + layer.body_at;
  const bool opens = open_marks<kLongScanThreads>(frame, plan.marks, blockIdx.x, body, layer.bytes);
  if (threadIdx.x != 0) return;
  const MarksState& marks = frame(plan.marks.states)[blockIdx.x];
  const std::uint64_t keep = job.keep;
  const std::uint64_t values_at = format::topk_values_at(marks.bytes);
  const bool good = opens && marks.kept == keep && layer.bytes - values_at == 4 * keep &&
                    BitView(body, layer.bytes).zero(8 * marks.bytes, values_at);
  frame(plan.readable)[blockIdx.x] = good ? 1 : 0;
  if (!good) frame.refuse(job.layer, Status::corrupt);
}

/// By a whole warp: a bit for each message that has values for the segment, whose marks are then in
/// `own`. Segments that hold what they state have k marks together, so every value belongs to one.
__device__ std::uint32_t read_marks(const Frames& frames, const DecodePlan& plan, const UnitOf& at,
                                    const DecodeJob& job, SegmentOfMessages& own) {
  std::uint32_t sound = 0;
#pragma unroll 1
  for (std::uint32_t m = 0; m < frames.count; ++m) {
    const Frame frame = frames[m];
    const LayerState& layer = frame.layer(job.layer);
    if (layer.decodes == 0 || frame(plan.readable)[at.job] == 0) continue;
    const std::byte* const body = frame.message + layer.body_at;
    std::uint64_t word[2];
    if (!load_segment(frame, plan.marks, at, body, layer.bytes, word)) {
      if (lane() == 0) frame.refuse(job.layer, Status::corrupt);
      continue;
    }
    own.word[m][2 * lane()] = word[0];
    own.word[m][2 * lane() + 1] = word[1];
    if (lane() == 0)
      own.values[m] = body + format::topk_values_at(frame(plan.marks.states)[at.job].bytes) +
                      4 * frame(plan.marks.segment_states)[at.number].rank;
    sound |= 1u << m;
  }
  __syncwarp();
  return sound;
}

/// One message.
__global__ void read(const Frames frames, const DecodePlan plan, const DecodeInto into) {
  const UnitOf at = unit_of_warp(frames.first, plan.marks.segments);
  if (!at) return;
  const DecodeJob& job = frames.first(plan.jobs)[at.job];
  SegmentOfMessages& own = shared<BlockSegments>().of[warp_in_block()];
  if (read_marks(frames, plan, at, job, own) == 0) return;
  const SegmentRange range(job.n, at.index);
  const std::byte* const values = own.values[0];
  bool good = true;
  const auto word = [&](std::uint64_t w) { return own.word[0][w - range.begin / 64]; };
  const auto value = [&](std::uint32_t rank) {
    const float v = __uint_as_float(load_word(values + 4 * std::uint64_t{rank}));
    good = good && is_finite(v);
    return v;
  };
  scatter_kept(range, word, value, frames.first.layer(job.layer).y, into);
  if (!good) frames.first.refuse(job.layer, Status::corrupt);
}

/// Several messages, added entry by entry in their order.
__global__ void add_read(const Frames frames, const DecodePlan plan, const float alpha) {
  const UnitOf at = unit_of_warp(frames.first, plan.marks.segments);
  if (!at) return;
  const DecodeJob& job = frames.first(plan.jobs)[at.job];
  SegmentOfMessages& own = shared<BlockSegments>().of[warp_in_block()];
  const std::uint32_t sound = read_marks(frames, plan, at, job, own);
  if (sound == 0) return;
  const SegmentRange range(job.n, at.index);
  float* const y = frames.first.layer(job.layer).y;
  std::uint32_t broken = 0;        // messages
  std::uint32_t rank_of_lane = 0;  // lane m: entries that message m has marked so far
  for (std::uint64_t base = range.begin; base < range.end; base += kKeptStep) {
    const auto first = static_cast<std::uint32_t>(base - range.begin) / 64;
    const std::uint64_t i = base + 4 * lane();
    const unsigned shift = 4 * (lane() % (kLanes / 2));
    const bool upper = lane() >= kLanes / 2;
    float sum[4];
    load_four(y, i, range.end, {true}, sum);
    const float old[4] = {sum[0], sum[1], sum[2], sum[3]};
#pragma unroll 1
    for (std::uint32_t left = sound; left != 0;) {
      const std::uint32_t m = take_message(left);
      const std::uint64_t low = own.word[m][first], high = own.word[m][first + 1];
      const std::uint64_t half = upper ? high : low;
      const auto in_low = static_cast<std::uint32_t>(__popcll(low));
      const std::uint32_t before = __shfl_sync(kAllLanes, rank_of_lane, static_cast<int>(m));
      std::uint32_t rank =
          before + (upper ? in_low : 0) +
          static_cast<std::uint32_t>(__popcll(half & ((std::uint64_t{1} << shift) - 1)));
      if (lane() == m) rank_of_lane += in_low + static_cast<std::uint32_t>(__popcll(high));
      const auto bits = static_cast<unsigned>(half >> shift) & 15u;
      const std::byte* const values = in_one(own.values[m]);
      float v[4] = {};
      if (bits != 0) {
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) {
          if (((bits >> k) & 1u) == 0) continue;
          v[k] = __uint_as_float(load_word(values + 4 * std::uint64_t{rank++}));
          broken |= is_finite(v[k]) ? 0 : 1u << m;
        }
      }
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) sum[k] = sum[k] + (alpha * v[k]);
    }
    // A sum that changes nothing is not stored: most are, where few entries are marked.
    if (i < range.end && differ(sum, old)) put_four(y, i, range.end, sum, {});
  }
  for (std::uint32_t m = 0; m < frames.count; ++m)
    if ((broken >> m & 1u) != 0) frames[m].refuse(job.layer, Status::corrupt);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan) {
  const std::size_t count = count_of_method<MethodId::topk>(layers);
  plan = {};
  if (count == 0) return;
  TableMaker<DecodeJob> jobs(layout, count);
  MarksPlanner marks(layout, count);
  for_each_of_method<MethodId::topk>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    jobs.add({layer.n, number, layer.kind.params});
    marks.add(number, layer.n);
  });
  plan.count = jobs.count();
  plan.jobs = jobs.table();
  plan.marks = marks.finish(false);
  plan.readable = layout.zeroed<std::uint32_t>(count);
}

void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  const std::uint64_t segments = plan.marks.segments.units;
  queue.launch_warps_each(count_kept, segments, frames.count, frames, plan);
  queue.launch_blocks_each(open_bodies, plan.count, frames.count, kLongScanThreads, 0, frames,
                           plan);
  const unsigned warps = std::min(warps_per_block, kReadWarps);
  const std::uint64_t blocks = divide_up(segments, warps);
  if (frames.count == 1 || !into.add)
    queue.launch_blocks(read, blocks, warps * kLanes, 0, frames, plan, into);
  else
    queue.launch_blocks(add_read, blocks, warps * kLanes, 0, frames, plan, into.alpha);
}

}  // namespace atomo::cuda::topk
