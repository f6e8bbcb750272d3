// SPDX-License-Identifier: Apache-2.0
/// Chunked top-k, over all layers at once.
///
/// Mathematics: within a chunk magnitudes order as integers of 31 bits; a histogram of 11, 10 and 10 bits
/// finds the k-th largest and how many of those equal to it are kept. Zeros are never kept. Bins of a
/// group's magnitudes and their means are whole numbers (math/value_bins.hpp).
///
/// Mapping, three launches:
///   select   a block of 256 threads a chunk of at most 4,096 entries, sixteen entries a thread in
///            registers: three histograms, then two bit maps, of the entries above the k-th largest and of
///            those equal to it; a kept entry's rank is a count of bits
///   code     a block of 256 threads a group of chunks: its bins, the codes of its slots, then the words
///            of its gaps, each where a scan of their lengths says
///   layout   a block a job: where the groups' gaps stand
/// For jobs whose entries are drawn two launches of chunk_draw.cu stand in for `select`, and `code_drawn`
/// for `code`: its levels follow from what was measured, kept entries become their numbers.
///
/// Traffic an entry: 4 bytes read, the least; 6 bytes written and read three times a kept entry, and what
/// is sent, zeroed, written and read by `assemble`.
///
/// Shared memory: 11 KiB (select), 19 KiB (code), 9 KiB (code_drawn). Workspace: 6 bytes a slot, 4 bytes a
/// chunk, what is sent.
/// Determinism: integers alone are summed, whatever the order. Alignment: tensors as their entries.

#include "coding/rice.hpp"
#include "core/philox.hpp"
#include "cuda/bit_stream.cuh"
#include "cuda/chunk_select.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

using format::ChunkCoder;
using format::DrawnCoder;

constexpr unsigned kBins = 2048;

struct SelectMemory {
  std::uint32_t bins[kBins];
  std::uint32_t above[kWords], equal[kWords];
  std::uint32_t above_before[kWords], equal_before[kWords];
  std::uint32_t key, ties, nonzero;
};

