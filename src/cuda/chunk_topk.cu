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
///
/// Traffic an entry: 4 bytes read, the least; 6 bytes written and read three times a kept entry, and what
/// is sent, zeroed, written and read by `assemble`.
///
/// Shared memory: 10 KiB (select), 13 KiB (code). Workspace: 6 bytes a slot, 4 bytes a chunk, what is sent.
/// Determinism: integers alone are summed, whatever the order. Alignment: tensors as their entries.

#include "cuda/chunk_topk.cuh"

#include "coding/rice.hpp"
#include "cuda/bit_stream.cuh"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

using format::ChunkBody;
using format::ChunkCoder;

constexpr unsigned kBins = 2048, kRows = 4, kRow = 4 * kScanThreads;
constexpr unsigned kWords = kSpan / 32;
static_assert(kRows * kRow == kSpan);

struct SelectMemory {
  std::uint32_t bins[kBins];
  std::uint32_t above[kWords], equal[kWords];
  std::uint32_t above_before[kWords], equal_before[kWords];
  std::uint32_t key, ties, nonzero;
};

__device__ std::uint32_t magnitude(std::uint32_t entry) { return entry & 0x7FFFFFFFu; }

/// A chunk's entries, sixteen a thread; those behind its end are 0.
struct Own {
  std::uint32_t entry[kRows][4];

  [[nodiscard]] __device__ static std::uint32_t place(unsigned row, unsigned k) {
    return row * kRow + 4 * threadIdx.x + k;
  }
  /// Returns whether all are finite.
  __device__ bool load(const Entries& x, std::uint64_t begin, std::uint32_t n) {
    bool finite = true;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      float v[4] = {};
      if (place(row, 0) < n) x.four(begin + place(row, 0), begin + n, v);
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        entry[row][k] = __float_as_uint(v[k]);
        finite = finite && is_finite(v[k]);
      }
    }
    return finite;
  }
  template <typename Visit>
  __device__ void each(Visit visit) const {
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) visit(place(row, k), entry[row][k]);
    }
  }
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

/// By one warp: how many bits are set before each word.
__device__ std::uint32_t count_before(const std::uint32_t* words, std::uint32_t* before) {
  std::uint32_t sum = 0;
  for (unsigned base = 0; base < kWords; base += kLanes) {
    std::uint32_t total;
    const auto own = static_cast<std::uint32_t>(__popc(words[base + lane()]));
    before[base + lane()] = sum + warp_exclusive_sum(own, total);
    sum += total;
  }
  return sum;
}

__device__ std::uint32_t rank_of(const std::uint32_t* words, const std::uint32_t* before,
                                 std::uint32_t place) {
  return before[place / 32] +
         static_cast<std::uint32_t>(__popc(words[place / 32] & ((1u << place % 32) - 1)));
}

