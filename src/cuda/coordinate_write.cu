// SPDX-License-Identifier: Apache-2.0
/// Coordinates on their way out: the choice of how to write a segment, its word and its bits.
///
/// The choice stands in format/coordinate_body.hpp, the words in rice.hpp; chunks were rounded by
/// coordinate.cu.
///
/// Mapping. A warp a chunk of 4,096 entries, lane l of a list's entries 128 l to 128 l + 127. weigh
/// adds up the bits of gaps and levels under the up to three parameters of each of the six sums;
/// the last warp of a segment chooses, lays the chunks' parts of its streams end to end and clears
/// what they will fill. write_chunk: a lane counts its bits, a scan places them, it writes them,
/// sharing its first and last word with its neighbours.
///
/// Traffic an entry: each kernel reads 0.4 bytes and the entries whose level is above 1 (both when
/// bits are counted and when they are written, the second time from L1); content is cleared once
/// and written once. The least possible is the content. Lanes that write read large levels 512
/// bytes apart, which only the L1 cache makes up for: dense streams would gain from lanes that take
/// neighbouring entries.
///
/// Shared memory: 576 bytes (weigh) and the scans'. Sums are integers; bits meet in zeroed words by
/// atomicOr: no order matters. Tensors are aligned to their entries, everything else is the
/// workspace.

#include "cuda/bit_stream.cuh"
#include "cuda/coordinate.cuh"
#include "cuda/cub.cuh"

namespace atomo::cuda::coordinate {
namespace {

// ---- a chunk that a warp has in hand

struct ChunkInHand {
  std::uint32_t layer;
  std::uint64_t segment;   ///< number among all
  std::uint32_t index;     ///< in its segment
  std::uint32_t siblings;  ///< chunks of its segment
  std::uint32_t place;     ///< its first place in the segment
  std::uint32_t entries, segment_entries;
  Chunk* states;  ///< of its segment's chunks
  const ChunkBits* bits;
  std::uint32_t* slot;
  Entries x;
  std::uint64_t begin;  ///< its first entry
  double step, scale;
  std::uint32_t at_top;