/// By a whole block: the k-th largest magnitude and the ties that are kept; 0 and none where no more
/// than k entries are not 0.
__device__ void find_key(const Own& own, std::uint32_t keep, SelectMemory& memory) {
  if (threadIdx.x == 0) memory.nonzero = 0, memory.key = 0, memory.ties = keep;
  __syncthreads();
  std::uint32_t nonzero = 0;
  own.each([&](std::uint32_t, std::uint32_t entry) { nonzero += magnitude(entry) != 0 ? 1 : 0; });
  nonzero = warp_sum(nonzero);
  if (lane() == 0) atomicAdd(&memory.nonzero, nonzero);
  __syncthreads();
  if (memory.nonzero <= keep) {
    if (threadIdx.x == 0) memory.ties = 0;
    __syncthreads();
    return;
  }
  for (unsigned pass = 0; pass < 3; ++pass) {
    const unsigned shift = 20 - 10 * pass, width = pass == 0 ? 11 : 10, bins = 1u << width;
    for (unsigned b = threadIdx.x; b < bins; b += kScanThreads) memory.bins[b] = 0;
    __syncthreads();
    const std::uint32_t key = memory.key, wanted = memory.ties;
    // The least digit is what is left: zeros would have all threads wait for one counter.
    own.each([&](std::uint32_t, std::uint32_t entry) {
      const std::uint32_t m = magnitude(entry), digit = m >> shift & (bins - 1);
      if (digit != 0 && m >> shift >> width == key >> shift >> width)
        atomicAdd(&memory.bins[digit], 1u);
    });
    __syncthreads();
    if (threadIdx.x == 0) memory.bins[0] = wanted;
    __syncthreads();
    scan_blockwide<std::uint32_t>(
        bins, [&](std::uint64_t i) { return memory.bins[bins - 1 - i]; },
        [&](std::uint64_t i, std::uint32_t above) {
          const std::uint32_t digit = bins - 1 - static_cast<std::uint32_t>(i);
          if (above >= wanted || memory.bins[digit] < wanted - above) return;
          memory.key = key | digit << shift;
          memory.ties = wanted - above;
        });
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kScanThreads, 4) select(const Frame frame, const Plan plan) {
  const UnitOf at = find_unit(frame, plan.chunks, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  auto& memory = shared<SelectMemory>();
  const std::uint32_t n = job.body.entries_of(at.index), keep = job.body.keep_of(at.index);
  Own own;
  if (!own.load(entries_of(frame, plan, job), at.index * job.body.chunk, n))
    frame.mark_non_finite(job.layer);
  for (unsigned w = threadIdx.x; w < kWords; w += kScanThreads)
    memory.above[w] = 0, memory.equal[w] = 0;
  find_key(own, keep, memory);
  const std::uint32_t key = memory.key, ties = memory.ties;
  own.each([&](std::uint32_t place, std::uint32_t entry) {
    const std::uint32_t m = magnitude(entry);
    if (m > key) atomicOr(&memory.above[place / 32], 1u << place % 32);
    if (m == key && ties != 0) atomicOr(&memory.equal[place / 32], 1u << place % 32);
  });
  __syncthreads();
  if (warp_in_block() == 0) {
    const std::uint32_t above = count_before(memory.above, memory.above_before);
    count_before(memory.equal, memory.equal_before);
    if (lane() == 0) frame(plan.counts)[job.first_chunk + at.index] = above + ties;
  }
  __syncthreads();
  const std::uint64_t first = job.first_slot + at.index * job.body.keep;
  own.each([&](std::uint32_t place, std::uint32_t entry) {
    const std::uint32_t m = magnitude(entry);
    if (m < key || (m == key && ties == 0)) return;
    const std::uint32_t equal = rank_of(memory.equal, memory.equal_before, place);
    if (m == key && equal >= ties) return;
    const std::uint32_t slot =
        rank_of(memory.above, memory.above_before, place) + (equal < ties ? equal : ties);
    frame(plan.places)[first + slot] = static_cast<std::uint16_t>(place);
    frame(plan.kept)[first + slot] = entry;
  });
}

struct CodeMemory {
  math::CellSums before[math::kBinCells + 1];
  unsigned long long sums[math::kBinCells];
  std::uint32_t counts[math::kBinCells];
  math::ValueBins bins;
  std::uint16_t upper[kSpan];
  std::uint32_t least, largest;
};

/// The slots of a group.
struct GroupSlots {
  const ChunkBody& body;
  const std::uint32_t* counts;  ///< of the group's chunks
  const std::uint16_t* places;
  const std::uint32_t* kept;
  std::uint64_t first_chunk;

  struct Slot {
    std::uint32_t chunk, rank;  ///< in the group, in the chunk
  };
  [[nodiscard]] __device__ Slot slot(std::uint32_t i) const {
    const std::uint32_t c = i / body.keep;
    return {c, i - c * body.keep};
  }
  [[nodiscard]] __device__ bool holds(std::uint32_t i) const {
    const Slot own = slot(i);
    return own.rank < counts[own.chunk];
  }
  /// The word of the gap that a slot has, or of the chunk's end; of no bits where there is none.
  [[nodiscard]] __device__ coding::RiceWord gap(std::uint32_t i) const {
    const Slot own = slot(i);
    const std::uint32_t count = counts[own.chunk];
    if (own.rank > count) return {0, 0};
    const std::uint32_t n = body.entries_of(first_chunk + own.chunk);
    const std::uint32_t marks = body.keep_of(first_chunk + own.chunk) - own.rank;
    const std::uint32_t next = own.rank == 0 ? 0 : places[i - 1] + 1u;
    const std::uint32_t to = own.rank == count ? n : places[i];
    return coding::rice_word(to - next, format::gap_parameter(n - next, marks),
                             format::kRawGapBits);
  }
};

__device__ void set_word(std::uint32_t* words, std::uint64_t bit, const coding::RiceWord& word) {
  if (word.count == 0) return;
  BitSetter out(words, bit);
  const unsigned low = word.count < 32 ? word.count : 20;
  out.put(static_cast<std::uint32_t>(word.bits & ((std::uint64_t{1} << low) - 1)), low);
  out.put(static_cast<std::uint32_t>(word.bits >> low), word.count - low);
  out.flush();
}

/// By a whole block: the bins of a group.
__device__ void find_group_bins(const GroupSlots& group, std::uint32_t slots,
                                const ChunkCoder& coder, CodeMemory& memory) {
  memory.sums[threadIdx.x] = 0;
  memory.counts[threadIdx.x] = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < slots; i += kScanThreads) {
    if (!group.holds(i)) continue;
    const std::uint32_t m = magnitude(group.kept[i]), cell = coder.cell_of(m);
    atomicAdd(&memory.sums[cell], static_cast<unsigned long long>(coder.fixed(m)));
    atomicAdd(&memory.counts[cell], 1u);
  }
  __syncthreads();
  const std::uint64_t sum = block_exclusive_sum<unsigned long long>(memory.sums[threadIdx.x]);
  const std::uint32_t count = block_exclusive_sum<std::uint32_t>(memory.counts[threadIdx.x]);
  memory.before[threadIdx.x] = {sum, count};
  if (threadIdx.x + 1 == math::kBinCells)
    memory.before[math::kBinCells] = {sum + memory.sums[threadIdx.x],
                                      count + memory.counts[threadIdx.x]};
  __syncthreads();
  if (threadIdx.x == 0) coder.find_bins(memory.before);
  __syncthreads();
}
static_assert(math::kBinCells == kScanThreads);

/// By a whole block: the gaps of the slots in the upper bin, from bit `from` on; returns how many, and
/// adds their bits to it.
template <typename Coder>
__device__ std::uint32_t write_upper(const GroupSlots& group, std::uint32_t slots,
                                     const Coder& coder, std::uint16_t* upper, std::uint32_t* gaps,
                                     std::uint32_t& from) {
  const auto is_upper = [&](std::uint64_t i) {
    const auto slot = static_cast<std::uint32_t>(i);
    return group.holds(slot) && coder.is_upper(group.kept[slot]) ? 1u : 0u;
  };
  const std::uint32_t count =
      scan_blockwide<std::uint32_t>(slots, is_upper, [&](std::uint64_t i, std::uint32_t before) {
        if (is_upper(i) != 0) upper[before] = static_cast<std::uint16_t>(i);
      });
  __syncthreads();
  const auto gap = [&](std::uint64_t i) {
    const std::uint32_t next = i == 0 ? 0 : upper[i - 1] + 1u;
    return coding::rice_word(
        upper[i] - next, format::gap_parameter(slots - next, count - static_cast<std::uint32_t>(i)),
        format::kRawGapBits);
  };
  from += scan_blockwide<std::uint32_t>(
      count, [&](std::uint64_t i) { return gap(i).count; },
      [&](std::uint64_t i, std::uint32_t before) { set_word(gaps, from + before, gap(i)); });
  return count;
}

/// A group's parts of what is sent, and its slots.
struct OwnGroup {
  const Job& job;
  std::uint64_t g;
  GroupSlots group;
  std::uint32_t slots;
  std::byte* prefix;
  std::uint32_t* gaps;

  __device__ OwnGroup(const Frame& frame, const Plan& plan, const UnitOf& at)
      : job(frame(plan.jobs)[at.job]),
        g(at.index),
        group{job.body, frame(plan.counts) + job.first_chunk + g * job.body.group_chunks,
              frame(plan.places) + first_slot(), frame(plan.kept) + first_slot(),
              g * job.body.group_chunks},
        slots(job.body.group_slots(g)),
        prefix(reinterpret_cast<std::byte*>(frame(plan.prefix) + job.first_prefix)),
        gaps(frame(plan.gaps) + job.first_gaps + g * job.gap_words) {}

  [[nodiscard]] __device__ std::uint64_t first_slot() const {
    return job.first_slot + g * job.body.group_chunks * job.body.keep;
  }
  /// By a whole block; returns their bits.
  [[nodiscard]] __device__ std::uint32_t write_gaps() const {
    return scan_blockwide<std::uint32_t>(
        slots, [&](std::uint64_t i) { return group.gap(static_cast<std::uint32_t>(i)).count; },
        [&](std::uint64_t i, std::uint32_t before) {
          set_word(gaps, before, group.gap(static_cast<std::uint32_t>(i)));
        });
  }
  __device__ void note_gaps(const Frame& frame, const Plan& plan, std::uint32_t bits) const {
    if (threadIdx.x != 0) return;
    const std::uint32_t bytes = (bits + 7) / 8;
    reinterpret_cast<std::uint16_t*>(prefix)[g] = static_cast<std::uint16_t>(bytes);
    frame(plan.ends)[job.first_group + g] = 8 * std::uint64_t{bytes};
  }
};

/// By a whole block: the levels and the values of a group, and which slots are in the upper bin; adds
/// the bits of that to those of its gaps.
template <typename Coder>
__device__ void write_values(const OwnGroup& own, const Coder& coder, std::uint16_t* upper,
                             std::uint32_t& bits) {
  const ChunkBody& body = own.job.body;
  std::uint32_t count = 0;
  if (body.lists_upper) count = write_upper(own.group, own.slots, coder, upper, own.gaps, bits);
  auto* const levels =
      reinterpret_cast<std::uint16_t*>(own.prefix + body.levels_at) + own.g * body.level_words;
  if (threadIdx.x < body.level_words) {
    const bool counts = body.lists_upper && threadIdx.x == 2;
    levels[threadIdx.x] = counts ? static_cast<std::uint16_t>(count) : coder.word(threadIdx.x);
  }
  auto* const values = reinterpret_cast<std::uint32_t*>(own.prefix + body.values_of(own.g));
  const std::uint32_t each = 32 / body.value_bits;
  for (std::uint32_t w = threadIdx.x; w < body.value_bytes_of(own.slots) / 4; w += kScanThreads) {
    std::uint32_t word = 0;
    for (std::uint32_t s = 0; s < each; ++s) {
      const std::uint32_t i = w * each + s;
      if (i < own.slots && own.group.holds(i))
        word |= coder.code(own.group.kept[i]) << (s * body.value_bits);
    }
    values[w] = word;
  }
}

__global__ void __launch_bounds__(kScanThreads) code(const Frame frame, const Plan plan) {
  const OwnGroup own(frame, plan, find_unit(frame, plan.groups, blockIdx.x));
  auto& memory = shared<CodeMemory>();
  if (threadIdx.x == 0) memory.least = ~0u, memory.largest = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < own.slots; i += kScanThreads) {
    if (!own.group.holds(i)) continue;
    atomicMin(&memory.least, magnitude(own.group.kept[i]));
    atomicMax(&memory.largest, magnitude(own.group.kept[i]));
  }
  __syncthreads();
  std::uint32_t bits = own.write_gaps();
  if (memory.largest != 0) {
    const ChunkCoder coder(own.job.config.values, memory.least, memory.largest, memory.bins);
    if (coder.has_bins()) find_group_bins(own.group, own.slots, coder, memory);
    write_values(own, coder, memory.upper, bits);
  }
  own.note_gaps(frame, plan, bits);
}

