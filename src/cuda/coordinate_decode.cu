// SPDX-License-Identifier: Apache-2.0
/// Reading coordinates; nothing of a body is trusted. FORMAT.md, "2 coordinate", says what a body
/// is, format/coordinate_body.hpp its words, rice.hpp the codes.
///
/// Mapping. check_words: a block a layer looks at the segments' words and adds their bytes up; they
/// must fill the body exactly. read_segment: a warp a segment of 32,768 entries. Lanes take 128 bits
/// of a list each, from guessed starts that are mended until all agree; what a word says goes to y
/// where it belongs, with a mark, and entries without a mark are zeros in the end. The second of two
/// lists comes down from the content's end. Where values are added of a layer that chooses a form, they are
/// kept apart, zeros too, and forms_add.cu adds them.
///
/// Traffic an entry: 4 bytes written (8 read and written when adding), a sector more a level that is
/// not 0, and the content read three or four times, from L1 but for the first. The least possible is
/// the 4 bytes, or 8, and the content once.
///
/// Shared memory: 32 KiB (read_segment), 2 KiB (check_words). Every entry is written by one lane,
/// so no order matters. The message has any alignment, y that of f32.

#include "cuda/coordinate_segment.cuh"
#include "cuda/entries.cuh"
#include "cuda/row_sums.cuh"

namespace atomo::cuda::coordinate {
namespace {

/// By a whole block: where the segments' contents begin; false when the words are none of a body of
/// `bytes` bytes.
__device__ bool place_segments(const std::byte* body, std::uint64_t bytes, std::uint64_t segments,
                               std::uint64_t* starts) {
  if (bytes / kSegmentWordBytes < segments) return false;
  bool valid = true;
  const auto content = [&](std::uint64_t s) {
    const SegmentWord word = SegmentWord::unpack(load_word(body + s * kSegmentWordBytes));
    valid = valid && word.valid();
    return std::uint64_t{word.bytes};
  };
  const std::uint64_t table = segments * kSegmentWordBytes;
  const std::uint64_t all = scan_blockwide<std::uint64_t>(
      segments, content,
      [&](std::uint64_t s, std::uint64_t before) { starts[s] = table + before; });
  return __syncthreads_and(valid && all != 0 && table + all == bytes ? 1 : 0) != 0;
}

__global__ void __launch_bounds__(kScanThreads)
    check_words(const Frames frames, const DecodePlan plan) {
  const Frame frame = frames[blockIdx.y];
  const std::uint32_t number = frame(plan.layers)[blockIdx.x];
  const LayerState& layer = frame.layer(number);
  const std::uint64_t first = frame(plan.segments.begin)[blockIdx.x];
  const std::uint64_t segments = frame(plan.segments.begin)[blockIdx.x + 1] - first;
  DecodeMode mode = kNothing;
  bool refused = false;
  const bool has_forms = frame.info(number).method == MethodId::automatic;
  if (layer.decodes != 0 && (!has_forms || form_of(layer) == kGridForm)) {
    mode = kZeros;
    if (layer.bytes != 0) {
      const bool good = layer.price > 0 && is_finite(layer.price) &&
                        place_segments(frame.message + layer.body_at, layer.bytes, segments,
                                       frame(plan.starts) + first);
      mode = good ? kSegments : kNothing;
      refused = !good;
    }
  }
  __syncthreads();  // all know whether the layer decodes
  if (threadIdx.x != 0) return;
  frame(plan.modes)[blockIdx.x] = mode;
  if (!refused) return;
  frame.refuse(number, Status::corrupt);
  frame.layer(number).decodes = 0;
}

/// What a segment is decoded into.
struct SegmentOutput {
  float* y;
  DecodeInto into;
  double step;
  std::uint32_t entries;
  std::uint32_t* marks;  ///< a bit an entry that is written
};

/// A value on its way to where it belongs: when adding, the next word is read while what stands
/// there is on its way.
class PendingValue {
 public:
  __device__ explicit PendingValue(const SegmentOutput& out) : out_(out) {}

  __device__ void put(std::uint32_t place, std::int64_t level) {
    const float value = grid_value(level, out_.step);
    const float old = out_.into.add ? out_.y[place] : 0.0f;
    finish();
    place_ = place, value_ = value, old_ = old, there_ = true;
  }
  /// Must be called after the last value.
  __device__ void finish() {
    if (there_) out_.y[place_] = out_.into.add ? old_ + (out_.into.alpha * value_) : value_;
    there_ = false;
  }

