// SPDX-License-Identifier: Apache-2.0
/// Reading chunked top-k; nothing of a body is trusted.
///
/// Mapping, three launches, the first two with a part of the grid for each message:
///   check    a block a layer: lengths, levels and their padding; where each group's gaps begin
///   read     a warp a group of chunks: one lane reads its gaps word by word, as each one's parameter
///            follows from those before; then all lanes check the codes
///   put      a block of 256 threads 4,096 entries, whole chunks: values are scattered into shared memory,
///            message by message, and meet the entries, sixteen a thread in registers
/// Layers of tiles are put into a sequence instead, message by message, from where tile_transform.cu adds
/// them.
///
/// Traffic an entry: 4 bytes written (8 read and written when adding), the least; 2 bytes written and read
/// a kept entry, and the message.
///
/// Shared memory: 16 KiB (put), a scan's (check). Workspace: 2 bytes a slot and 12 bytes a group of each message.
/// Every entry is written by one thread, so no order matters. The message has any alignment, y that of f32.

#include "coding/rice.hpp"
#include "cuda/bit_stream.cuh"
#include "cuda/chunk_topk.cuh"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"
#include "cuda/kept_entries.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

using format::ChunkBody;

/// What a slot of a group holds: the place in its chunk, or nothing.
constexpr std::uint16_t kUnused = 0x8000, kUpper = 0x4000, kPlace = 0x0FFF;
constexpr unsigned kRows = 4, kRow = 4 * kScanThreads;
static_assert(kRows * kRow == kSpan);

struct Values {
  float at[kSpan];
};

__device__ std::uint32_t load_half_word(const std::byte* p) {
  return static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8;
}

__global__ void __launch_bounds__(kScanThreads) check(const Frames frames, const DecodePlan plan) {
  const Frame frame = frames[blockIdx.y];
  const Job& job = frame(plan.jobs)[blockIdx.x];
  const ChunkBody& at = job.body;
  const LayerState& layer = frame.layer(job.layer);
  if (layer.decodes == 0) return;
  if (layer.bytes < at.gaps_at) {
    if (threadIdx.x == 0) frame.refuse(job.layer, Status::truncated);
    return;
  }
  const std::byte* const body = frame.message + layer.body_at;
  std::uint64_t* const starts = frame(plan.starts) + job.first_group;
  const std::uint64_t all = scan_blockwide<std::uint64_t>(
      at.groups, [&](std::uint64_t g) { return std::uint64_t{load_half_word(body + 2 * g)}; },
      [&](std::uint64_t g, std::uint64_t before) { starts[g] = at.gaps_at + before; });
  bool good = at.gaps_at + all == layer.bytes;
  for (std::uint64_t i = threadIdx.x; i < at.groups * at.level_words; i += kScanThreads) {
    const std::uint64_t g = i / at.level_words;
    good =
        good && format::valid_level(job.config.values, static_cast<unsigned>(i % at.level_words),
                                    at.group_slots(g), load_half_word(body + at.levels_at + 2 * i));
  }
  const BitView bits(body, layer.bytes);
  good = good && bits.zero(16 * at.groups, at.levels_at) &&
         bits.zero(8 * at.levels_at + 16 * at.groups * at.level_words, at.values_at);
  good = __syncthreads_and(good ? 1 : 0) != 0;
  if (threadIdx.x != 0) return;
  frame(plan.readable)[blockIdx.x] = good ? 1 : 0;
  if (good) return;
  frame.refuse(job.layer, at.gaps_at + all > layer.bytes ? Status::truncated : Status::corrupt);
}

/// The gaps of a group, read one after the other: the bits that come next are in a register, those behind them
/// on their way.
class GapReader {
 public:
  __device__ GapReader(const std::byte* begin, std::uint32_t bytes)
      : bits_(begin, bytes), bytes_(bytes), window_(bits_.peek64(0)), behind_(bits_.peek32(64)) {}

