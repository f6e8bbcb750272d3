// SPDX-License-Identifier: Apache-2.0
/// Top-k by radix selection, over all layers at once.
///
/// Mathematics: magnitudes order as integers of 31 bits. A histogram of their upper 11 bits says
/// which value of these the k-th largest has, one of the next 10 bits among those that agree, one
/// of the last 10 likewise: then the k-th largest is known as `key`, and how many entries equal to
/// it are kept, `ties` >= 1, the first of them in the order of entries. All counts are integers.
///
/// Mapping: analyse, three launches, a block of 256 threads a tile of 16,384 entries:
///   count_digits      counts the first digit in shared memory, adds to its job's histogram
///   gather            lists the candidates, entries that have the digit's value or are above it, and
///                     counts the second digit of the former; where more than one entry in 32 is kept,
///                     those above it are marked and not listed. A warp takes 16 rows of 32 entries at a
///                     time; a lane has a bit for each of its 16
///   count_candidates  counts the last digit of those that still agree, few enough to be added to the
///                     job's histogram one by one
/// The block that finishes a job last chooses the digit and leaves the histogram zero. A job of one
/// tile needs no histogram elsewhere. Digit 0 is never counted: it is what is left when no other
/// reaches k, and a tensor full of zeros would have all threads wait for one counter. There is room
/// for an eighth of a tile's entries as candidates; of a tile with more the entries are read again
/// where candidates would be. Tiles are gathered from the last one on, which the L2 cache still has.
/// Size, five launches, a warp a segment of 4,096 entries but for the tiles and the scans, a block a
/// job:
///   mark    marks all candidates from `key` up, counts those equal to it
///   rank    sums these counts up
///   settle  unmarks ties beyond the last kept one, in the few segments that have them; measures
///           the marks
///   layout  chooses how the marks are sent, sets the length
///   stage   writes marks and values
/// topk_decode.cu reads what was sent.
///
/// Traffic an entry: encoding reads it twice, 8 bytes (the least: 4), of which a layer that the L2
/// cache holds comes from memory once; tiles with too many candidates read 8 more, segments with
/// ties to unmark 4 more, a kept entry a sector. A candidate is 8 bytes, written once and read
/// twice. Marks, 1/8 byte, are zeroed, written and read three times; their section is
/// zeroed and written.
///
/// Shared memory: 8 KiB of counters and a scan's in analyse. Workspace: 1/8 byte of marks and 1/8
/// of their section an entry, 1 byte of candidates, 4 bytes a kept entry, up to 1/2 byte of
/// histograms.
///
/// Determinism: integer counts, whatever the order. Alignment: tensors as their entries, the
/// message any; values are whole words of a message that stands at a word.

#include "cuda/topk.cuh"

#include "cuda/kept_entries.cuh"
#include "cuda/topk_tile.cuh"
#include "format/topk_body.hpp"