 private:
  const SegmentOutput& out_;
  std::uint32_t place_ = 0;
  float value_ = 0, old_ = 0;
  bool there_ = false;
};

__device__ PendingValue pending(const SegmentOutput& out) { return PendingValue(out); }

/// By a whole warp: entries that no word was for are 0. Sums that change nothing are not stored.
__device__ void put_zeros(const SegmentOutput& out) {
  constexpr unsigned kRows = 16;  // loads that are on their way together
  for (std::uint32_t row = 0; row < out.entries; row += kRows * kLanes) {
    float old[kRows];
    bool there[kRows];
#pragma unroll
    for (unsigned k = 0; k < kRows; ++k) {
      const std::uint32_t i = row + k * kLanes + lane();
      there[k] = i < out.entries && ((out.marks[i / 32] >> (i % 32)) & 1u) == 0;
      old[k] = there[k] && out.into.add ? out.y[i] : 1.0f;
    }
#pragma unroll
    for (unsigned k = 0; k < kRows; ++k) {
      const float sum = out.into.add ? old[k] + (out.into.alpha * 0.0f) : 0.0f;
      if (there[k] && __float_as_uint(sum) != __float_as_uint(old[k]))
        out.y[row + k * kLanes + lane()] = sum;
    }
  }
}

/// By a whole warp: a segment of a message, into the output or, where values are added of a layer that
/// chooses a form, into its part of what is kept apart, every entry of it.
__device__ void put_segment(const Frame& frame, const DecodePlan& plan, const UnitOf& unit,
                            DecodeInto into, std::uint32_t slot) {
  if (frame(plan.modes)[unit.job] == kNothing) return;
  const std::uint32_t number = frame(plan.layers)[unit.job];
  const LayerState& layer = frame.layer(number);
  const std::uint64_t begin = unit.index * kCoordinateSegment;
  SegmentWord word;
  const std::byte* content;
  const bool apart = into.add && frame.info(number).method == MethodId::automatic;
  bool good = find_content(frame, plan, unit, layer, word, content);
  const SegmentOutput out{(apart ? frame.apart(number, slot) : layer.y) + begin,
                          apart ? DecodeInto{} : into, layer.price,
                          entries_of_segment(frame, number, begin), clear_marks()};
  good = good && read_content(BitView(content, word.bytes), word, out);
  __syncwarp();
  put_zeros(out);
  if (!good && lane() == 0) frame.refuse(number, Status::corrupt);
}

/// Of several messages, `first` and those that follow, layers that are added together are done.
__global__ void read_segment(const Frames frames, const DecodePlan plan, const DecodeInto into,
                             const std::uint32_t first) {
  const Frame frame = frames[first + blockIdx.y];
  const UnitOf unit = unit_of_warp(frame, plan.segments);
  if (!unit || (is_several(frames, into) && goes_together(frame, plan, unit.job))) return;
  put_segment(frame, plan, unit, into, blockIdx.y);
}

/// Segments with levels that take more than a byte in one of the messages: read once more.
__global__ void add_wide(const Frames frames, const DecodePlan plan, const DecodeInto into,
                         const std::uint32_t first, const std::uint32_t count) {
  const UnitOf unit = unit_of_warp(frames.first, plan.segments);
  if (!unit || !goes_together(frames.first, plan, unit.job)) return;
  const std::uint32_t kind = kind_of_lane(frames, plan, unit.number, first, count);
  if (__ballot_sync(kAllLanes, kind == kWideLevels) == 0) return;
  for (std::uint32_t left = __ballot_sync(kAllLanes, kind != kNoSegment); left != 0;) {
    put_segment(frames[first + take_message(left)], plan, unit, into, 0);
    __syncwarp();  // sums are seen by the whole warp
  }
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan) {
  const auto own = [](const LayerPlan& layer) {
    return (layer.kind.method == MethodId::coordinate ||
            layer.kind.method == MethodId::automatic) &&
           layer.n > 0;
  };
  plan = {};
  for (const LayerPlan& layer : layers) plan.count += own(layer) ? 1 : 0;
  if (plan.count == 0) return;
  TableMaker<std::uint32_t> numbers(layout, plan.count);
  TableMaker<std::uint64_t> first(layout, plan.count);
  SplitMaker segments(layout, plan.count), sums(layout, plan.count);
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    if (!own(layers[i])) continue;
    const bool together = layers[i].kind.method == MethodId::coordinate;
    numbers.add(i);
    segments.add(segments_of(layers[i].n));
    sums.add(together ? divide_up(layers[i].n, kSummed) : 0);
    first.add(plan.room.of_message);
    if (together) plan.room.of_message += divide_up(layers[i].n, 64) * 64;
    plan.turns = plan.turns || !together;
  }
  plan.sums = sums.split();
  plan.room.first = first.table();
  plan.room.levels = layout.call_scratch<std::int8_t>(kReadTogether * plan.room.of_message);
  plan.layers = numbers.table();
  plan.segments = segments.split();
  plan.starts = layout.scratch<std::uint64_t>(plan.segments.units);
  plan.modes = layout.scratch<std::uint32_t>(plan.count);
  plan.kinds = layout.zeroed<std::uint32_t>(plan.segments.units);
}

void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  queue.launch_blocks_each(check_words, plan.count, frames.count, kScanThreads, 0, frames, plan);
  if (!is_several(frames, into) || plan.sums.units == 0) return;
  const std::uint64_t segments = plan.segments.units;
  for (std::uint32_t first = 0; first < frames.count; first += kReadTogether) {
    const std::uint32_t left = frames.count - first;
    const std::uint32_t count = left < kReadTogether ? left : kReadTogether;
    add_levels(frames, plan, into, first, count, queue);
    queue.launch_warps(add_wide, segments, frames, plan, into, first, count);
  }
}

void decode_in_turn(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
                    DecodeInto into, Queue& queue) {
  queue.launch_warps_each(read_segment, plan.segments.units, turn.count, frames, plan, into,
                          turn.first);
}

}  // namespace atomo::cuda::coordinate
