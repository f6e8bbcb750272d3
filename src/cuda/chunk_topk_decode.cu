// SPDX-License-Identifier: Apache-2.0
/// Reading chunked top-k; nothing of a body is trusted.
///
/// Mapping, two launches with a part of the grid for each message:
///   check    a block a layer: lengths, levels and their padding; where each group's gaps begin
///   read     eight lanes a group of chunks: all load its gaps into shared memory; one reads them word by
///            word, as each one's parameter follows from those before, beside those of the warp's other
///            groups; then all check the codes
/// Then chunk_put.cu and tile_transform.cu, a launch each where a layer needs it, put what slots hold into
/// the tensor, of all messages.
///
/// Traffic: 2 bytes written a slot, and the message.
///
/// Shared memory: a scan's (check), four groups' gaps and a bit a slot, 19 KiB at most (read).
/// Workspace: 2 bytes a slot and 8 bytes a group of each message. The message has any alignment.

#include "coding/rice.hpp"
#include "cuda/chunk_kept.cuh"
#include "cuda/cub.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

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

/// Lanes that take a group together; the first of them reads its gaps, beside those of the other groups.
constexpr unsigned kTeam = 8, kTeams = kLanes / kTeam;

/// The gaps of a group, read one after the other from shared memory. What each one waits for is short:
/// the bits that come next are in registers, those behind them on their way.
class GapReader {
 public:
  /// `words` has a word more than `count`, at least 1: 0, as are the bits behind the last gap.
  __device__ GapReader(const std::uint32_t* words, std::uint32_t count)
      : words_(words), last_(count - 1), first_(words[0]), low_(words[1]), high_(0) {}

  /// The next gap where its word is not raw; any number where it is.
  struct Word {
    std::uint32_t gap;
    unsigned bits;
    bool raw;
  };
  [[nodiscard]] __device__ Word look(std::uint32_t left, std::uint32_t marks) const {
    const unsigned k = format::gap_parameter_of_floats(left, marks);
    const auto ends = static_cast<unsigned>(core::bit_width(~first_ & (first_ + 1)));
    const std::uint32_t field = __funnelshift_r(first_, 0, ends) & ((1u << k) - 1);
    return {(ends - 1) << k | field, ends + k, ends - 1 >= coding::kRiceLimit};
  }
  [[nodiscard]] __device__ std::uint32_t next(std::uint32_t left, std::uint32_t marks) {
    const Word word = look(left, marks);
    if (!word.raw) {
      move(word.bits);
      return word.gap;
    }
    move(coding::kRiceLimit);
    const std::uint32_t gap = first_ & ((1u << format::kRawGapBits) - 1);
    move(format::kRawGapBits);
    good_ = good_ && gap >> format::gap_parameter(left, marks) >= coding::kRiceLimit;
    return gap;
  }
  /// At most 31 bits. Damaged gaps end far behind the last word, which stands for all of those.
  __device__ void move(unsigned count) {
    first_ = __funnelshift_r(first_, __funnelshift_r(low_, high_, behind_ % 32), count);
    behind_ += count;
    const std::uint32_t at = behind_ / 32 < last_ ? behind_ / 32 : last_;
    low_ = words_[at];
    high_ = words_[at + 1];
  }
  /// What was read are words of the format, and nothing but less than a byte of zeros follows in so many
  /// bits.
  [[nodiscard]] __device__ bool ends(std::uint32_t bits) const {
    const std::uint32_t at = behind_ - 32;
    return good_ && at <= bits && bits - at < 8 && (first_ & ((1u << (bits - at)) - 1)) == 0;
  }

 private:
  const std::uint32_t* words_;
  std::uint32_t last_;
  std::uint32_t first_;        ///< the next 32 bits
  std::uint32_t low_, high_;   ///< the words that hold those behind
  std::uint32_t behind_ = 32;  ///< where these begin
  bool good_ = true;
};

