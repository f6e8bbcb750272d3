// SPDX-License-Identifier: Apache-2.0
/// The grid step of coordinates: histograms of magnitudes, the step that meets a budget, the steps
/// of layers that find their own.
///
/// The mathematics stands in coordinate_levels.hpp, the search in price/price_input.cpp: the smallest
/// code at which the expected bits of all layers of the pool fit, by bisection over at most 2^15
/// codes. Here a launch of three rounds (rounds.cuh) does five levels of the bisection in each, or
/// one of five rounds three: the 31 or 7 codes that its probes can lead to are evaluated side by
/// side, together with the code that the bisection begins at; the last block of a round adds up
/// nothing more but walks the levels, so it takes the probes that a serial search takes.
///
/// Mapping. measure: a block a segment of 32,768 entries. A layer above kListed entries has a
/// histogram of u64 counts in the workspace (32,640 bins, 255 KiB); a block counts the 96 octaves
/// from 2^-64 up in shared memory (16 bits a bin: a block has no more entries) and adds what is not
/// zero, other magnitudes go to the workspace one by one. In a smaller layer every entry is a bin
/// of one: expected counts are linear. grow_tree: a block a round, layer and code, or a warp
/// of it in a small layer; it visits the bins between the layer's smallest and largest magnitude, or its
/// entries, in sums of two 32-bit halves, or of one, four neighbours a thread, and gives every parameter of a
/// list a lane and every eighth bin of levels a warp. keep_count: a block a layer
/// that keeps a count; one warp goes through its bins in ascending order, the sum being f64.
/// find_lowest, settle: a thread a layer.
///
/// Traffic. measure reads each entry once and writes at most 2 bytes an entry, in the worst case of
/// as many bins as entries. grow_tree reads at most 8 bytes a bin and code, or a small layer's
/// entries, from L2: 94 or 36 times.
///
/// Shared memory: 24 KiB (measure, keep_count), 23 KiB (grow_tree). Integers but for the one serial
/// f64 sum, so results depend on no order. Tensors are aligned to their entries.

#include "cuda/coordinate_price.cuh"
#include "price/form_choice.hpp"
#include "price/price_math.hpp"