  [[nodiscard]] __device__ std::uint32_t next(std::uint32_t left, std::uint32_t marks) {
    return coding::read_rice(*this, format::gap_parameter(left, marks), format::kRawGapBits, good_);
  }
  /// What was read are words of the format, and nothing but less than a byte of zeros follows.
  [[nodiscard]] __device__ bool ends() const {
    return good_ && at_ <= 8 * bytes_ && 8 * bytes_ - at_ < 8 && bits_.zero(at_, bytes_);
  }
  /// At least 33 bits, as many as a word has at most.
  [[nodiscard]] __device__ coding::UpwardWindow window() const { return {window_}; }
  __device__ void move(unsigned count) {
    at_ += count;
    held_ -= count;
    window_ >>= count;
    while (held_ <= 32) {
      window_ |= std::uint64_t{behind_} << held_;
      held_ += 32;
      behind_ = bits_.peek32(at_ + held_);
    }
  }

 private:
  BitView bits_;
  std::uint64_t bytes_, at_ = 0;
  std::uint64_t window_;  ///< from `at_` on
  unsigned held_ = 64;    ///< bits of it
  std::uint32_t behind_;  ///< the bits behind these
  bool good_ = true;
};

/// By one lane: what the slots of a group hold; false when the gaps contradict the format.
__device__ bool read_slots(const ChunkBody& at, std::uint64_t g, std::uint32_t upper,
                           GapReader& gaps, std::uint16_t* slots) {
  std::uint32_t slot = 0;
  bool good = true;
  for (std::uint32_t c = 0; c < at.chunks_of(g); ++c) {
    const std::uint64_t chunk = g * at.group_chunks + c;
    const std::uint32_t n = at.entries_of(chunk), end = slot + at.keep_of(chunk);
    for (std::uint32_t next = 0; slot < end; ++slot) {
      const std::uint32_t gap = gaps.next(n - next, end - slot);
      if (gap >= n - next) {
        good = good && gap == n - next;
        break;
      }
      slots[slot] = static_cast<std::uint16_t>(next + gap);
      next += gap + 1;
    }
    for (; slot < end; ++slot) slots[slot] = kUnused;
  }
  std::uint32_t next = 0;
  for (std::uint32_t left = upper; left > 0; --left, ++next) {
    next += gaps.next(slot - next, left);
    if (next >= slot || (slots[next] & kUnused) != 0) return false;
    slots[next] |= kUpper;
  }
  return good && gaps.ends();
}

/// A slot's code.
__device__ std::uint32_t code_of(const BitView& values, unsigned bits, std::uint32_t slot) {
  const std::uint32_t word = values.peek32(std::uint64_t{slot} * bits);
  return bits == 32 ? word : word & ((1u << bits) - 1);
}

__global__ void read(const Frames frames, const DecodePlan plan) {
  const Frame frame = frames[blockIdx.y];
  const UnitOf unit = unit_of_warp(frame, plan.groups);
  if (!unit) return;
  const Job& job = frame(plan.jobs)[unit.job];
  const ChunkBody& at = job.body;
  const LayerState& layer = frame.layer(job.layer);
  if (layer.decodes == 0 || frame(plan.readable)[unit.job] == 0) {
    if (lane() == 0) frame(plan.sound)[unit.number] = 0;
    return;
  }
  const std::uint64_t g = unit.index;
  const std::byte* const body = frame.message + layer.body_at;
  std::uint16_t* const slots = frame(plan.places) + job.first_slot + g * at.group_chunks * at.keep;
  bool good = true;
  if (lane() == 0) {
    GapReader gaps(body + frame(plan.starts)[job.first_group + g], load_half_word(body + 2 * g));
    const std::uint32_t upper =
        at.lists_upper ? load_half_word(body + at.levels_at + 2 * (g * at.level_words + 2)) : 0;
    good = read_slots(at, g, upper, gaps, slots);
  }
  __syncwarp();
  const std::uint32_t count = at.group_slots(g), bytes = at.value_bytes_of(count);
  const BitView values(body + at.values_of(g), bytes);
  for (std::uint32_t i = lane(); i < count; i += kLanes) {
    const std::uint32_t code = code_of(values, at.value_bits, i);
    good = good &&
           ((slots[i] & kUnused) != 0 ? code == 0 : format::valid_code(job.config.values, code));
  }
  good = good && values.zero(std::uint64_t{count} * at.value_bits, bytes);
  good = __all_sync(kAllLanes, good) != 0;
  if (lane() != 0) return;
  frame(plan.sound)[unit.number] = good ? 1 : 0;
  if (good) return;
  atomicOr(frame(plan.broken) + unit.job, 1u);
  frame.refuse(job.layer, Status::corrupt);
}