  [[nodiscard]] __device__ bool is_last() const { return index + 1 == siblings; }
  [[nodiscard]] __device__ std::uint32_t level(std::uint32_t i, std::uint32_t carried) const {
    const double entry = x(begin + i);
    const std::uint64_t fixed =
        at_top != 0 ? grid_fixed_at_top(entry, step, scale) : grid_fixed(entry, scale);
    return static_cast<std::uint32_t>(fixed >> 32) + carried;
  }
};

/// False when there is no such chunk, or nothing of its layer is sent.
__device__ bool take_chunk(const Frame& frame, const Plan& plan, ChunkInHand& out) {
  const std::uint64_t number = warp_in_grid();
  if (number >= plan.chunks.units) return false;
  const UnitOf unit = find_unit(frame, plan.chunks, number);
  const Job& job = frame(plan.jobs)[unit.job];
  const float price = frame(plan.states)[unit.job].step;
  if (!(price > 0)) return false;
  const std::uint64_t segment = unit.index / kSegmentChunks, n = frame.info(job.layer).n;
  const std::uint64_t rest = n - segment * kCoordinateSegment;
  out.layer = job.layer;
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
  out.x = frame.entries(job.layer);
  out.begin = unit.index * kCoordinateChunk;
  out.step = price;
  out.scale = grid_scale(price);
  out.at_top = out.states[out.index].at_top;
  return true;
}

/// A whole warp adds up the counts of the segment's chunks.
__device__ SegmentCounts count_segment(const ChunkInHand& chunk) {
  SegmentCounts counts;
  counts.entries = chunk.segment_entries;
  const bool mine = lane() < chunk.siblings;
  counts.nonzero = warp_sum(mine ? chunk.states[lane()].nonzero : 0u);
  counts.large = warp_sum(mine ? chunk.states[lane()].large : 0u);
  counts.total = warp_sum(mine ? chunk.states[lane()].total : std::uint64_t{0});
  return counts;
}

/// A whole warp finds the place behind the list's last entry in the first `count` chunks.
__device__ std::uint32_t place_after(const ChunkInHand& chunk, unsigned list, std::uint32_t count) {
  return warp_max(lane() < count ? chunk.states[lane()].after[list] : 0u);
}

/// A whole warp finds the place from which this lane's first gap of the list counts.
__device__ std::uint32_t gap_begin(const ChunkInHand& chunk, unsigned list,
                                   const LaneEntries& entries) {
  const std::uint32_t after = entries.after();
  const std::uint32_t before =
      __ballot_sync(kAllLanes, after != 0) & ((std::uint32_t{1} << lane()) - 1);
  const int from = before == 0 ? 0 : 31 - __clz(static_cast<int>(before));
  const std::uint32_t neighbour = chunk.place + __shfl_sync(kAllLanes, after, from);
  const std::uint32_t seed = place_after(chunk, list, chunk.index);
  return before == 0 ? seed : neighbour;
}

// ---- the choice

using Tries = std::uint32_t[kRiceTries];

__device__ void add_gaps(const ChunkInHand& chunk, unsigned list, unsigned k, Tries& bits) {
  const LaneEntries entries = lane_entries(*chunk.bits, list);
  std::uint32_t next = gap_begin(chunk, list, entries);
  entries.visit([&](std::uint32_t i) {
    const std::uint32_t place = chunk.place + i, gap = place - next;
    next = place + 1;
    for (unsigned j = 0; j < kRiceTries; ++j) bits[j] += rice_bits(gap, k + j, kGapRawBits);
  });
}

/// A lane's part of the words of all levels above 1. `k` by SegmentSum.
__device__ void add_large_levels(const ChunkInHand& chunk, const unsigned (&k)[kSegmentSums],
                                 Tries (&bits)[kSegmentSums]) {
  for (unsigned group = 0; group < kChunkWords; group += kLanes) {
    const std::uint32_t large = chunk.bits->large[group + lane()];
    const std::uint32_t carried = chunk.bits->carried[group + lane()];
    for (std::uint32_t left = __ballot_sync(kAllLanes, large != 0); left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      const std::uint32_t word = __shfl_sync(kAllLanes, large, from);
      const std::uint32_t up = __shfl_sync(kAllLanes, carried, from);
      if ((word >> lane() & 1) == 0) continue;
      const std::uint32_t i = (group + static_cast<unsigned>(from)) * kLanes + lane();
      const std::uint32_t level = chunk.level(i, up >> lane() & 1);
      for (unsigned j = 0; j < kRiceTries; ++j) {
        bits[kEveryLevels][j] += rice_bits(level - 1, k[kEveryLevels] + j, kLevelBits);
        bits[kOthersLevels][j] += rice_bits(level - 2, k[kOthersLevels] + j, kLevelBits);
        bits[kDenseLevels][j] += rice_bits(level, k[kDenseLevels] + j, kLevelBits);
      }
    }
  }
}

/// By a whole warp: the chunk's bits under every parameter that is tried; sum s and try j in lane
/// s * kRiceTries + j.
__device__ std::uint32_t weigh_chunk(const ChunkInHand& chunk, const SegmentCounts& counts) {
  unsigned k[kSegmentSums];
#pragma unroll
  for (unsigned s = 0; s < kSegmentSums; ++s)
    k[s] = sum_range(static_cast<SegmentSum>(s), counts).first;
  Tries bits[kSegmentSums] = {};
  if (counts.tries_lists()) {
    add_gaps(chunk, kEvery, k[kEveryGaps], bits[kEveryGaps]);
    add_gaps(chunk, kOnes, k[kOnesGaps], bits[kOnesGaps]);
    add_gaps(chunk, kOthers, k[kOthersGaps], bits[kOthersGaps]);
  }
  add_large_levels(chunk, k, bits);
  const Chunk& state = chunk.states[chunk.index];
  const std::uint32_t ones = state.nonzero - state.large, zeros = chunk.entries - state.nonzero;
  std::uint32_t mine = 0;
#pragma unroll
  for (unsigned s = 0; s < kSegmentSums; ++s) {
#pragma unroll
    for (unsigned j = 0; j < kRiceTries; ++j) {
      std::uint32_t sum = warp_sum(bits[s][j]);
      if (s == kEveryLevels) sum += ones * rice_bits(0, k[s] + j, kLevelBits);
      if (s == kDenseLevels) {
        sum +=
            zeros * rice_bits(0, k[s] + j, kLevelBits) + ones * rice_bits(1, k[s] + j, kLevelBits);
      }
      if (lane() == s * kRiceTries + j) mine = sum;
    }
  }
  return mine;
}

struct ChooseMemory {
  std::uint32_t sums[kMaxWarps][kSegmentSums * kRiceTries];
};

/// The place of a parameter's sum.
__device__ unsigned sum_at(SegmentSum sum, unsigned k, const SegmentCounts& counts) {
  return sum * kRiceTries + k - sum_range(sum, counts).first;
}

/// By a whole warp, all chunks weighed: the segment's word, and where each chunk's parts of the
/// streams begin, of the second of two lists from the content's end downward.
__device__ SegmentPlan choose(const ChunkInHand& chunk, const SegmentCounts& counts) {
  constexpr unsigned kSums = kSegmentSums * kRiceTries;
  std::uint32_t* const sums = shared<ChooseMemory>().sums[warp_in_block()];
  std::uint32_t ends[kLists];
  for (unsigned list = 0; list < kLists; ++list)
    ends[list] = chunk.segment_entries - place_after(chunk, list, chunk.siblings);
  if (lane() < kSums) {
    const unsigned s = lane() / kRiceTries;
    std::uint32_t sum = 0;
    for (unsigned c = 0; c < chunk.siblings; ++c) sum += __ldcg(&chunk.states[c].sums[lane()]);
    const unsigned k = sum_range(static_cast<SegmentSum>(s), counts).first + lane() % kRiceTries;
    if (s == kEveryGaps) sum += rice_bits(ends[kEvery], k, kGapRawBits);
    if (s == kOnesGaps) sum += rice_bits(ends[kOnes], k, kGapRawBits);
    if (s == kOthersGaps) sum += rice_bits(ends[kOthers], k, kGapRawBits);
    sums[lane()] = sum;
  }
  __syncwarp();
  SegmentPlan plan = plan_segment(
      counts, [&](SegmentSum sum, unsigned k) { return sums[sum_at(sum, k, counts)]; });
  plan.word.bytes = static_cast<std::uint32_t>((plan.bits + 7) / 8);

  const SegmentWord how = plan.word;
  std::uint32_t bits[2] = {};
  if (lane() < chunk.siblings) {
    const Chunk& state = chunk.states[lane()];
    const auto at = [&](SegmentSum sum, unsigned k) {
      return __ldcg(&state.sums[sum_at(sum, k, counts)]);
    };
    const auto left = static_cast<std::uint32_t>(chunk.segment_entries - lane() * kCoordinateChunk);
    const std::uint32_t entries = left < kCoordinateChunk ? left : kCoordinateChunk;
    if (how.mode == SegmentMode::dense) {
      bits[0] = state.nonzero + (how.level == kMaxLevelRice ? entries * (kLevelBits + 1)
                                                            : at(kDenseLevels, how.level));
    } else if (how.mode == SegmentMode::one_list) {
      bits[0] = state.nonzero + at(kEveryGaps, how.others) + at(kEveryLevels, how.level);
    } else {
      bits[0] = state.nonzero - state.large + at(kOnesGaps, how.ones);
      bits[1] = state.large + at(kOthersGaps, how.others) + at(kOthersLevels, how.level);
    }
  }
  std::uint32_t all;
  const std::uint32_t before = warp_exclusive_sum(bits[0], all);
  const std::uint32_t behind = warp_exclusive_sum(bits[1], all);
  if (lane() < chunk.siblings) {
    chunk.states[lane()].bit[0] = before;
    chunk.states[lane()].bit[1] = 8 * plan.word.bytes - behind;
  }
  return plan;
}

__global__ void weigh(Frame frame, Plan plan) {
  ChunkInHand chunk;
  if (!take_chunk(frame, plan, chunk)) return;
  const SegmentCounts counts = count_segment(chunk);
  std::uint32_t* const word = frame(plan.words) + chunk.segment;
  if (counts.nonzero == 0) {
    if (lane() == 0 && chunk.index == 0) *word = 0;
    return;
  }
  const std::uint32_t mine = weigh_chunk(chunk, counts);
  if (lane() < kSegmentSums * kRiceTries) chunk.states[chunk.index].sums[lane()] = mine;
  __syncwarp();
  const std::uint32_t ticket = lane() == 0 ? take_ticket(frame(plan.tickets) + chunk.segment) : 0;
  if (__shfl_sync(kAllLanes, ticket, 0) + 1 != chunk.siblings) return;
  __syncwarp();  // a shuffle orders no memory
  const SegmentPlan chosen = choose(chunk, counts);
  if (lane() == 0) *word = chosen.word.pack();
  // The word that the last bit would share with one more, too: it may be no end at all.
  auto* const slot = reinterpret_cast<uint4*>(chunk.slot);
  for (std::uint64_t i = lane(); i < chosen.bits / 128 + 1; i += kLanes) slot[i] = uint4{};
}

// ---- writing

/// Adds lengths up.
struct BitCounter {
  std::uint32_t bits = 0;
  __device__ void put(RiceWord word) { bits += word.count; }
};

/// Sets the bits of a stream that goes down, from those below `bit` on (BitSetter).
class DownwardBitSetter {
 public:
  __device__ DownwardBitSetter(std::uint32_t* words, std::uint64_t bit)
      : next_(words + (bit + 31) / 32), fill_(static_cast<unsigned>(-bit % 32)) {}

