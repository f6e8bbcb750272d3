// SPDX-License-Identifier: Apache-2.0
/// Coordinates on their way out: the choice of how to write a segment, and its word.
///
/// The choice stands in format/coordinate_body.hpp; chunks were rounded by coordinate.cu.
///
/// Mapping. A warp a chunk of 4,096 entries, lane l of a list's entries 128 l to 128 l + 127, word by
/// word. Entries whose level is above 1 are first listed in shared memory, so that 128 of them are
/// read and rounded together, neighbours of the list by neighbouring lanes. weigh
/// adds up the bits of gaps and levels under the up to three parameters of each of the six sums, those of
/// the gaps of all three lists in one pass;
/// the last warp of a segment chooses, lays the chunks' parts of its streams end to end and clears
/// what they will fill.
///
/// Traffic an entry: 0.4 bytes and the entries whose level is above 1; content is cleared. The least
/// possible is the content.
///
/// Shared memory: 8 KiB a warp, 1 KiB and the scans'. Sums are integers: no order matters. Tensors are
/// aligned to their entries, everything else is the workspace.

#include "cuda/coordinate_chunk.cuh"

namespace atomo::cuda::coordinate {
namespace {

// ---- the choice

using Tries = std::uint32_t[kRiceTries];

/// What a value takes beyond the 1 + k bits of every word.
__device__ void add_rest(std::uint32_t value, unsigned k, unsigned raw, Tries& bits) {
  const bool is_short = value >> k < kRiceLimit;
#pragma unroll
  for (unsigned j = 0; j < kRiceTries; ++j) bits[j] += is_short ? value >> (k + j) : 0;
  if (is_short) return;
#pragma unroll
  for (unsigned j = 0; j < kRiceTries; ++j) bits[j] += rice_bits(value, k + j, raw) - (1 + k + j);
}

/// A chunk's bits under every parameter that is tried: sum s and try j in lane s * kRiceTries + j.
struct WeighedSums {
  std::uint32_t mine = 0;
  /// By a whole warp: `words` words, each lane with what its own take beyond 1 + k bits.
  __device__ void take(SegmentSum sum, unsigned k, const Tries& rest, std::uint32_t words) {
#pragma unroll
    for (unsigned j = 0; j < kRiceTries; ++j) {
      const std::uint32_t all = __reduce_add_sync(kAllLanes, rest[j]) + words * (1 + k + j);
      if (lane() == sum * kRiceTries + j) mine = all;
    }
  }
};

/// What the gaps of a lane's entries take beyond the 1 + k bits of every word, in all three lists.
struct GapRests {
  Tries every = {}, ones = {}, others = {};
};

/// By a whole warp, each lane its own entries: weighs their gaps under the three parameters and those
/// behind them, and lists the entries of levels above 1, of which the lane's first is number `at`. An
/// entry is in the list of all and in one of the others.
__device__ GapRests weigh_gaps(const ChunkInHand& chunk, const LaneWords& words, unsigned every_k,
                               unsigned ones_k, unsigned others_k, LargeLevels& large,
                               std::uint32_t at) {
  // A lane has so few entries that of two sums each fits 16 bits.
  static_assert(LaneEntries::kCount * (kRiceLimit + kGapRawBits) < 1u << 16);
  GapRests rests;
  Tries both = {};
  std::uint32_t next = gap_begin(chunk, kEvery, words.of(kEvery)),
                next_one = gap_begin(chunk, kOnes, words.of(kOnes)),
                next_other = gap_begin(chunk, kOthers, words.of(kOthers));
  std::uint64_t nonzero = words.nonzero[0], more = words.nonzero[1];
  std::uint64_t above = words.large[0], more_above = words.large[1];
#pragma unroll 1
  for (unsigned w = 0; w < LaneEntries::kCount / kLanes; ++w) {
    const std::uint32_t first = LaneEntries::first() + kLanes * w;
    const auto larger = static_cast<std::uint32_t>(above);
    for (auto left = static_cast<std::uint32_t>(nonzero); left != 0; left &= left - 1) {
      const std::uint32_t i = first + static_cast<unsigned>(__ffs(static_cast<int>(left))) - 1;
      const bool is_large = (larger & left & (0u - left)) != 0;
      const std::uint32_t place = chunk.place + i;
      const std::uint32_t gap = place - next, own = place - (is_large ? next_other : next_one);
      const unsigned own_k = is_large ? others_k : ones_k;
      const std::uint32_t own_unit = is_large ? 1u << 16 : 1u;
      next = place + 1;
      next_one = is_large ? next_one : next;
      next_other = is_large ? next : next_other;
      if (is_large) large.of[at++] = static_cast<std::uint16_t>(i);
      if (gap >> every_k < kRiceLimit && own >> own_k < kRiceLimit) {
#pragma unroll
        for (unsigned j = 0; j < kRiceTries; ++j) {
          rests.every[j] += gap >> (every_k + j);
          both[j] += (own >> (own_k + j)) * own_unit;
        }
        continue;
      }
#pragma unroll
      for (unsigned j = 0; j < kRiceTries; ++j) {
        rests.every[j] += rice_bits(gap, every_k + j, kGapRawBits) - (1 + every_k + j);
        both[j] += (rice_bits(own, own_k + j, kGapRawBits) - (1 + own_k + j)) * own_unit;
      }
    }
    nonzero = nonzero >> 32 | more << 32;
    above = above >> 32 | more_above << 32;
    more >>= 32;
    more_above >>= 32;
  }
#pragma unroll
  for (unsigned j = 0; j < kRiceTries; ++j) {
    rests.ones[j] = both[j] & 0xFFFFu;
    rests.others[j] = both[j] >> 16;
  }
  return rests;
}

/// By a whole warp. `tried`: the parameters that are, for the sum of the lane's number.
__device__ std::uint32_t weigh_chunk(const ChunkInHand& chunk, bool tries_lists,
                                     const RiceRange& tried, LargeLevels& large) {
  const Chunk& state = chunk.states[chunk.index];
  const std::uint32_t ones = state.nonzero - state.large;
  const auto k_of = [&](SegmentSum sum) {
    return __shfl_sync(kAllLanes, tried.first, static_cast<int>(sum));
  };
  WeighedSums sums;
  const LaneWords words(*chunk.bits);
  std::uint32_t all;
  std::uint32_t at = warp_exclusive_sum(words.of(kOthers).count(), all);
  if (tries_lists) {
    const unsigned every_k = k_of(kEveryGaps), ones_k = k_of(kOnesGaps),
                   others_k = k_of(kOthersGaps);
    const GapRests rests = weigh_gaps(chunk, words, every_k, ones_k, others_k, large, at);
    sums.take(kEveryGaps, every_k, rests.every, state.nonzero);
    sums.take(kOnesGaps, ones_k, rests.ones, ones);
    sums.take(kOthersGaps, others_k, rests.others, state.large);
  } else {
    words.of(kOthers).visit(
        [&](std::uint32_t i) { large.of[at++] = static_cast<std::uint16_t>(i); });
  }
  const unsigned every_k = k_of(kEveryLevels), others_k = k_of(kOthersLevels),
                 dense_k = k_of(kDenseLevels);
  Tries every = {}, others = {}, dense = {};
  read_large_levels(chunk, large, all, [&](std::uint32_t, std::uint32_t level) {
    add_rest(level - 1, every_k, kLevelBits, every);
    add_rest(level - 2, others_k, kLevelBits, others);
    add_rest(level, dense_k, kLevelBits, dense);
  });
  if (lane() == 0) {
    for (unsigned j = 0; j < kRiceTries; ++j) dense[j] += ones * (1u >> (dense_k + j));
  }
  sums.take(kEveryLevels, every_k, every, state.nonzero);
  sums.take(kOthersLevels, others_k, others, state.large);
  sums.take(kDenseLevels, dense_k, dense, chunk.entries);
  return sums.mine;
}

/// Of a warp.
struct ChooseMemory {
  std::uint32_t sums[kSegmentSums * kRiceTries];
  unsigned first[kSegmentSums];  ///< of the parameters that are tried
  unsigned best[kSegmentSums];   ///< of these