namespace atomo::cuda::topk {
namespace {

/// Rows of 32 entries that a warp gathers at a time.
constexpr unsigned kGatherRows = 16;

struct Found {
  std::uint32_t count;
};

/// By a whole block: counts the digits of a tile's entries that agree with `key` above. Returns
/// true in the threads that saw an Inf or NaN.
__device__ bool count_tile(const Entries& x, std::uint64_t begin, std::uint64_t n, Digit digit,
                           std::uint32_t key, std::uint32_t* bins) {
  const std::uint64_t end = n - begin < kTile ? n : begin + kTile;
  std::uint32_t largest = 0;
#pragma unroll 4
  for (std::uint64_t at = begin + 4 * threadIdx.x; at < end; at += 4 * kScanThreads) {
    float v[4];
    x.four(at, end, v);  // the zeros behind the end have no digit but 0
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint32_t m = magnitude(v[k]), d = digit.of(m);
      largest = m > largest ? m : largest;
      if (d != 0 && digit.prefix(m) == digit.prefix(key)) atomicAdd(&bins[d], 1u);
    }
  }
  return largest >= 0x7F800000u;
}

__global__ void __launch_bounds__(kScanThreads, 4) count_digits(Frame frame, Plan plan) {
  const Tile tile(frame, plan, blockIdx.x);
  tile.clear(Digit(0));
  const Entries x = frame.entries(tile.job.layer);
  if (count_tile(x, tile.begin, tile.job.n, Digit(0), 0, tile.bins))
    frame.mark_non_finite(tile.job.layer);
  tile.finish(frame, plan, 0);
}

/// By a whole warp: the marks of entries from `at` on, four a lane, become words of a segment whose
/// first one is that of entry `begin`.
__device__ void put_marks(std::uint32_t marked, std::uint64_t at, std::uint64_t begin,
                          std::uint64_t end, std::uint64_t* words) {
  std::uint32_t half = marked << (4 * (lane() % 8));
  for (int step = 1; step < 8; step *= 2) half |= __shfl_xor_sync(kAllLanes, half, step);
  const std::uint32_t upper = __shfl_xor_sync(kAllLanes, half, 8);
  if (lane() % 16 == 0 && at < end) words[(at - begin) / 64] = half | (std::uint64_t{upper} << 32);
}

/// Bit k: v[k] has a magnitude of at least `least`, which is the sign of `least` - 1 - magnitude.
__device__ std::uint32_t which_reach(const float (&v)[kGatherRows], std::uint32_t least) {
  std::uint32_t reached = 0;
#pragma unroll
  for (unsigned k = kGatherRows; k > 0; --k)
    reached = __funnelshift_l(least - 1 - magnitude(v[k - 1]), reached, 1);
  return reached;
}

/// By a whole warp: bit l of the word of lane k is bit k of lane l, where k is a row.
__device__ std::uint32_t words_of_rows(std::uint32_t marked) {
  std::uint32_t word = 0;
#pragma unroll
  for (unsigned k = 0; k < kGatherRows; ++k) {
    const std::uint32_t row = __ballot_sync(kAllLanes, (marked >> k & 1u) != 0);
    if (lane() == k) word = row;
  }
  return word;
}

/// By a whole warp: lists the entries of the rows from `base` on that `listed` has, bit k for entry
/// `base` + 32 k + lane, and counts the second digits of those below `high`.
__device__ void list_candidates(const Entries& x, const Tile& tile, std::uint64_t base,
                                std::uint32_t listed, std::uint32_t high, std::uint32_t* found,
                                Candidate* candidates) {
  std::uint32_t total;
  std::uint32_t place = warp_exclusive_sum(static_cast<std::uint32_t>(__popc(listed)), total);
  if (total == 0) return;
  std::uint32_t before = lane() == 0 ? atomicAdd(found, total) : 0;
  before = __shfl_sync(kAllLanes, before, 0);
  place += before;
  const Digit second(1);
  const std::uint32_t capacity = tile.capacity();
  for (; listed != 0; listed &= listed - 1) {
    const auto row = static_cast<std::uint32_t>(__ffs(static_cast<int>(listed)) - 1);
    const std::uint64_t at = base + row * kLanes + lane();
    const std::uint32_t m = magnitude(x(at)), d = second.of(m);
    if (d != 0 && m < high) atomicAdd(&tile.bins[d], 1u);
    if (place < capacity) candidates[place] = {m, static_cast<std::uint32_t>(at - tile.begin)};
    ++place;
  }
}

/// By a whole block: a tile's candidates, whose second digits are counted. Returns how many there are. `words` is null,
/// or gets the marks of entries above the digit, which are no candidates then.
__device__ std::uint32_t gather_tile(const Entries& x, const Tile& tile, std::uint32_t* words,
                                     Candidate* candidates) {
  auto& found = shared<Found>();
  if (threadIdx.x == 0) found.count = 0;
  __syncthreads();
  const Digit first(0);
  // Magnitudes that have the digit, and those above them, by their bits.
  const std::uint32_t low = first.of(tile.state.key) << first.shift,
                      high = low + (1u << first.shift);
#pragma unroll 1
  for (std::uint64_t base = tile.begin + kGatherRows * kLanes * warp_in_block(); base < tile.end;
       base += kGatherRows * kScanThreads) {
    float v[kGatherRows];
    load_rows(x, base + lane(), kLanes, tile.end, v);
    std::uint32_t listed = which_reach(v, low);
    const auto left = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(tile.end - base, std::uint64_t{kGatherRows} * kLanes));
    if (left < kGatherRows * kLanes) {  // rows of entries that there are
      const std::uint32_t rows = (left + kLanes - 1 - lane()) / kLanes;
      listed &= (1u << rows) - 1;
    }
    if (words != nullptr) {
      const std::uint32_t above = which_reach(v, high);
      listed &= ~above;
      const std::uint32_t word = words_of_rows(above);
      // A word of 64 marks is stored whole.
      if (lane() < kGatherRows && lane() / 2 * 64 < left)
        words[(base - tile.begin) / kLanes + lane()] = word;
    }
    list_candidates(x, tile, base, listed, high, &found.count, candidates);
  }
  __syncthreads();
  return found.count;
}