/// By a whole block: calls `visit(place, slot, group, held)` for what the chunks of a span keep.
template <typename Visit>
__device__ void visit_span(const Frame& frame, const DecodePlan& plan, const Job& job,
                           std::uint64_t span, Visit visit) {
  const ChunkBody& at = job.body;
  const std::uint64_t first = span * (kSpan / at.chunk);
  const std::uint64_t end =
      first + kSpan / at.chunk < at.chunks ? first + kSpan / at.chunk : at.chunks;
  const auto slots = static_cast<std::uint32_t>(end - first) * at.keep;
  const std::uint16_t* const held = frame(plan.places) + job.first_slot + first * at.keep;
  for (std::uint32_t i = threadIdx.x; i < slots; i += kScanThreads) {
    const std::uint64_t chunk = first + i / at.keep, rank = i % at.keep;
    if (rank >= at.keep_of(chunk) || (held[i] & kUnused) != 0) continue;
    const auto place = static_cast<std::uint32_t>((chunk - first) * at.chunk) + (held[i] & kPlace);
    const std::uint64_t g = chunk / at.group_chunks;
    visit(place, static_cast<std::uint32_t>((chunk - g * at.group_chunks) * at.keep + rank), g,
          held[i]);
  }
}

/// By a whole block: whether a message has values for the span.
__device__ bool is_sound(const Frame& frame, const DecodePlan& plan, const Job& job,
                         std::uint64_t span) {
  const ChunkBody& at = job.body;
  const std::uint64_t first = span * (kSpan / at.chunk);
  const std::uint64_t last =
      (first + kSpan / at.chunk < at.chunks ? first + kSpan / at.chunk : at.chunks) - 1;
  bool good = true;
  for (std::uint64_t g = first / at.group_chunks; g <= last / at.group_chunks; ++g)
    good = good && frame(plan.sound)[job.first_group + g] != 0;
  return good;
}

/// By a whole block: a span of a job's entries of messages first to before `behind`, into y.
__device__ void put_span(const Frames& frames, std::uint32_t first, std::uint32_t behind,
                         const DecodePlan& plan, const Job& job, std::uint64_t span, float* y,
                         DecodeInto into) {
  const ChunkBody& at = job.body;
  auto& values = shared<Values>();
  const std::uint64_t begin = span * kSpan;
  const std::uint64_t end = begin + kSpan < at.n ? begin + kSpan : at.n;
  float sum[kRows][4];
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row)
    load_four(y, begin + row * kRow + 4 * threadIdx.x, end, into, sum[row]);
  for (unsigned i = threadIdx.x; i < kSpan; i += kScanThreads) values.at[i] = 0;
  bool any = false;
