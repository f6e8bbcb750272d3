// SPDX-License-Identifier: Apache-2.0
/// The price that meets a budget, over all layers of the pool at once.
///
/// Mathematics: a bisection over codes from the lowest, which the largest amplitude sets, to the
/// last; a code is too low where the bits do not fit and a message is worth sending. What an atom
/// costs at a candidate follows from its amplitude's bin (price_math.hpp), in integers, so sums
/// over atoms in any order are the host's sums over bins. All atoms of a layer but the last have
/// one weight: it suffices to sum up probabilities, certain atoms and their unit costs, and to
/// correct for the last atom. Where a layer has several forms, their losses at the candidate decide
/// which one's cost it adds; the form itself is chosen once more in the end, at the price that was
/// found.
///
/// Mapping: three launches of a kernel that looks five levels of the bisection ahead. Lane l = 1 ..
/// 31 of every warp is node l of the tree of middles that can come next (in heap order: node 2l
/// follows when node l's cost fits the budget), lane 0 the lowest code. A warp reads the bins of
/// 128 atoms of a layer, four a lane, and shows them to all lanes, each of which adds up at its own
/// candidate. The warp that ends a job adds the cost of its marks; the one that ends a layer's last
/// job puts the layer's cost to the pool's; the one that ends the last layer walks the tree and
/// leaves the next interval. 2^15 is above the number of codes: three launches always suffice. A
/// fourth, for layers that choose alone, is a warp 128 atoms at one price.
///
/// Traffic: an amplitude of 8 bytes an atom, three times, from the L2 cache; four 64-bit atomics a
/// lane and warp, seven where variance counts. An atom is 256 entries or a row: under 1/10 byte an
/// entry of a block.
///
/// Shared memory: none. Determinism: integers whose sums wrap nowhere. Alignment: only the
/// workspace is read.

#include "cuda/price.cuh"

namespace atomo::cuda {
namespace {

/// By a whole warp: adds a part of a job at the lane's candidate to the job's sums.
__device__ void add_part(const Frame& frame, const PricePlan& plan, const PriceJob& job,
                         std::uint64_t part, double price, PriceSums& sums) {
  const double* const amplitudes = frame(job.amplitudes);
  const PriceUnits& unit = *frame(job.units);
  const PriceUnits* const noises = noises_of(frame, plan, job);
  AtomSums own;
  for (std::uint64_t first = part * kPricePart; first < (part + 1) * kPricePart; first += kLanes) {
    const std::uint64_t atom = first + lane();
    const std::uint32_t key = atom < job.atoms ? price_key_of(amplitudes[atom]) : 0;
    for (unsigned i = 0; i < kLanes; ++i) {
      const std::uint32_t seen = __shfl_sync(kAllLanes, key, static_cast<int>(i));
      if (seen != 0) own.add(unit, noises, seen, price);
    }
  }
  own.pass_on(sums, lane());
}

/// By a whole warp with what the pool comes to at each lane's candidate: walks the tree.
__device__ void narrow(const Frame& frame, PoolPrice& pool, const Expected& own, bool ends,
                       PriceInterval in) {
  const std::uint64_t at_lowest = __shfl_sync(kAllLanes, own.bits_256, 0);
  for (std::uint32_t node = 1; node < kLanes && in.low < in.high;) {
    const std::uint32_t middle = (in.low + in.high) / 2;
    const Expected at{__shfl_sync(kAllLanes, own.bits_256, static_cast<int>(node)),
                      __shfl_sync(kAllLanes, own.worth, static_cast<int>(node))};
    const bool above = price::is_too_low(at, pool.budget_256);
    if (above) {
      in.low = middle + 1;
    } else {
      in.high = middle;
      in.unpaid = at.bits_256 > pool.budget_256;
    }
    node = 2 * node + (above ? 1 : 0);
  }
  if (lane() != 0) return;
  pool.lowest = in.lowest;
  pool.low = in.low;
  pool.high = in.high;
  pool.unpaid = in.unpaid ? 1 : 0;
  if (!ends) return;
  const float found = price::price_of_code(price::last_code(in.low, in.lowest, in.unpaid));
  pool.price = found < pool.given ? pool.given : found;
  if (!(pool.given > 0) && in.low == in.lowest && price::leaves_budget(at_lowest, pool.budget_256))
    frame.notice(Status::underspent);
}

__global__ void search(Frame frame, PricePlan plan, unsigned round, bool ends) {
  const std::uint64_t unit = warp_in_grid();
  if (unit >= plan.parts.units) return;
  PoolPrice& pool = frame.pool(kAtomsPool);
  PriceTotals& totals = *frame(plan.totals);
  const bool limited = frame.state().cap.limit != 0;  // then a given price may be raised
  if (pool.given > 0 && !limited) {
    if (unit == 0 && lane() == 0) pool.price = pool.given;
    return;
  }
  if (totals.largest == 0) return;
  const PriceInterval in = interval_of(pool, totals, round);
  const Candidate candidate = candidate_of(lane(), in.lowest, in.low, in.high);
  const float price = price::price_of_code(candidate.code);
  const UnitOf at = find_unit(frame, plan.parts, unit);
  const PriceJob& job = frame(plan.jobs)[at.job];
  PriceSums& sums = frame(plan.sums)[at.job];
  const std::uint32_t layer = frame(plan.layers)[job.priced].layer;
  const bool finite = (frame.layer(layer).flags & format::LayerRecord::kNonFinite) == 0;
  if (finite) add_part(frame, plan, job, at.index, static_cast<double>(price), sums);
  if (!warp_comes_last(&sums.tickets, divide_up(job.atoms, kPricePart))) return;
  Expected own;
  if (!layer_cost(frame, plan, at.job, finite, price, own)) return;
  if (own.bits_256 != 0) {
    atomicAdd(&totals.cost[lane()], static_cast<unsigned long long>(own.bits_256));
    atomicAdd(&totals.worth[lane()], static_cast<unsigned long long>(own.worth));
  }
  if (!warp_comes_last(&totals.tickets, plan.searched)) return;
  const Expected all{atomicExch(&totals.cost[lane()], 0ull),
                     atomicExch(&totals.worth[lane()], 0ull)};
  narrow(frame, pool, all, ends, in);
}

/// A warp a part of a job, as the search, but four atoms a lane at the one price of the layer.
__global__ void choose(Frame frame, PricePlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.choices);
  if (!at) return;
  const PriceJob& job = frame(plan.jobs)[at.job];
  PriceSums& sums = frame(plan.sums)[at.job];
  const PricedLayer& of = frame(plan.layers)[job.priced];
  const float price = choose_price(frame, plan, job.priced).price;
  if (price > 0) add_expected(frame, plan, job, at.index, static_cast<double>(price), sums);
  if (!warp_comes_last(&sums.tickets, divide_up(job.atoms, kPricePart))) return;
  Expected own;
  if (!layer_cost(frame, plan, at.job, price > 0, price, own) || price == 0 || lane() != 0) return;
  const std::uint32_t form = least_form(frame, plan, of, price, 0).form;
  frame(plan.made)[job.priced].form = form;
}

}  // namespace

void search_price(const Frame& frame, const PricePlan& plan, unsigned round, Queue& queue) {
  static_assert(price::kLastPriceCode < 1u << 5 * kPriceRounds);
  queue.launch_warps(search, plan.parts.units, frame, plan, round, round + 1 == kPriceRounds);
}

void choose_forms(const Frame& frame, const PricePlan& plan, Queue& queue) {
  queue.launch_warps(choose, plan.choices.units, frame, plan);
}

}  // namespace atomo::cuda
