// SPDX-License-Identifier: Apache-2.0
/// Reading top-k: marks and values of all messages of a call at once.
///
/// Mapping, three launches. count_kept: a warp a segment of 4,096 entries of a message looks at what it
/// states. open_bodies: a block a layer and message sums these up and checks the frame. Then, of one message,
/// read: a warp a segment reads its marks into shared memory, and lanes put four neighbouring entries each. Or
/// of several, add_read: a block a segment, in which a warp a message reads the marks, whose lanes have those
/// of 128 entries each and ask for the values; then one message after the other is added to sums in shared
/// memory.
///
/// Traffic an entry: 4 bytes written (`add` reads 4 and writes the sectors that change), whatever the
/// number of messages, and their bodies: the least possible.
///
/// Shared memory: 1 KiB a warp (read), 24 KiB a block (add_read). Workspace: 24 bytes a segment and message.
/// Determinism: messages are added in order, in each of them an entry is one lane's. Alignment: tensors as
/// their entries, the message any.

#include "cuda/topk_decode.cuh"

#include <algorithm>

#include "cuda/kept_sums.cuh"
#include "format/topk_body.hpp"

namespace atomo::cuda::topk {
namespace {

/// Warps of a block of `read`, at most: what shared memory holds with room for other blocks.
constexpr unsigned kReadWarps = 4;

/// The marks of a segment, as a warp has read them.
struct BlockSegments {
  std::uint64_t word[kReadWarps][kSegmentWords];
};

__global__ void count_kept(const Frames frames, const DecodePlan plan) {
  const Frame frame = frames[blockIdx.y];
  const UnitOf at = unit_of_warp(frame, plan.marks.segments);
  if (!at) return;
  const LayerState& layer = frame.layer(frame(plan.jobs)[at.job].layer);
  if (layer.decodes == 0) return;
  count_segment(frame, plan.marks, at, frame.message + layer.body_at, layer.bytes);
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

/// By a whole warp: the segment's marks of a message, 128 entries a lane, and where their values begin; null
/// where it has none. Segments that hold what they state have k marks together, so every value belongs to one.
__device__ const std::byte* read_marks(const Frame& frame, const DecodePlan& plan, const UnitOf& at,
                                       const DecodeJob& job, std::uint64_t (&word)[2]) {
  const LayerState& layer = frame.layer(job.layer);
  if (layer.decodes == 0 || frame(plan.readable)[at.job] == 0) return nullptr;
  const std::byte* const body = frame.message + layer.body_at;
  if (!load_segment(frame, plan.marks, at, body, layer.bytes, word)) {
    if (lane() == 0) frame.refuse(job.layer, Status::corrupt);
    return nullptr;
  }
  return body + format::topk_values_at(frame(plan.marks.states)[at.job].bytes) +
         4 * frame(plan.marks.ranks)[at.number];
}

__device__ float load_value(const std::byte* values, std::uint32_t rank) {
  return __uint_as_float(load_word(values + 4 * std::uint64_t{rank}));
}

/// One message.
__global__ void read(const Frames frames, const DecodePlan plan, const DecodeInto into) {
  const UnitOf at = unit_of_warp(frames.first, plan.marks.segments);
  if (!at) return;
  const DecodeJob& job = frames.first(plan.jobs)[at.job];
  std::uint64_t* const own = shared<BlockSegments>().word[warp_in_block()];
  std::uint64_t words[2];
  const std::byte* const values = read_marks(frames.first, plan, at, job, words);
  if (values == nullptr) return;
  own[2 * lane()] = words[0];
  own[2 * lane() + 1] = words[1];
  __syncwarp();
  const SegmentRange range(job.n, at.index);
  bool good = true;
  const auto word = [&](std::uint64_t w) { return own[w - range.begin / 64]; };
  const auto value = [&](std::uint32_t rank) {
    const float v = load_value(values, rank);
    if (is_finite(v)) return v;
    good = false;
    return 0.0f;  // the other messages' sum stays what it is
  };
  scatter_kept(range, word, value, frames.first.layer(job.layer).y, into);
  if (!good) frames.first.refuse(job.layer, Status::corrupt);
}

/// A lane's marks of a message, the next of which were taken.
struct LaneValues {
  static constexpr unsigned kTogether = 4;
  std::uint64_t low, high;  ///< marks that are left, of 64 entries each
  std::uint32_t rank;       ///< of the first of these
  std::uint32_t taken = 0;  ///< how many
  std::uint32_t place[kTogether];
  float value[kTogether];

  __device__ void take(const std::byte* values) {
    taken = 0;
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      if ((low | high) == 0) continue;
      const bool of_low = low != 0;
      const std::uint64_t left = of_low ? low : high;
      const auto bit = static_cast<std::uint32_t>(__ffsll(static_cast<long long>(left)) - 1);
      low = of_low ? left & (left - 1) : 0;
      high = of_low ? high : left & (left - 1);
      place[k] = 128 * lane() + (of_low ? 0 : 64) + bit;
      value[k] = load_value(values, rank + k);
      taken = k + 1;
    }
    rank += taken;
  }
};

/// Several messages, added entry by entry in their order: by a block of a warp for each.
__global__ void __launch_bounds__(kMessagesAtOnce* kLanes, 4)
    add_read(const Frames frames, const DecodePlan plan, const float alpha) {
  const UnitOf at = find_unit_together(frames.first, plan.marks.segments, blockIdx.x);
  const DecodeJob& job = frames.first(plan.jobs)[at.job];
  const std::uint32_t own = warp_in_block();
  const DecodeInto into{true, alpha};
  LaneValues marks;
  std::uint64_t word[2];
  const std::byte* const values = read_marks(frames[own], plan, at, job, word);
  if (values != nullptr) {
    marks.low = word[0], marks.high = word[1];
    const auto count = static_cast<std::uint32_t>(__popcll(word[0]) + __popcll(word[1]));
    std::uint32_t total;
    marks.rank = warp_exclusive_sum(count, total);
    marks.take(values);
  }
  const auto messages =
      static_cast<std::uint32_t>(__syncthreads_count(values != nullptr && lane() == 0 ? 1 : 0));
  if (messages == 0) return;
  const SegmentRange range(job.n, at.index);
  float* const y = frames.first.layer(job.layer).y;
  auto& sums = shared<KeptSums>();
#pragma unroll 4
  for (std::uint32_t i = 4 * threadIdx.x; i < kKeptSegment; i += 4 * blockDim.x) {
    float four[4];
    load_four(y, range.begin + i, range.end, into, four);
    sums.begin(i, four);
  }
  bool good = true;
#pragma unroll 1
  for (std::uint32_t m = 0; m < frames.count; ++m) {
    __syncthreads();
    if (m != own || values == nullptr) continue;
    while (marks.taken != 0) {
#pragma unroll
      for (unsigned k = 0; k < LaneValues::kTogether; ++k) {
        if (k >= marks.taken) continue;
        const bool finite = is_finite(marks.value[k]);
        good = good && finite;
        sums.add(marks.place[k], finite ? marks.value[k] : 0.0f, into);
      }
      marks.take(values);
    }
  }
  if (!good) frames[own].refuse(job.layer, Status::corrupt);
  __syncthreads();
  const Absent absent(messages, into);
  for (std::uint32_t i = 4 * threadIdx.x; i < kKeptSegment; i += 4 * blockDim.x) {
    float sum[4], before[4];
    for (unsigned k = 0; k < 4; ++k) before[k] = sums.at[i + k], sum[k] = absent.sum(sums, i + k);
    // What stands there already is not stored: most does, where few entries are marked.
    const bool kept = *reinterpret_cast<const std::uint32_t*>(sums.kept + i) != 0;
    // From an address made of terms the compiler would store the four one by one.
    if (range.begin + i < range.end && (kept || differ(sum, before)))
      put_four(in_one(y + range.begin + i), 0, range.end - range.begin - i, sum, {});
  }
}
static_assert(kMessagesAtOnce <= kMaxWarps);

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
  plan.marks = marks.finish_read(false);
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
    queue.launch_blocks(add_read, segments, frames.count * kLanes, 0, frames, plan, into.alpha);
}

}  // namespace atomo::cuda::topk