  /// The low `length` bits of `value`, which has no others; `length` is 1 to 32.
  __device__ void put(std::uint32_t value, unsigned length) {
    fill_ += length;
    pending_ |= std::uint64_t{value} << (64 - fill_);
    if (fill_ < 32) return;
    flush();
    --next_;
    pending_ <<= 32;
    fill_ -= 32;
  }
  /// Must be called after the last bit.
  __device__ void flush() {
    const auto word = static_cast<std::uint32_t>(pending_ >> 32);
    if (word != 0) atomicOr(next_ - 1, word);
  }

 private:
  std::uint32_t* next_;  ///< behind the word
  std::uint64_t pending_ = 0;
  unsigned fill_;
};

struct RiceSetter {
  BitSetter out;
  __device__ void put(RiceWord word) {
    out.put(static_cast<std::uint32_t>(word.bits), word.count < 32 ? word.count : 32);
    if (word.count > 32) out.put(static_cast<std::uint32_t>(word.bits >> 32), word.count - 32);
  }
};

struct DownwardRiceSetter {
  DownwardBitSetter out;
  __device__ void put(RiceWord word) {
    if (word.count > 32) out.put(static_cast<std::uint32_t>(word.bits >> 32), word.count - 32);
    out.put(static_cast<std::uint32_t>(word.bits), word.count < 32 ? word.count : 32);
  }
};

/// A list, or all entries, as a segment writes them.
struct Stream {
  unsigned list = kEvery;
  bool dense = false;
  bool with_levels = false;
  std::uint32_t base = 0;  ///< taken off levels
  unsigned gap_k = 0, level_k = 0;
};

template <Direction direction, typename Out>
__device__ void put_entries(const ChunkInHand& chunk, const Stream& stream, Out& out) {
  const ChunkBits& bits = *chunk.bits;
  const auto level_at = [&](std::uint32_t i) {
    if (!has(bits.large, i)) return has(bits.nonzero, i) ? 1u : 0u;
    return chunk.level(i, has(bits.carried, i) ? 1 : 0);
  };
  const auto sign_at = [&](std::uint32_t i) { return std::uint64_t{has(bits.negative, i)}; };
  if (stream.dense) {
    const std::uint32_t first = LaneEntries::first();
    for (std::uint32_t i = first; i < first + LaneEntries::kCount && i < chunk.entries; ++i) {
      RiceWord word = rice_word<direction>(level_at(i), stream.level_k, kLevelBits);
      if (has(bits.nonzero, i)) word = join<direction>(word, {sign_at(i), 1});
      out.put(word);
    }
    return;
  }
  const LaneEntries entries = lane_entries(bits, stream.list);
  std::uint32_t next = gap_begin(chunk, stream.list, entries);
  entries.visit([&](std::uint32_t i) {
    const std::uint32_t place = chunk.place + i;
    const RiceWord gap = rice_word<direction>(place - next, stream.gap_k, kGapRawBits);
    next = place + 1;
    out.put(join<direction>(gap, {sign_at(i), 1}));
    if (stream.with_levels)
      out.put(rice_word<direction>(level_at(i) - stream.base, stream.level_k, kLevelBits));
  });
}

/// By a whole warp: the chunk's part of a stream, which begins at `bit` of the slot and goes up, or
/// below it and goes down; behind the segment's last the end mark.
template <Direction direction>
__device__ void write_stream(const ChunkInHand& chunk, const Stream& stream, std::uint32_t bit) {
  using Setter = std::conditional_t<direction == Direction::upward, RiceSetter, DownwardRiceSetter>;
  BitCounter counter;
  put_entries<direction>(chunk, stream, counter);
  std::uint32_t all;
  const std::uint32_t before = warp_exclusive_sum(counter.bits, all);
  Setter setter{{chunk.slot, direction == Direction::upward ? bit + before : bit - before}};
  put_entries<direction>(chunk, stream, setter);
  if (!stream.dense && chunk.is_last()) {
    const std::uint32_t end =
        chunk.segment_entries - place_after(chunk, stream.list, chunk.siblings);
    if (lane() == kLanes - 1) setter.put(rice_word<direction>(end, stream.gap_k, kGapRawBits));
  }
  setter.out.flush();
}

__global__ void write_chunk(Frame frame, Plan plan) {
  ChunkInHand chunk;
  if (!take_chunk(frame, plan, chunk)) return;
  const SegmentWord how = SegmentWord::unpack(frame(plan.words)[chunk.segment]);
  if (how.mode == SegmentMode::zero) return;
  const Chunk& state = chunk.states[chunk.index];
  if (how.mode == SegmentMode::dense) {
    write_stream<Direction::upward>(
        chunk, {.dense = true, .with_levels = true, .level_k = how.level}, state.bit[0]);
  } else if (how.mode == SegmentMode::one_list) {
    write_stream<Direction::upward>(chunk, {kEvery, false, true, 1, how.others, how.level},
                                    state.bit[0]);
  } else {
    write_stream<Direction::upward>(chunk, {kOnes, false, false, 0, how.ones, 0}, state.bit[0]);
    write_stream<Direction::downward>(chunk, {kOthers, false, true, 2, how.others, how.level},
                                      state.bit[1]);
  }
}

}  // namespace

void write_segments(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_warps(weigh, plan.chunks.units, frame, plan);
  queue.launch_warps(write_chunk, plan.chunks.units, frame, plan);
}

}  // namespace atomo::cuda::coordinate