__global__ void __launch_bounds__(kScanThreads, 4) select(const Frame frame, const Plan plan) {
  const UnitOf at = find_unit(frame, plan.chunks, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  auto& memory = shared<SelectMemory>();
  const std::uint32_t n = job.body.entries_of(at.index), keep = job.body.keep_of(at.index);
  Own own;
  const Entries x = job.has_tiles() ? Entries{frame(plan.sequence) + job.first_entry, DType::f32}
                                    : frame.entries(job.layer);
  if (!own.load(x, at.index * job.body.chunk, n)) frame.mark_non_finite(job.layer);
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
__device__ std::uint32_t write_upper(const GroupSlots& group, std::uint32_t slots,
                                     const ChunkCoder& coder, CodeMemory& memory,
                                     std::uint32_t* gaps, std::uint32_t& from) {
  const auto is_upper = [&](std::uint64_t i) {
    const auto slot = static_cast<std::uint32_t>(i);
    return group.holds(slot) && coder.is_upper(group.kept[slot]) ? 1u : 0u;
  };
  const std::uint32_t count =
      scan_blockwide<std::uint32_t>(slots, is_upper, [&](std::uint64_t i, std::uint32_t before) {
        if (is_upper(i) != 0) memory.upper[before] = static_cast<std::uint16_t>(i);
      });
  __syncthreads();
  const auto gap = [&](std::uint64_t i) {
    const std::uint32_t next = i == 0 ? 0 : memory.upper[i - 1] + 1u;
    return coding::rice_word(
        memory.upper[i] - next,
        format::gap_parameter(slots - next, count - static_cast<std::uint32_t>(i)),
        format::kRawGapBits);
  };
  from += scan_blockwide<std::uint32_t>(
      count, [&](std::uint64_t i) { return gap(i).count; },
      [&](std::uint64_t i, std::uint32_t before) { set_word(gaps, from + before, gap(i)); });
  return count;
}

__global__ void __launch_bounds__(kScanThreads) code(const Frame frame, const Plan plan) {
  const UnitOf at = find_unit(frame, plan.groups, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  const ChunkBody& body = job.body;
  auto& memory = shared<CodeMemory>();
  const std::uint64_t first_chunk = at.index * body.group_chunks;
  const std::uint64_t first_slot = job.first_slot + first_chunk * body.keep;
  const GroupSlots group{body, frame(plan.counts) + job.first_chunk + first_chunk,
                         frame(plan.places) + first_slot, frame(plan.kept) + first_slot,
                         first_chunk};
  const std::uint32_t slots = body.group_slots(at.index);
  if (threadIdx.x == 0) memory.least = ~0u, memory.largest = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < slots; i += kScanThreads) {
    if (!group.holds(i)) continue;
    atomicMin(&memory.least, magnitude(group.kept[i]));
    atomicMax(&memory.largest, magnitude(group.kept[i]));
  }
  __syncthreads();
  std::byte* const prefix = reinterpret_cast<std::byte*>(frame(plan.prefix) + job.first_prefix);
  std::uint32_t* const gaps = frame(plan.gaps) + job.first_gaps + at.index * job.gap_words;
  std::uint32_t bits = scan_blockwide<std::uint32_t>(
      slots, [&](std::uint64_t i) { return group.gap(static_cast<std::uint32_t>(i)).count; },
      [&](std::uint64_t i, std::uint32_t before) {
        set_word(gaps, before, group.gap(static_cast<std::uint32_t>(i)));
      });
  if (memory.largest != 0) {
    const ChunkCoder coder(job.config.values, memory.least, memory.largest, memory.bins);
    if (coder.has_bins()) find_group_bins(group, slots, coder, memory);
    std::uint32_t upper = 0;
    if (body.lists_upper) upper = write_upper(group, slots, coder, memory, gaps, bits);
    auto* const levels =
        reinterpret_cast<std::uint16_t*>(prefix + body.levels_at) + at.index * body.level_words;
    if (threadIdx.x < body.level_words) {
      const bool counts = body.lists_upper && threadIdx.x == 2;
      levels[threadIdx.x] = counts ? static_cast<std::uint16_t>(upper) : coder.word(threadIdx.x);
    }
    auto* const values = reinterpret_cast<std::uint32_t*>(prefix + body.values_of(at.index));
    const std::uint32_t each = 32 / body.value_bits;
    for (std::uint32_t w = threadIdx.x; w < body.value_bytes_of(slots) / 4; w += kScanThreads) {
      std::uint32_t word = 0;
      for (std::uint32_t s = 0; s < each; ++s) {
        const std::uint32_t i = w * each + s;
        if (i < slots && group.holds(i)) word |= coder.code(group.kept[i]) << (s * body.value_bits);
      }
      values[w] = word;
    }
  }
  if (threadIdx.x == 0) {
    const std::uint32_t bytes = (bits + 7) / 8;
    reinterpret_cast<std::uint16_t*>(prefix)[at.index] = static_cast<std::uint16_t>(bytes);
    frame(plan.ends)[job.first_group + at.index] = 8 * std::uint64_t{bytes};
  }
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
  TableMaker<Job> jobs(layout, count);
  SplitMaker chunks(layout, count), groups(layout, count), tiles(layout, count);
  std::uint64_t entries = 0, slots = 0, all_chunks = 0, all_groups = 0, prefix = 0, gaps = 0;
  for_each_of_method<MethodId::chunk_topk>(
      layers, [&](std::uint32_t number, const LayerPlan& layer) {
        Job job;
        job.config = format::chunk_config(layer.kind.params);
        job.body = ChunkBody(job.config, layer.n);
        job.tiles = tiles_of(layer, job.config);
        if (job.tiles.entries() == 1) job.config.layout = format::ChunkLayout::entries;
        job.first_entry = entries;
        job.first_slot = slots;
        job.first_chunk = all_chunks;
        job.first_group = all_groups;
        job.first_prefix = prefix;
        job.first_gaps = gaps;
        job.gap_words = static_cast<std::uint32_t>(divide_up(job.body.max_gap_bytes(), 4)) + 1;
        job.layer = number;
        entries += job.has_tiles() ? layer.n : 0;
        slots += job.body.chunks * job.body.keep;
        all_chunks += job.body.chunks;
        all_groups += job.body.groups;
        prefix += job.body.gaps_at / 4;
        gaps += job.body.groups * job.gap_words;
        chunks.add(job.body.chunks);
        groups.add(job.body.groups);
        tiles.add(job.has_tiles() ? stacks_of(job.tiles) : 0);
        jobs.add(job);
      });
  plan.count = jobs.count();
  plan.jobs = jobs.table();
  plan.chunks = chunks.split();
  plan.groups = groups.split();
  plan.tiles = tiles.split();
  plan.sequence = layout.scratch<float>(entries);
  plan.prefix = layout.zeroed<std::uint32_t>(prefix);
  plan.gaps = layout.zeroed<std::uint32_t>(gaps);
  plan.places = layout.scratch<std::uint16_t>(slots);
  plan.kept = layout.scratch<std::uint32_t>(slots);
  plan.counts = layout.scratch<std::uint32_t>(all_chunks);
  plan.ends = layout.scratch<std::uint64_t>(all_groups);
}

void size(const Frame& frame, const Plan& plan, Queue& queue) {
  make_sequences(frame, plan, queue);
  queue.launch_blocks(select, plan.chunks.units, kScanThreads, 0, frame, plan);
  queue.launch_blocks(code, plan.groups.units, kScanThreads, 0, frame, plan);
  queue.launch_blocks(layout_bodies, plan.count, kScanThreads, 0, frame, plan);
}

}  // namespace atomo::cuda::chunk_topk