namespace atomo::cuda::coordinate {
namespace {

__device__ float price_of(std::uint32_t code) { return __uint_as_float(code << 16); }

// ---- analyse

__device__ void note(Extent& all, const Extent& mine) {
  const std::uint32_t largest = warp_max(mine.largest), smallest = warp_max(mine.smallest),
                      nonzero = warp_sum(mine.nonzero), non_finite = warp_max(mine.non_finite);
  if (lane() != 0) return;
  atomicMax(&all.largest, largest);
  atomicMax(&all.smallest, smallest);
  atomicAdd(&all.nonzero, nonzero);
  atomicOr(&all.non_finite, non_finite);
}

__global__ void __launch_bounds__(kScanThreads) measure(Frame frame, Plan plan) {
  const UnitOf unit = find_unit(frame, plan.segments, blockIdx.x);
  const Job job = frame(plan.jobs)[unit.job];
  const std::uint64_t n = frame.info(job.layer).n, begin = unit.index * kCoordinateSegment;
  const std::uint64_t end = n - begin < kCoordinateSegment ? n : begin + kCoordinateSegment;
  std::uint64_t* const counts =
      job.counts == kNoCounts || job.form != 0 ? nullptr : counts_of(frame, plan, job);
  auto& window = shared<Window>();
  auto& all = shared<Extent>();
  if (threadIdx.x == 0) all = {};
  if (counts != nullptr) clear(window);
  __syncthreads();
  note(all, count_entries(frame.entries(job.layer), begin, end, window, counts));
  __syncthreads();
  if (counts != nullptr) put_counts(window, counts);
  if (threadIdx.x != 0) return;
  State& state = frame(plan.states)[unit.job];
  atomicMax(&state.largest, all.largest);
  atomicMax(&state.smallest, all.smallest);
  atomic_add(&state.nonzero, all.nonzero);
  if (all.non_finite != 0) frame.mark_non_finite(job.layer);
}

__global__ void find_lowest(Frame frame, Plan plan) {
  const std::uint64_t number = warp_in_grid() * kLanes + lane();
  if (number >= plan.count) return;
  const Job job = frame(plan.jobs)[number];
  State& state = frame(plan.states)[number];
  if (was_non_finite(frame, job.layer)) return;
  state.lowest = min_step_code(__uint_as_float(state.largest));
  if (job.from != PriceRule::From::budget) return;
  atomicMax(&frame.pool(kGridPool).lowest, state.lowest);
  if (state.nonzero != 0) atomicOr(&frame(plan.search)->any, 1u);
}

// ---- a budget

/// A round's candidate is the code of a node of the tree of probes: node 1 is the first probe, 2i
/// follows i where the bits fit, 2i + 1 where they do not. 0 when the bisection has ended before.
__device__ std::uint32_t code_of_node(std::uint32_t low, std::uint32_t high, std::uint32_t node) {
  const auto depth = 31 - static_cast<unsigned>(__clz(static_cast<int>(node)));
  for (unsigned level = depth; level-- > 0 && low < high;) {
    const std::uint32_t middle = (low + high) / 2;
    if ((node >> level & 1) != 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < high ? (low + high) / 2 : 0;
}

/// Candidate 0 is where the bisection begins, in the first round; the others are nodes.
__device__ std::uint32_t candidate_code(const PoolPrice& pool, unsigned round,
                                        std::uint32_t candidate) {
  if (candidate == 0) return round == 0 ? pool.lowest : 0;
  return round == 0 ? code_of_node(pool.lowest, kLastPriceCode, candidate)
                    : code_of_node(pool.low, pool.high, candidate);
}

__device__ std::uint32_t rounds_of(const Plan& plan) { return GridSearch::kProbes / plan.depth; }

/// By a whole warp: takes the round's probes, all totals known; in the last round leaves the price.
__device__ void walk(const Frame& frame, const Plan& plan, PoolPrice& pool,
                     const GridSearch& search, unsigned round) {
  // Lane i looks at node i.
  static_assert(GridSearch::kMaxCandidates == kLanes);
  const Expected at{__ldcg(&search.totals[round][lane()]), __ldcg(&search.worth[round][lane()])};
  const std::uint64_t budget = pool.budget_256;
  const std::uint32_t too_low = __ballot_sync(kAllLanes, is_too_low(at, budget) ? 1 : 0);
  const std::uint32_t unpaid = __ballot_sync(kAllLanes, at.bits_256 > budget ? 1 : 0);
  if (lane() != 0) return;
  std::uint32_t low = round == 0 ? pool.lowest : pool.low;
  std::uint32_t high = round == 0 ? kLastPriceCode : pool.high;
  std::uint32_t node = 1;
  for (unsigned level = 0; level < plan.depth && low < high; ++level) {
    const std::uint32_t middle = (low + high) / 2;
    const std::uint32_t above = too_low >> node & 1;
    if (above != 0) {
      low = middle + 1;
    } else {
      high = middle;
      pool.unpaid = unpaid >> node & 1;
    }
    node = 2 * node + above;
  }
  pool.low = low;
  pool.high = high;
  if (round + 1 < rounds_of(plan) || search.any == 0) return;
  pool.price = price_of(last_code(low, pool.lowest, pool.unpaid != 0));
  if (low == pool.lowest && __ldcg(&search.totals[0][0]) < budget - budget / 64)
    frame.notice(Status::underspent);
}

/// By a whole block: a layer at some of the candidates.
__device__ void grow_tree_of(const Frame& frame, const Plan& plan, const Turn& turn) {
  PoolPrice& pool = frame.pool(kGridPool);
  GridSearch& search = *frame(plan.search);
  const UnitOf unit = find_unit_together(frame, plan.searches, turn.unit);
  const std::uint32_t number = frame(plan.budgeted)[unit.job];
  const Job job = frame(plan.jobs)[number];
  const State state = frame(plan.states)[number];
  const std::uint64_t n = frame.info(job.layer).n;
  const Team team(n);
  const std::uint32_t candidate =
      static_cast<std::uint32_t>(unit.index) * candidates_together(n) + team.number();
  wait_for_round(search.rounds, turn.round);
  const std::uint32_t code = candidate_code(pool, turn.round, candidate);
  if (code != 0 && demands(frame, job, state)) {
    const Expected own =
        expected_size<false>(frame, plan, job, state, price_of(code), team, shared<SizeMemories>())
            .expected;
    if (team.rank() == 0 && own.bits_256 != 0) {
      atomic_add(&search.totals[turn.round][candidate], own.bits_256);
      atomic_add(&search.worth[turn.round][candidate], own.worth);
    }
  }
  if (!block_comes_last(&search.tickets, plan.searches.units) || warp_in_block() != 0) return;
  walk(frame, plan, pool, search, turn.round);
  if (lane() == 0) end_round(search.rounds, turn.round + 1 == rounds_of(plan));
}

__global__ void __launch_bounds__(kScanThreads, 5) grow_tree(Frame frame, Plan plan) {
  if (frame.pool(kGridPool).given > 0) return;
  take_turns(frame(plan.search)->rounds, rounds_of(plan), plan.searches.units,
             [&](const Turn& turn) { grow_tree_of(frame, plan, turn); });
}

// ---- steps of their own

/// By a whole warp: hands the bins from `first` to `last` that are not empty to `search`; true when
/// it wants no more. `count_at(bin)` is asked of one lane each.
template <typename CountAt>
__device__ bool search_bins(KeepSearch& search, std::uint32_t first, std::uint32_t last,
                            CountAt count_at) {
  constexpr unsigned kAhead = 4;  // loads on their way together
  for (std::uint32_t base = first; base <= last; base += kAhead * kLanes) {
    std::uint64_t counts[kAhead];
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      const std::uint32_t bin = base + k * kLanes + lane();
      counts[k] = bin <= last ? count_at(bin) : 0;
    }
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      std::uint32_t filled = __ballot_sync(kAllLanes, counts[k] != 0);
      for (; filled != 0; filled &= filled - 1) {
        const int from = __ffs(static_cast<int>(filled)) - 1;
        const std::uint64_t count = __shfl_sync(kAllLanes, counts[k], from);
        if (search.add(base + k * kLanes + static_cast<std::uint32_t>(from), count)) return true;
      }
    }
  }
  return false;
}

__global__ void __launch_bounds__(kScanThreads) keep_count(Frame frame, Plan plan) {
  const std::uint32_t number = frame(plan.keeping)[blockIdx.x];
  const Job job = frame(plan.jobs)[number];
  const State state = frame(plan.states)[number];
  if (!demands(frame, job, state)) return;
  const std::uint32_t first = ~state.smallest >> 16, last = state.largest >> 16;
  KeepSearch search(job.keep, state.nonzero);
  if (job.counts != kNoCounts) {
    const std::uint64_t* const counts = counts_of(frame, plan, job);
    if (warp_in_block() == 0)
      search_bins(search, first, last, [&](std::uint32_t bin) { return counts[bin]; });
  } else {
    auto& window = shared<Window>();
    const Entries x = frame.entries(job.layer);
    const std::uint64_t n = frame.info(job.layer).n;
    for (std::uint32_t base = first; base <= last; base += kWindowBins) {
      clear(window);
      for (std::uint64_t i = threadIdx.x; i < n; i += kScanThreads) {
        const std::uint32_t bits = magnitude_bits(x(i)), place = (bits >> 16) - base;
        if (bits != 0 && place < kWindowBins) count_in(window, place);
      }
      __syncthreads();
      const std::uint32_t end = last - base < kWindowBins ? last : base + kWindowBins - 1;
      if (warp_in_block() == 0)
        search_bins(search, base, end,
                    [&](std::uint32_t bin) { return std::uint64_t{count_of(window, bin - base)}; });
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) frame.layer(job.layer).price = search.step();
}

/// Every layer's step: the pool's, or its own and never below the lowest it can be sent at.
__global__ void settle(Frame frame, Plan plan) {
  const std::uint64_t number = warp_in_grid() * kLanes + lane();
  if (number >= plan.count) return;
  PoolPrice& pool = frame.pool(kGridPool);
  const float common = pool.given > 0 ? pool.given : pool.price;
  const bool alone = pool.alone != 0 && !(pool.given > 0);
  if (number == 0 && pool.given > 0) pool.price = pool.given;
  const Job job = frame(plan.jobs)[number];
  State& state = frame(plan.states)[number];
  if (!demands(frame, job, state)) return;
  LayerState& layer = frame.layer(job.layer);
  const float lowest = price_of(state.lowest);
  if (job.from == PriceRule::From::budget) {
    const price::ChosenPrice chosen = price::at_least(lowest, {common, alone});
    layer.price = state.step = chosen.price;
    state.own = chosen.own ? 1 : 0;
    return;
  }
  const float step = job.from == PriceRule::From::keep ? layer.price : job.price;
  layer.price = state.step = step < lowest ? lowest : step;
  state.own = 1;
}

}  // namespace

/// Jobs of a form end with the extent; it is all they need.
void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_blocks(measure, plan.segments.units, kScanThreads, 0, frame, plan);
}

void search_steps(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_warps(find_lowest, divide_up(plan.count, kLanes), frame, plan);
  const std::uint64_t turns = GridSearch::kProbes / plan.depth * plan.searches.units;
  queue.launch_blocks(grow_tree, blocks_of_turns(turns), kScanThreads, 0, frame, plan);
}

void find_price(const Frame& frame, const Plan& plan, Queue& queue) {
  search_steps(frame, plan, queue);
  queue.launch_blocks(keep_count, plan.keeping_count, kScanThreads, 0, frame, plan);
  queue.launch_warps(settle, divide_up(plan.count, kLanes), frame, plan);
}

}  // namespace atomo::cuda::coordinate