__global__ void __launch_bounds__(kScanThreads, 4) gather(Frame frame, Plan plan) {
  const std::uint64_t unit = plan.tiles.units - 1 - blockIdx.x;
  const Tile tile(frame, plan, unit);
  tile.clear(Digit(1));
  const MarksJob& marks = frame(plan.marks.jobs)[tile.at.job];
  std::uint64_t* const words = frame(plan.marks.words) + marks.first_word + tile.begin / 64;
  const std::uint32_t found =
      gather_tile(frame.entries(tile.job.layer), tile,
                  tile.job.lists_above() ? nullptr : reinterpret_cast<std::uint32_t*>(words),
                  tile.candidates(frame, plan));
  if (threadIdx.x == 0) frame(plan.found)[unit] = found;
  const std::uint64_t segment = tile.begin / kKeptSegment + threadIdx.x;
  if (segment * kKeptSegment < tile.end) frame(plan.equal)[marks.first_segment + segment] = 0;
  tile.finish(frame, plan, 1);
}

/// By a whole block: counts the digits of candidates that agree with `key` above, which are few. Equal ones of a
/// warp are counted at once.
__device__ void count_listed(const Candidate* candidates, std::uint32_t found, Digit digit,
                             std::uint32_t key, std::uint32_t* bins) {
#pragma unroll 1
  for (std::uint32_t base = kLanes * warp_in_block(); base < found; base += kScanThreads) {
    const std::uint32_t i = base + lane();
    const std::uint32_t m = i < found ? candidates[i].magnitude : 0, d = digit.of(m);
    const bool agrees = d != 0 && digit.prefix(m) == digit.prefix(key);
    const std::uint32_t agreeing = __ballot_sync(kAllLanes, agrees);
    if (agreeing == 0) continue;
    const int first = __ffs(static_cast<int>(agreeing)) - 1;
    const bool as_first = d == __shfl_sync(kAllLanes, d, first);
    const std::uint32_t same = __ballot_sync(kAllLanes, agrees && as_first);
    if (lane() == static_cast<unsigned>(first))
      atomicAdd(&bins[d], static_cast<std::uint32_t>(__popc(same)));
    else if (agrees && !as_first)
      atomicAdd(&bins[d], 1u);
  }
}

__global__ void __launch_bounds__(kScanThreads, 4) count_candidates(Frame frame, Plan plan) {
  const Tile tile(frame, plan, blockIdx.x);
  const Digit digit(2);
  const std::uint32_t found = frame(plan.found)[blockIdx.x], key = tile.state.key;
  const bool listed = found <= tile.capacity();
  if (listed && tile.job.tiles > 1) {
    std::uint32_t* const all = tile.histogram(frame, plan);
    count_listed(tile.candidates(frame, plan), found, digit, key, all);
    return tile.choose_behind_all(all, 2, digit);
  }
  tile.clear(digit);
  if (listed)
    count_listed(tile.candidates(frame, plan), found, digit, key, tile.bins);
  else
    count_tile(frame.entries(tile.job.layer), tile.begin, tile.job.n, digit, key, tile.bins);
  tile.finish(frame, plan, 2);
}

/// By a whole warp: sets the segment's words. Marked are the entries above `key` and, of those
/// equal to it, the first `ties`. Returns how many are equal to it.
__device__ std::uint32_t mark_segment(const Entries& x, const SegmentRange& range,
                                      std::uint32_t key, std::uint32_t ties, std::uint64_t* words) {
  std::uint32_t equals = 0;
  for (std::uint64_t base = range.begin; base < range.end; base += kKeptStep) {
    const std::uint64_t at = base + 4 * lane();
    float v[4];
    x.four(at, range.end, v);
    std::uint32_t marked = 0, equal = 0;
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint32_t m = magnitude(v[k]);
      if (at + k >= range.end) continue;
      marked |= (m >= key ? 1u : 0u) << k;
      equal |= (m == key ? 1u : 0u) << k;
    }
    if (__any_sync(kAllLanes, equal != 0)) {
      std::uint32_t total;
      std::uint32_t rank =
          equals + warp_exclusive_sum(static_cast<std::uint32_t>(__popc(equal)), total);
      for (unsigned k = 0; k < 4; ++k) {
        if (((equal >> k) & 1u) != 0 && rank++ >= ties) marked &= ~(1u << k);
      }
      equals += total;
    }
    put_marks(marked, at, range.begin, range.end, words);
  }
  return equals;
}

