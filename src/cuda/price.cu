// SPDX-License-Identifier: Apache-2.0
/// The price that meets a budget, over all layers of the pool at once.
///
/// Mathematics: a bisection over codes from the lowest, which the largest amplitude sets, to the
/// last. What an atom costs at a candidate follows from its amplitude's bin (price_math.hpp), in
/// integers, so sums over atoms in any order are the host's sums over bins. All atoms of a layer
/// but the last have one weight: it suffices to sum up probabilities, certain atoms and their unit
/// costs, and to correct for the last atom.
///
/// Mapping: three launches of a kernel that looks five levels of the bisection ahead. Lane l = 1 ..
/// 31 of every warp is node l of the tree of middles that can come next (in heap order: node 2l
/// follows when node l's cost fits the budget), lane 0 the lowest code. A warp reads the bins of
/// 128 atoms of a layer, four a lane, and shows them to all lanes, each of which adds up at its own
/// candidate. The warp that ends a layer adds the cost of its marks and puts the layer's cost to
/// the pool's; the one that ends the last layer walks the tree and leaves the next interval. 2^15
/// is above the number of codes: three launches always suffice.
///
/// Traffic: an amplitude of 8 bytes an atom, three times, from the L2 cache; four 64-bit atomics a
/// lane and warp. An atom is 256 entries or a row: under 1/10 byte an entry of a block.
///
/// Shared memory: none. Determinism: integers whose sums wrap nowhere. Alignment: only the
/// workspace is read.

#include "cuda/price.cuh"

namespace atomo::cuda {
namespace {

using detail::Wide;

/// Next five levels of the search as lanes see them.
struct Candidate {
  std::uint32_t code = 0;
  bool open = false;  ///< the interval is not down to one code: the cost at `code` decides
};

__device__ Candidate candidate_of(std::uint32_t node, std::uint32_t lowest, std::uint32_t low,
                                  std::uint32_t high) {
  if (node == 0) return {lowest, false};
  for (unsigned bit = 31 - static_cast<unsigned>(__clz(static_cast<int>(node))); bit-- > 0;) {
    if (low >= high) break;
    const std::uint32_t middle = (low + high) / 2;
    if ((node >> bit & 1u) != 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return {(low + high) / 2, low < high};
}

/// By a whole warp: adds a part of a job at the lane's candidate to the job's sums.
__device__ void add_part(const Frame& frame, const PriceJob& job, std::uint64_t part, double price,
                         PriceSums& sums) {
  const double* const amplitudes = frame(job.amplitudes);
  const PriceUnits& unit = *frame(job.units);
  AtomSums own;
  for (std::uint64_t first = part * kPricePart; first < (part + 1) * kPricePart; first += kLanes) {
    const std::uint64_t atom = first + lane();
    const std::uint32_t key = atom < job.atoms ? price_key_of(amplitudes[atom]) : 0;
    for (unsigned i = 0; i < kLanes; ++i) {
      const std::uint32_t seen = __shfl_sync(kAllLanes, key, static_cast<int>(i));
      if (seen != 0) own.add(unit, seen, price);
    }
  }
  const std::uint64_t low = own.kept & 0xFFFFFFFFu, high = own.kept >> 32;
  if (low != 0) atomicAdd(&sums.kept_low[lane()], low);
  if (high != 0) atomicAdd(&sums.kept_high[lane()], high);
  if (own.certain != 0) {
    atomicAdd(&sums.certain[lane()], own.certain);
    atomicAdd(&sums.units[lane()], own.units);
  }
}

/// By a whole warp with the pool's cost at each lane's candidate: walks the tree.
__device__ void narrow(const Frame& frame, PoolState& pool, std::uint64_t cost, bool ends,
                       std::uint32_t lowest, std::uint32_t low, std::uint32_t high) {
  const std::uint64_t at_lowest = __shfl_sync(kAllLanes, cost, 0);
  for (std::uint32_t node = 1; node < kLanes && low < high;) {
    const std::uint32_t middle = (low + high) / 2;
    const bool above = __shfl_sync(kAllLanes, cost, static_cast<int>(node)) > pool.budget_256;
    if (above) {
      low = middle + 1;
    } else {
      high = middle;
    }
    node = 2 * node + (above ? 1 : 0);
  }
  if (lane() != 0) return;
  pool.lowest = lowest;
  pool.low = low;
  pool.high = high;
  if (!ends) return;
  pool.price = detail::code_price(low);
  if (low == lowest && detail::leaves_budget(at_lowest, pool.budget_256))
    frame.notice(Status::underspent);
}

__global__ void search_price(PricePlan plan, Frame frame, unsigned round, bool ends) {
  const std::uint64_t unit = warp_in_grid();
  if (unit >= plan.parts.units) return;
  PoolState& pool = frame.pool(kAtomsPool);
  PriceTotals& totals = *frame(plan.totals);
  if (pool.given > 0) {
    if (unit == 0 && lane() == 0) pool.price = pool.given;
    return;
  }
  if (totals.largest == 0) return;
  std::uint32_t lowest = pool.lowest, low = pool.low, high = pool.high;
  if (round == 0) {
    lowest = low =
        detail::lowest_code(__longlong_as_double(static_cast<long long>(totals.largest)));
    high = detail::kLastPriceCode;
  }
  const Candidate candidate = candidate_of(lane(), lowest, low, high);
  const auto price = static_cast<double>(detail::code_price(candidate.code));
  const UnitOf at = find_unit(frame, plan.parts, unit);
  const PriceJob& job = frame(plan.jobs)[at.job];
  PriceSums& sums = frame(plan.sums)[at.job];
  const bool finite = (frame.layer(job.layer).flags & detail::Row::kNonFinite) == 0;
  if (finite) add_part(frame, job, at.index, price, sums);
  if (!warp_comes_last(&sums.tickets, divide_up(job.atoms, kPricePart))) return;
  if (finite) atomicAdd(&totals.cost[lane()], job_cost(frame, job, price, sums));
  if (!warp_comes_last(&totals.tickets, plan.searched)) return;
  const std::uint64_t cost = atomicExch(&totals.cost[lane()], 0ull);
  narrow(frame, pool, cost, ends, lowest, low, high);
}

}  // namespace

void find_price(const PricePlan& plan, const Frame& frame, Queue& queue) {
  constexpr unsigned kRounds = 3;
  static_assert(detail::kLastPriceCode < 1u << 5 * kRounds);
  for (unsigned round = 0; round < kRounds; ++round) {
    queue.launch_warps(search_price, plan.parts.units, plan, frame, round, round + 1 == kRounds);
  }
}

}  // namespace atomo::cuda