struct DrawnMemory {
  std::uint16_t upper[kSpan];
};

/// `code` of the jobs that draw.
__global__ void __launch_bounds__(kScanThreads) code_drawn(const Frame frame, const Plan plan) {
  const OwnGroup own(frame, plan, find_unit(frame, plan.drawn_groups, blockIdx.x));
  const DrawnCoder coder(own.job.config.values, drawn_group(frame, plan, own.job, own.g));
  std::uint32_t* const kept = frame(plan.kept) + own.first_slot();
  const Philox rounds(frame.key(own.job.layer), Purpose::round_entry);
  bool any = false;
  for (std::uint32_t i = threadIdx.x; i < own.slots; i += kScanThreads) {
    if (!own.group.holds(i)) continue;
    any = true;
    const std::uint64_t draw = own.first_slot() - own.job.first_slot + i;
    kept[i] = coder.quantise(kept[i], word_of(rounds(draw / 4), draw));
  }
  any = __syncthreads_or(any ? 1 : 0) != 0;
  std::uint32_t bits = own.write_gaps();
  if (any) write_values(own, coder, shared<DrawnMemory>().upper, bits);
  own.note_gaps(frame, plan, bits);
}

__global__ void __launch_bounds__(kScanThreads) layout_bodies(const Frame frame, const Plan plan) {
  const Job& job = frame(plan.jobs)[blockIdx.x];
  std::uint64_t* const ends = frame(plan.ends) + job.first_group;
  const std::uint64_t bits = scan_blockwide<std::uint64_t>(
      job.body.groups, [&](std::uint64_t g) { return ends[g]; },
      [&](std::uint64_t g, std::uint64_t before) { ends[g] += before; });
  if (threadIdx.x != 0) return;
  LayerState& layer = frame.layer(job.layer);
  layer.bytes = was_non_finite(frame, job.layer) ? 0 : job.body.gaps_at + bits / 8;
  StagedBody& body = frame(frame.plan.staged)[job.layer];
  body.prefix = plan.prefix.at + 4 * job.first_prefix;
  body.prefix_bytes = job.body.gaps_at;
  body.slots = plan.gaps.at + 4 * job.first_gaps;
  body.slot_words = job.gap_words;
  body.ends = plan.ends.at + 8 * job.first_group;
  body.pieces = job.body.groups;
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::chunk_topk>(layers);
  plan = {};
  if (count == 0) return;
  SplitMaker chunks(layout, count), drawn(layout, count), groups(layout, count),
      drawn_groups(layout, count), tiles(layout, count);
  std::uint64_t prefix = 0, gaps = 0;
  const Sums sums = plan_jobs(layers, layout, plan, [&](Job& job) {
    job.first_prefix = prefix;
    job.first_gaps = gaps;
    job.gap_words = static_cast<std::uint32_t>(divide_up(job.body.max_gap_bytes(), 4)) + 1;
    prefix += job.body.gaps_at / 4;
    gaps += job.body.groups * job.gap_words;
    chunks.add(job.config.draws ? 0 : job.body.chunks);
    drawn.add(job.config.draws ? job.body.chunks : 0);
    groups.add(job.config.draws ? 0 : job.body.groups);
    drawn_groups.add(job.config.draws ? job.body.groups : 0);
    tiles.add(job.has_tiles() ? stacks_of(job.tiles) : 0);
  });
  plan.chunks = chunks.split();
  plan.drawn = drawn.split();
  plan.groups = groups.split();
  plan.drawn_groups = drawn_groups.split();
  plan.tiles = tiles.split();
  plan.sequence = layout.scratch<float>(sums.entries);
  plan.prefix = layout.zeroed<std::uint32_t>(prefix);
  plan.gaps = layout.zeroed<std::uint32_t>(gaps);
  plan.places = layout.scratch<std::uint16_t>(sums.slots);
  plan.kept = layout.scratch<std::uint32_t>(sums.slots);
  plan.counts = layout.scratch<std::uint32_t>(sums.chunks);
  plan.measured = layout.scratch<format::DrawnChunk>(plan.drawn.units > 0 ? sums.chunks : 0);
  plan.ends = layout.scratch<std::uint64_t>(sums.groups);
}

void size(const Frame& frame, const Plan& plan, Queue& queue) {
  make_sequences(frame, plan, queue);
  queue.launch_blocks(select, plan.chunks.units, kScanThreads, 0, frame, plan);
  draw_entries(frame, plan, queue);
  queue.launch_blocks(code, plan.groups.units, kScanThreads, 0, frame, plan);
  queue.launch_blocks(code_drawn, plan.drawn_groups.units, kScanThreads, 0, frame, plan);
  queue.launch_blocks(layout_bodies, plan.count, kScanThreads, 0, frame, plan);
}

}  // namespace atomo::cuda::chunk_topk