__global__ void __launch_bounds__(kScanThreads) mark(Frame frame, Plan plan) {
  const UnitOf at = find_unit(frame, plan.tiles, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  const MarksJob& marks = frame(plan.marks.jobs)[at.job];
  const std::uint32_t key = frame(plan.states)[at.job].key, found = frame(plan.found)[blockIdx.x];
  const std::uint64_t first_segment = at.index * (kTile / kKeptSegment);
  std::uint64_t* const words =
      frame(plan.marks.words) + marks.first_word + first_segment * kSegmentWords;
  std::uint32_t* const equal = frame(plan.equal) + marks.first_segment + first_segment;
  const std::uint32_t capacity = candidates_of_tile(job.n);
  if (found > capacity) {
    const unsigned own = warp_in_block();
    if (own >= kTile / kKeptSegment || (first_segment + own) * kKeptSegment >= job.n) return;
    const std::uint32_t equals =
        mark_segment(frame.entries(job.layer), SegmentRange(job.n, first_segment + own), key, ~0u,
                     words + own * kSegmentWords);
    if (lane() == 0) equal[own] = equals;
    return;
  }
  const Candidate* const candidates =
      frame(plan.candidates) + job.first_candidate + at.index * capacity;
  for (std::uint32_t i = threadIdx.x; i < found; i += kScanThreads) {
    const Candidate own = candidates[i];
    if (own.magnitude < key) continue;
    atomicOr(reinterpret_cast<unsigned long long*>(&words[own.place / 64]),
             1ull << (own.place % 64));
    if (own.magnitude == key) atomicAdd(&equal[own.place / kKeptSegment], 1u);
  }
}

__global__ void __launch_bounds__(kScanThreads) rank_ties(Frame frame, Plan plan) {
  const std::uint64_t first = frame(plan.marks.jobs)[blockIdx.x].first_segment;
  const std::uint32_t* const equal = frame(plan.equal) + first;
  std::uint32_t* const before = frame(plan.equal_before) + first;
  scan_blockwide<std::uint32_t>(
      coding::marks_segments(frame(plan.jobs)[blockIdx.x].n),
      [&](std::uint64_t i) { return equal[i]; },
      [&](std::uint64_t i, std::uint32_t sum) { before[i] = sum; });
}

__global__ void __launch_bounds__(kScanThreads) settle(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.marks.segments);
  if (at) {
    const Job& job = frame(plan.jobs)[at.job];
    const State& state = frame(plan.states)[at.job];
    const std::uint32_t before = frame(plan.equal_before)[at.number];
    const std::uint32_t left = before < state.ties ? state.ties - before : 0;
    if (frame(plan.equal)[at.number] > left) {
      mark_segment(frame.entries(job.layer), SegmentRange(job.n, at.index), state.key, left,
                   segment_words(frame, plan.marks, at));
    }
  }
  measure_segments(frame, plan.marks, at);
}

/// A body that keeps half of the entries or more has the bit map, and gaps are not looked at.
__global__ void __launch_bounds__(kLongScanThreads, 1) layout_bodies(Frame frame, Plan plan) {
  const Job& job = frame(plan.jobs)[blockIdx.x];
  layout_marks<kLongScanThreads>(frame, plan.marks, blockIdx.x, job.keep >= job.n - job.keep);
  if (threadIdx.x != 0) return;
  const std::uint64_t marks = format::topk_values_at(frame(plan.marks.states)[blockIdx.x].bytes);
  LayerState& layer = frame.layer(job.layer);
  layer.bytes = was_non_finite(frame, job.layer) ? 0 : marks + 4 * std::uint64_t{job.keep};
  frame(plan.ends)[blockIdx.x] = 32 * std::uint64_t{job.keep};
  StagedBody& body = frame(frame.plan.staged)[job.layer];
  body.prefix = plan.sections.at + 4 * job.first_word;
  body.prefix_bytes = marks;
  body.slots = plan.values.at + 4 * job.first_value;
  body.slot_words = job.keep;
  body.ends = plan.ends.at + 8 * std::uint64_t{blockIdx.x};
  body.pieces = 1;
}