/// By one lane: the slots of a chunk of n entries; false when its gaps contradict the format.
__device__ bool read_chunk(std::uint32_t n, std::uint32_t keep, GapReader& gaps,
                           std::uint16_t* slots) {
  constexpr std::uint32_t kTogether = 4;
  std::uint32_t left = n;
  for (std::uint32_t marks = keep; marks > 0;) {
    // nearly all: words that are not raw and entries of the chunk, one question for some of them
    if (marks >= kTogether) {
      GapReader ahead = gaps;
      std::uint32_t left_behind[kTogether], still = left;
      bool usual = true;
#pragma unroll
      for (std::uint32_t k = 0; k < kTogether; ++k) {
        const GapReader::Word word = ahead.look(still, marks - k);
        usual = usual && !word.raw && word.gap < still;
        ahead.move(word.bits);
        still -= word.gap + 1;
        left_behind[k] = still;
      }
      if (usual) {
#pragma unroll
        for (std::uint32_t k = 0; k < kTogether; ++k)
          slots[k] = static_cast<std::uint16_t>(n - 1 - left_behind[k]);
        gaps = ahead;
        left = still;
        marks -= kTogether;
        slots += kTogether;
        continue;
      }
    }
#pragma unroll 1
    for (std::uint32_t k = 0; k < kTogether && marks > 0; ++k) {
      const std::uint32_t gap = gaps.next(left, marks);
      if (gap >= left) {
        for (; marks > 0; --marks) *slots++ = kUnused;
        return gap == left;
      }
      left -= gap + 1;
      *slots++ = static_cast<std::uint16_t>(n - 1 - left);
      --marks;
    }
  }
  return true;
}

/// By one lane: what the slots of a group hold and, a bit a slot, which of them are listed as upper; false
/// when the gaps contradict the format.
__device__ bool read_slots(const ChunkBody& at, std::uint64_t g, std::uint32_t upper,
                           GapReader& gaps, std::uint16_t* slots, std::uint32_t* uppers) {
  // what memory says of all chunks is asked for once: `slots` might overwrite it
  const std::uint32_t chunks = at.chunks_of(g), count = at.group_slots(g), entries = at.chunk,
                      keep = at.keep;
  const std::uint32_t last_entries = at.entries_of(g * at.group_chunks + chunks - 1);
  bool good = true;
  for (std::uint32_t c = 0; c < chunks; ++c) {
    const bool last = c + 1 == chunks;
    good = read_chunk(last ? last_entries : entries, last ? count - c * keep : keep, gaps,
                      slots + c * keep) &&
           good;
  }
  std::uint32_t next = 0;
  for (std::uint32_t left = upper; left > 0; --left, ++next) {
    next += gaps.next(count - next, left);
    if (next >= count) return false;
    atomicOr(uppers + next / 32, 1u << next % 32);
  }
  return good;
}

/// By a team: the first `count` words of a stream.
__device__ void load_words(const BitView& bits, std::uint32_t count, std::uint32_t* words) {
  constexpr unsigned kTogether = 8;
  const unsigned rank = lane() % kTeam;
  for (std::uint32_t begin = rank; begin < count; begin += kTogether * kTeam) {
    BitView::Pair pairs[kTogether];
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k)
      pairs[k] = bits.load_pair(32 * std::uint64_t{begin + k * kTeam});
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k)
      if (begin + k * kTeam < count) words[begin + k * kTeam] = pairs[k].bits();
  }
  if (rank >= count) return;
  // a lane's first and last word may be partly outside
  words[rank] = bits.peek32(32 * std::uint64_t{rank});
  const std::uint32_t last = count - 1 - (count - 1 - rank) % kTeam;
  words[last] = bits.peek32(32 * std::uint64_t{last});
}

/// By a team: marks what is listed as upper, and checks the codes.
__device__ bool check_slots(const Job& job, const BitView& values, std::uint32_t count,
                            const std::uint32_t* uppers, std::uint16_t* slots) {
  constexpr unsigned kTogether = 8;
  const unsigned bits = job.body.value_bits;
  const format::ChunkValues kind = job.config.values;
  const auto holds = [&](std::uint32_t held, std::uint32_t code) {
    return (held & kUnused) != 0 ? (held & kUpper) == 0 && code == 0
                                 : format::valid_code(kind, code);
  };
  bool good = true;
  for (std::uint32_t begin = lane() % kTeam; begin < count; begin += kTogether * kTeam) {
    std::uint32_t held[kTogether];
    BitView::Pair codes[kTogether];
    bool whole = true;
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const std::uint32_t i = begin + k * kTeam;
      held[k] = i < count ? slots[i] : 0;
      codes[k] = values.load_pair(std::uint64_t{i} * bits);
    }
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const std::uint32_t i = begin + k * kTeam;
      if (i >= count) continue;
      if ((uppers[i / 32] >> i % 32 & 1u) != 0) {
        held[k] |= kUpper;
        slots[i] = static_cast<std::uint16_t>(held[k]);
      }
      whole = whole && codes[k].whole;
      good = good && holds(held[k], code_in(codes[k].bits(), bits));
    }
    if (whole) continue;
    // at the ends of the values; what was not whole was 0
    const std::uint32_t end = begin + kTogether * kTeam;
#pragma unroll 1
    for (std::uint32_t i = begin; i < count && i < end; i += kTeam)
      good = good && holds(slots[i], code_of(values, bits, i));
  }
  return good;
}

