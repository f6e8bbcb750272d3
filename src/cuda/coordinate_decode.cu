// SPDX-License-Identifier: Apache-2.0
/// Reading coordinates; nothing of a body is trusted. FORMAT.md, "2 coordinate", says what a body
/// is, format/coordinate_body.hpp its words, rice.hpp the codes.
///
/// Mapping. check_words: a block a layer looks at the segments' words and adds their bytes up; they
/// must fill the body exactly. read_segment: a block of 128 threads a segment of 32,768 entries. Its levels
/// gather in shared memory, a byte each (coordinate_segment.cuh), and go to y from there in rows of
/// neighbours. A level that takes more than a byte goes to y at once. Where values are added of a layer that
/// chooses a form, they are kept apart, zeros too, and forms_add.cu adds them.
///
/// Traffic an entry: 4 bytes written (8 read and written when adding), and the content once a list:
/// the least possible.
///
/// Shared memory: 37 KiB (read_segment), 2 KiB (check_words). Every entry is written by one thread,
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

/// By a whole block: a segment's levels as values of `y`, whose entries end with `n`; the first is number
/// `begin`. Those that are far stand there already. Sums that change nothing are not stored.
__device__ void put_values(const SegmentMemory& memory, float* y, std::uint64_t begin,
                           std::uint64_t n, std::uint32_t entries, float step, DecodeInto into,
                           bool has_far) {
  if (has_far) {
    for (std::uint32_t i = threadIdx.x; i < entries; i += kReadThreads) {
      const std::int8_t level = memory.levels[i];
      if (level != kFarLevel) put(y + begin + i, grid_value(level, step), into);
    }
    return;
  }
  with_add(into, [&](auto adds) {
    constexpr bool kAdd = decltype(adds)::value;
    constexpr std::uint32_t kRows = kSumRows * kSumRow;
#pragma unroll 1
    for (std::uint32_t rows = kRows * warp_in_block(); rows < entries; rows += kRows * kReadWarps) {
      RowSums<kSumRows, kAdd> sums(y, begin + rows, n, into);
      const RowSums<kSumRows, kAdd> old = sums;
#pragma unroll
      for (unsigned row = 0; row < kSumRows; ++row) {
        float v[4];
        values_of(*reinterpret_cast<const std::uint32_t*>(memory.levels + rows + row * kSumRow +
                                                          4 * lane()),
                  step, v);
        sums.put(row, v);
      }
      if constexpr (kAdd)
        sums.store_changed(old);
      else
        sums.store();
    }
  });
}

/// By a whole block: a segment of a message, into the output or, where values are added of a layer that
/// chooses a form, into its part of what is kept apart, every entry of it.
__device__ void put_segment(const Frame& frame, const DecodePlan& plan, const UnitOf& unit,
                            DecodeInto to, std::uint32_t slot) {
  if (frame(plan.modes)[unit.job] == kNothing) return;
  const std::uint32_t number = frame(plan.layers)[unit.job];
  const LayerState& layer = frame.layer(number);
  const std::uint64_t begin = unit.index * kCoordinateSegment;
  const bool apart = to.add && frame.info(number).method == MethodId::automatic;
  float* const y = apart ? frame.apart(number, slot) : layer.y;
  const DecodeInto into = apart ? DecodeInto{} : to;
  const float step = layer.price;
  SegmentOutput out{shared<SegmentMemory>(), entries_of_segment(frame, number, begin),
                    [&](std::uint32_t place, std::int64_t level) {
                      put(y + begin + place, grid_value(level, step), into);
                    }};
  clear_levels(out.memory);
  SegmentWord word;
  const std::byte* content;
  const bool good = find_content(frame, plan, unit, layer, word, content) &&
                    read_content(BitView(content, word.bytes), word, out);
  const bool has_far = __syncthreads_or(out.has_far ? 1 : 0) != 0;
  put_values(out.memory, y, begin, frame.info(number).n, out.entries, step, into, has_far);
  if (!good && threadIdx.x == 0) frame.refuse(number, Status::corrupt);
}

/// Of several messages, `first` and those that follow, layers that are added together are done.
__global__ void __launch_bounds__(kReadThreads, kReadBlocks)
    read_segment(const Frames frames, const DecodePlan plan, const DecodeInto into,
                 const std::uint32_t first) {
  const Frame frame = frames[first + blockIdx.y];
  const UnitOf unit = unit_of_block(frame, plan);
  if (is_several(frames, into) && goes_together(frame, plan, unit.job)) return;
  put_segment(frame, plan, unit, into, blockIdx.y);
}

/// Segments with levels that take more than a byte in one of the messages: read once more.
__global__ void __launch_bounds__(kReadThreads, kReadBlocks)
    add_wide(const Frames frames, const DecodePlan plan, const DecodeInto into,
             const std::uint32_t first, const std::uint32_t count) {
  const UnitOf unit = unit_of_block(frames.first, plan);
  if (!goes_together(frames.first, plan, unit.job)) return;
  const std::uint32_t kind = kind_of_lane(frames, plan, unit.number, first, count);
  if (__ballot_sync(kAllLanes, kind == kWideLevels) == 0) return;
  for (std::uint32_t left = __ballot_sync(kAllLanes, kind != kNoSegment); left != 0;) {
    put_segment(frames[first + take_message(left)], plan, unit, into, 0);
    __syncthreads();  // sums are seen by the whole block
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
    queue.launch_blocks(add_wide, segments, kReadThreads, 0, frames, plan, into, first, count);
  }
}

void decode_in_turn(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
                    DecodeInto into, Queue& queue) {
  queue.launch_blocks_each(read_segment, plan.segments.units, turn.count, kReadThreads, 0, frames,
                           plan, into, turn.first);
}

}  // namespace atomo::cuda::coordinate