/// By a whole warp: the marked entries of a segment, in their order, to `values`. A lane reads four neighbours of a
/// row of 128 entries; several rows are on their way before one is stored, as each comes from memory.
__device__ void stage_values(const Entries& x, const SegmentRange& range,
                             const std::uint64_t* words, std::uint32_t* values) {
  constexpr unsigned kRows = 4;
  const std::uint64_t low = words[2 * lane()], high = words[2 * lane() + 1];  // of row lane()
  std::uint32_t total;
  const std::uint32_t before =
      warp_exclusive_sum(static_cast<std::uint32_t>(__popcll(low) + __popcll(high)), total);
  const bool upper = lane() >= kLanes / 2;
  const unsigned shift = 4 * (lane() % (kLanes / 2));
  const auto rows = static_cast<unsigned>((range.end - range.begin + kKeptStep - 1) / kKeptStep);
#pragma unroll 1
  for (unsigned row = 0; row < rows; row += kRows) {
    unsigned bits[kRows];
    std::uint32_t rank[kRows];
    float v[kRows][4];
#pragma unroll
    for (unsigned k = 0; k < kRows; ++k) {
      const int of = static_cast<int>(row + k);
      const std::uint64_t first = __shfl_sync(kAllLanes, low, of),
                          second = __shfl_sync(kAllLanes, high, of);
      const std::uint64_t own = upper ? second : first;
      bits[k] = static_cast<unsigned>(own >> shift) & 15u;
      rank[k] = __shfl_sync(kAllLanes, before, of) +
                static_cast<std::uint32_t>((upper ? __popcll(first) : 0) +
                                           __popcll(own & ((std::uint64_t{1} << shift) - 1)));
      if (bits[k] != 0) x.four(range.begin + kKeptStep * (row + k) + 4 * lane(), range.end, v[k]);
    }
#pragma unroll
    for (unsigned k = 0; k < kRows; ++k) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        if (((bits[k] >> j) & 1u) != 0) values[rank[k]++] = __float_as_uint(v[k][j]);
      }
    }
  }
}

__global__ void stage(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.marks.segments);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  write_segment(frame, plan.marks, at, frame(plan.sections) + job.first_word);
  stage_values(frame.entries(job.layer), SegmentRange(job.n, at.index),
               segment_words(frame, plan.marks, at),
               frame(plan.values) + job.first_value + frame(plan.marks.ranks)[at.number]);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::topk>(layers);
  plan = {};
  if (count == 0) return;
  JobMaker<Job> jobs(layout, count);
  MarksPlanner marks(layout, count);
  std::uint64_t values = 0, words = 0, candidates = 0;
  std::uint32_t histograms = 0;
  for_each_of_method<MethodId::topk>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    const std::uint64_t n = layer.n;
    const std::uint32_t keep = layer.kind.params;
    const auto tiles = static_cast<std::uint32_t>(divide_up(n, kTile));
    jobs.add({n, values, words, candidates, number, keep, tiles, histograms}, tiles);
    marks.add(number, n);
    values += keep;
    words += format::max_topk_values_at(n) / 4;
    candidates += std::uint64_t{tiles} * candidates_of_tile(n);
    histograms += tiles > 1 ? 1 : 0;
  });
  plan.count = jobs.count();
  plan.jobs = jobs.jobs().table;
  plan.tiles = jobs.jobs().units;
  plan.marks = marks.finish_written();
  plan.states = layout.zeroed<State>(count);
  plan.histograms = layout.zeroed<std::uint32_t>(std::size_t{histograms} * kBins);
  plan.sections = layout.zeroed<std::uint32_t>(words);
  plan.candidates = layout.scratch<Candidate>(candidates);
  plan.found = layout.scratch<std::uint32_t>(plan.tiles.units);
  plan.equal = layout.scratch<std::uint32_t>(plan.marks.segments.units);
  plan.equal_before = layout.scratch<std::uint32_t>(plan.marks.segments.units);
  plan.values = layout.scratch<std::uint32_t>(values);
  plan.ends = layout.scratch<std::uint64_t>(count);
}

void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_blocks(count_digits, plan.tiles.units, kScanThreads, 0, frame, plan);
  queue.launch_blocks(gather, plan.tiles.units, kScanThreads, 0, frame, plan);
  queue.launch_blocks(count_candidates, plan.tiles.units, kScanThreads, 0, frame, plan);
}

void size(const Frame& frame, const Plan& plan, Queue& queue) {
  const std::uint64_t segments = plan.marks.segments.units;
  queue.launch_blocks(mark, plan.tiles.units, kScanThreads, 0, frame, plan);
  queue.launch_blocks(rank_ties, plan.count, kScanThreads, 0, frame, plan);
  queue.launch_blocks(settle, divide_up(segments, kScanThreads / kLanes), kScanThreads, 0, frame,
                      plan);
  queue.launch_blocks(layout_bodies, plan.count, kLongScanThreads, 0, frame, plan);
  queue.launch_warps(stage, segments, frame, plan);
}

}  // namespace atomo::cuda::topk