__global__ void __launch_bounds__(kLanes) read(const Frames frames, const DecodePlan plan) {
  const Frame frame = frames[blockIdx.y];
  const unsigned team = lane() / kTeam, rank = lane() % kTeam;
  const std::uint64_t number = std::uint64_t{blockIdx.x} * kTeams + team;
  const UnitOf unit = number < plan.groups.units ? find_unit(frame, plan.groups, number) : UnitOf{};
  const Job& job = frame(plan.jobs)[unit.job];
  const ChunkBody& at = job.body;
  const LayerState& layer = frame.layer(job.layer);
  const bool readable = unit && layer.decodes != 0 && frame(plan.readable)[unit.job] != 0;
  const std::uint64_t g = unit.index;
  const std::byte* const body = frame.message + layer.body_at;
  std::uint16_t* const slots = frame(plan.places) + job.first_slot + g * at.group_chunks * at.keep;
  std::uint32_t* const words =
      dynamic_shared<std::uint32_t>() + team * (plan.gap_words + plan.upper_words);
  std::uint32_t* const uppers = words + plan.gap_words;
  const std::uint32_t slot_count = at.group_slots(g);
  std::uint32_t bytes = 0, count = 0;
  bool good = readable;
  if (good) {
    bytes = load_half_word(body + 2 * g);
    const BitView bits(body + frame(plan.starts)[job.first_group + g], bytes);
    good = bytes <= 4 * (plan.gap_words - 1);  // as many as gaps have at most
    count = good && bytes > 0 ? (bytes + 3) / 4 : 1;
    load_words(bits, count + 1, words);
    for (std::uint32_t i = rank; i < divide_up(slot_count, 32); i += kTeam) uppers[i] = 0;
  }
  __syncwarp();
  if (good && rank == 0) {
    GapReader gaps(words, count);
    const std::uint32_t upper =
        at.lists_upper ? load_half_word(body + at.levels_at + 2 * (g * at.level_words + 2)) : 0;
    good = read_slots(at, g, upper, gaps, slots, uppers) && gaps.ends(8 * bytes);
  }
  __syncwarp();
  if (good) {
    const std::uint32_t value_bytes = at.value_bytes_of(slot_count);
    const BitView values(body + at.values_of(g), value_bytes);
    good = check_slots(job, values, slot_count, uppers, slots) &&
           values.zero(std::uint64_t{slot_count} * at.value_bits, value_bytes);
  }
  good = __all_sync(((1u << kTeam) - 1) << team * kTeam, good) != 0;
  if (rank != 0 || good || !readable) return;
  atomicOr(frame(plan.broken) + unit.job, 1u);
  frame.refuse(job.layer, Status::corrupt);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan) {
  const std::size_t count = count_of_method<MethodId::chunk_topk>(layers);
  plan = {};
  if (count == 0) return;
  SplitMaker groups(layout, count), spans(layout, count), tiles(layout, count),
      transforms(layout, count);
  const Sums sums = plan_jobs(layers, layout, plan, [&](Job& job) {
    groups.add(job.body.groups);
    plan.gap_words = std::max(
        plan.gap_words, static_cast<std::uint32_t>(divide_up(job.body.max_gap_bytes(), 4)) + 1);
    plan.upper_words = std::max(plan.upper_words,
                                static_cast<std::uint32_t>(divide_up(job.body.group_slots(0), 32)));
    spans.add(job.has_tiles() ? 0 : divide_up(job.body.n, kSpan));
    const std::uint64_t stacks = job.has_tiles() ? stacks_of(job.tiles) : 0;
    tiles.add(job.transforms() ? 0 : stacks);
    transforms.add(job.transforms() ? stacks : 0);
  });
  plan.groups = groups.split();
  plan.spans = spans.split();
  plan.tiles = tiles.split();
  plan.transforms = transforms.split();
  plan.broken = layout.zeroed<std::uint32_t>(count);
  plan.readable = layout.zeroed<std::uint32_t>(count);
  plan.places = layout.scratch<std::uint16_t>(sums.slots);
  plan.starts = layout.scratch<std::uint64_t>(sums.groups);
}

void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  queue.launch_blocks_each(check, plan.count, frames.count, kScanThreads, 0, frames, plan);
  queue.launch_blocks_each(read, divide_up(plan.groups.units, kTeams), frames.count, kLanes,
                           kTeams * (plan.gap_words + plan.upper_words) * sizeof(std::uint32_t),
                           frames, plan);
  put_entries(frames, plan, into, queue);
  put_transforms(frames, plan, into, queue);
}

}  // namespace atomo::cuda::chunk_topk