#pragma unroll 1
  for (std::uint32_t m = first; m < behind; ++m) {
    const Frame frame = frames[m];
    const LayerState& layer = frame.layer(job.layer);
    if (layer.decodes == 0 || !is_sound(frame, plan, job, span)) continue;
    any = true;
    const std::byte* const body = frame.message + layer.body_at;
    __syncthreads();
    visit_span(frame, plan, job, span,
               [&](std::uint32_t place, std::uint32_t slot, std::uint64_t g, std::uint32_t held) {
                 const BitView codes(body + at.values_of(g), at.value_bytes_of(at.group_slots(g)));
                 const std::uint32_t own = code_of(codes, at.value_bits, slot);
                 const std::uint32_t upper = (held & kUpper) != 0 ? 1u : 0u;
                 values.at[place] = format::chunk_value(
                     job.config.values, at.lists_upper ? upper | own << 1 : own, [&](unsigned w) {
                       return static_cast<std::uint16_t>(
                           load_half_word(body + at.levels_at + 2 * (g * at.level_words + w)));
                     });
               });
    __syncthreads();
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        cuda::put(&sum[row][k], values.at[row * kRow + 4 * threadIdx.x + k], into);
    }
    __syncthreads();
    visit_span(frame, plan, job, span,
               [&](std::uint32_t place, std::uint32_t, std::uint64_t, std::uint32_t) {
                 values.at[place] = 0;
               });
  }
  if (!any) return;
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row)
    put_four(y, begin + row * kRow + 4 * threadIdx.x, end, sum[row], {});
}

__global__ void __launch_bounds__(kScanThreads)
    put(const Frames frames, const DecodePlan plan, const DecodeInto into) {
  const UnitOf unit = find_unit(frames.first, plan.spans, blockIdx.x);
  const Job& job = frames.first(plan.jobs)[unit.job];
  put_span(frames, 0, frames.count, plan, job, unit.index, frames.first.layer(job.layer).y, into);
}

__global__ void __launch_bounds__(kScanThreads)
    put_sequence(const Frames frames, const std::uint32_t m, const DecodePlan plan) {
  const UnitOf unit = find_unit(frames.first, plan.sequence_spans, blockIdx.x);
  const Job& job = frames.first(plan.jobs)[unit.job];
  float* const sequence = frames.first(plan.sequence) + job.first_entry;
  put_span(frames, m, m + 1, plan, job, unit.index, sequence, {});
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan) {
  const std::size_t count = count_of_method<MethodId::chunk_topk>(layers);
  plan = {};
  if (count == 0) return;
  SplitMaker groups(layout, count), spans(layout, count), sequence_spans(layout, count),
      tiles(layout, count);
  const Sums sums = plan_jobs(layers, layout, plan, [&](Job& job) {
    const bool tiled = job.has_tiles();
    groups.add(job.body.groups);
    spans.add(tiled ? 0 : divide_up(job.body.n, kSpan));
    sequence_spans.add(tiled ? divide_up(job.body.n, kSpan) : 0);
    tiles.add(tiled ? stacks_of(job.tiles) : 0);
  });
  plan.groups = groups.split();
  plan.spans = spans.split();
  plan.sequence_spans = sequence_spans.split();
  plan.tiles = tiles.split();
  plan.sequence = layout.call_scratch<float>(sums.entries);
  plan.broken = layout.zeroed<std::uint32_t>(count);
  plan.readable = layout.zeroed<std::uint32_t>(count);
  plan.places = layout.scratch<std::uint16_t>(sums.slots);
  plan.starts = layout.scratch<std::uint64_t>(sums.groups);
  plan.sound = layout.scratch<std::uint32_t>(sums.groups);
}

void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  queue.launch_blocks_each(check, plan.count, frames.count, kScanThreads, 0, frames, plan);
  queue.launch_warps_each(read, plan.groups.units, frames.count, frames, plan);
  queue.launch_blocks(put, plan.spans.units, kScanThreads, 0, frames, plan, into);
}

void decode_in_turn(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
                    DecodeInto into, Queue& queue) {
  for (std::uint32_t m = turn.first; m < turn.first + turn.count; ++m) {
    queue.launch_blocks(put_sequence, plan.sequence_spans.units, kScanThreads, 0, frames, m, plan);
    add_sequences(frames, m, plan, into, queue);
  }
}

}  // namespace atomo::cuda::chunk_topk