  /// The place of a parameter's sum.
  [[nodiscard]] __device__ unsigned place(SegmentSum sum, unsigned k) const {
    return sum * kRiceTries + k - first[sum];
  }
};
struct ChooseMemories {
  ChooseMemory of[kThreads / kLanes];
};

/// By a whole warp, all chunks weighed: the segment's word, and where each chunk's parts of the
/// streams begin, of the second of two lists from the content's end downward. `tried` as in
/// weigh_chunk.
__device__ SegmentPlan choose(const ChunkInHand& chunk, const SegmentCounts& counts,
                              const RiceRange& tried) {
  constexpr unsigned kSums = kSegmentSums * kRiceTries;
  ChooseMemory& memory = shared<ChooseMemories>().of[warp_in_block()];
  if (lane() < kSegmentSums) memory.first[lane()] = tried.first;
  __syncwarp();
  std::uint32_t ends[kLists];
  for (unsigned list = 0; list < kLists; ++list)
    ends[list] = chunk.segment_entries - place_after(chunk, list, chunk.siblings);
  if (lane() < kSums) {
    const unsigned s = lane() / kRiceTries;
    std::uint32_t sum = 0;
    for (unsigned c = 0; c < chunk.siblings; ++c) sum += __ldcg(&chunk.states[c].sums[lane()]);
    const unsigned k = memory.first[s] + lane() % kRiceTries;
    if (s == kEveryGaps) sum += rice_bits(ends[kEvery], k, kGapRawBits);
    if (s == kOnesGaps) sum += rice_bits(ends[kOnes], k, kGapRawBits);
    if (s == kOthersGaps) sum += rice_bits(ends[kOthers], k, kGapRawBits);
    memory.sums[lane()] = sum;
  }
  __syncwarp();
  if (lane() < kSegmentSums) {
    const auto own = static_cast<SegmentSum>(lane());
    memory.best[own] =
        choose_rice(tried, [&](unsigned k) { return memory.sums[memory.place(own, k)]; }).k;
  }
  __syncwarp();
  SegmentPlan plan = plan_chosen(counts, [&](SegmentSum sum) {
    const unsigned k = memory.best[sum];
    return RiceChoice{k, memory.sums[memory.place(sum, k)]};
  });
  plan.word.bytes = static_cast<std::uint32_t>((plan.bits + 7) / 8);

  const SegmentWord how = plan.word;
  std::uint32_t bits[2] = {};
  if (lane() < chunk.siblings) {
    const Chunk& state = chunk.states[lane()];
    const auto at = [&](SegmentSum sum, unsigned k) {
      return __ldcg(&state.sums[memory.place(sum, k)]);
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

__global__ void __launch_bounds__(kThreads) weigh(Frame frame, Plan plan) {
  ChunkInHand chunk;
  if (!take_chunk(frame, plan, chunk)) return;
  const SegmentCounts counts = count_segment(chunk);
  std::uint32_t* const word = frame(plan.words) + chunk.segment;
  if (counts.nonzero == 0) {
    if (lane() == 0 && chunk.index == 0) *word = 0;
    return;
  }
  const RiceRange tried = sum_range(static_cast<SegmentSum>(lane() % kSegmentSums), counts);
  const std::uint32_t mine = weigh_chunk(chunk, counts.tries_lists(), tried,
                                         dynamic_shared<LargeLevels>()[warp_in_block()]);
  if (lane() < kSegmentSums * kRiceTries) chunk.states[chunk.index].sums[lane()] = mine;
  __syncwarp();
  const std::uint32_t ticket = lane() == 0 ? take_ticket(frame(plan.tickets) + chunk.segment) : 0;
  if (__shfl_sync(kAllLanes, ticket, 0) + 1 != chunk.siblings) return;
  __syncwarp();  // a shuffle orders no memory
  const SegmentPlan chosen = choose(chunk, counts, tried);
  if (lane() == 0) *word = chosen.word.pack();
  // The word that the last bit would share with one more, too: it may be no end at all.
  auto* const slot = reinterpret_cast<uint4*>(chunk.slot);
  for (std::uint64_t i = lane(); i < chosen.bits / 128 + 1; i += kLanes) slot[i] = uint4{};
}

}  // namespace

void weigh_segments(const Frame& frame, const Plan& plan, Queue& queue) {
  launch_chunks(weigh, sizeof(LargeLevels), frame, plan, queue);
}

}  // namespace atomo::cuda::coordinate
