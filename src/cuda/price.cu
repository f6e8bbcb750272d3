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
/// Mapping: one launch of three rounds (rounds.cuh), each of which looks five levels of the bisection
/// ahead. Lane l = 1 .. 31 of every warp is node l of the tree of middles that can come next (in
/// heap order: node 2l follows when node l's cost fits the budget), lane 0 the lowest code, at which grids are
/// weighed in the last round alone. A block
/// takes 2,048 atoms of a layer, or of a layer's grid a candidate; of a small layer's eight, a warp
/// each. Grids that are not tried have no units in the rounds. The first units of a round are those
/// of atoms, which their blocks count by bins before it begins; then each warp of a block shows an eighth of the bins to all lanes, each of which
/// adds up at its own candidate. A bin's share at a price is a product of integers
/// (PriceDivisor), one reciprocal a lane and round. The block that ends a job adds the cost of its
/// marks; the one that ends a layer puts the layer's cost to the pool's; the one that ends the last
/// layer walks the tree and leaves the next interval. 2^15 is above the number of codes: three
/// rounds always suffice. A second launch, for layers that choose alone, is a warp 256 atoms at one
/// price.
///
/// The pool has no histogram of its own: a layer's marks, and what its sums are rounded to, follow
/// from its own counts, so every layer is evaluated at every candidate by itself.
///
/// Traffic: an amplitude of 8 bytes an atom, three times, from the L2 cache; four 64-bit atomics a
/// candidate and block, seven where variance counts. An atom is 256 entries or a row: under 1/10
/// byte an entry of a block.
///
/// Shared memory: 25 KiB. Determinism: integers whose sums wrap nowhere.
/// Alignment: only the workspace is read.

#include "cuda/price.cuh"

#include "cuda/grid_form.cuh"

namespace atomo::cuda {
namespace {

constexpr unsigned kWarps = kScanThreads / kLanes;

/// Bins below the largest of a part that are counted, others are listed atom by atom.
constexpr std::uint32_t kCountedBins = 2048;

struct SearchMemory {
  std::uint32_t counts[kCountedBins];  ///< of the largest bin, then downwards
  std::uint32_t bins[kSearchPart];     ///< those that are not empty
  std::uint32_t bin_count, largest;
  PriceUnits unit, noise;
  std::uint64_t kept[kWarps][kLanes], squared[kWarps][kLanes];
  std::uint32_t certain[kWarps][kLanes], units[kWarps][kLanes], noises[kWarps][kLanes];

  /// From the lowest bit: 9 of the mantissa of a bin's number, 8 of its exponent, the atoms in it.
  __device__ void list(std::uint32_t key, std::uint32_t atoms) {
    const price::BinNumber bin = price::number_of_bin(key);
    bins[atomicAdd(&bin_count, 1u)] = atoms << 17 | bin.exponent << 9 | bin.mantissa;
  }
};

/// By a whole block: what a part of a job has at every price.
__device__ void load_part(const Frame& frame, const PriceJob& job, const PriceUnits* noises,
                          std::uint64_t part, SearchMemory& memory) {
  constexpr unsigned kEach = kSearchPart / kScanThreads;
  static_assert(PriceCosts::kClasses * PriceCosts::kParts == kScanThreads);
  const unsigned c = threadIdx.x / PriceCosts::kParts, at = threadIdx.x % PriceCosts::kParts;
  memory.unit[c][at] = (*frame(job.units))[c][at];
  if (noises != nullptr) memory.noise[c][at] = (*noises)[c][at];
  for (unsigned i = threadIdx.x; i < kCountedBins; i += kScanThreads) memory.counts[i] = 0;
  if (threadIdx.x == 0) memory.bin_count = memory.largest = 0;
  __syncthreads();
  const double* const amplitudes = frame(job.amplitudes);
  std::uint32_t keys[kEach], largest = 0;
#pragma unroll
  for (unsigned k = 0; k < kEach; ++k) {
    const std::uint64_t atom = part * kSearchPart + k * kScanThreads + threadIdx.x;
    keys[k] = atom < job.atoms ? price_key_of(amplitudes[atom]) : 0;
    largest = keys[k] > largest ? keys[k] : largest;
  }
  largest = warp_max(largest);
  if (lane() == 0) atomicMax(&memory.largest, largest);
  __syncthreads();
  largest = memory.largest;
#pragma unroll
  for (const std::uint32_t key : keys) {
    if (key == 0) continue;
    if (largest - key < kCountedBins) {
      atomicAdd(&memory.counts[largest - key], 1u);
    } else {
      memory.list(key, 1);
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kCountedBins; i += kScanThreads) {
    if (memory.counts[i] != 0) memory.list(largest - i, memory.counts[i]);
  }
}

/// By a whole block: adds the warp's share of the part at the lane's candidate, the code of a price.
__device__ void add_part(const SearchMemory& memory, Selection selection, bool has_noise,
                         std::uint32_t code, AtomSums& own) {
  const price::PriceDivisor divisor(code);
  const PriceUnits* const noises = has_noise ? &memory.noise : nullptr;
  for (unsigned i = warp_in_block(); i < memory.bin_count; i += kWarps) {
    const std::uint32_t bin = memory.bins[i];
    own.add(selection, memory.unit, noises, divisor.share({bin & 0x1FFu, bin >> 9 & 0xFFu}),
            bin >> 17);
  }
}

/// By a whole block: adds up the sums of its warps, which go to the job's.
__device__ void pass_on(SearchMemory& memory, const AtomSums& own, PriceSums& sums) {
  const unsigned warp = warp_in_block();
  memory.kept[warp][lane()] = own.kept;
  memory.squared[warp][lane()] = own.squared;
  memory.certain[warp][lane()] = own.certain;
  memory.units[warp][lane()] = own.units;
  memory.noises[warp][lane()] = own.noise;
  __syncthreads();
  const auto all = [](const auto& of) {
    auto sum = of[0][lane()];
    for (unsigned w = 1; w < kWarps; ++w) sum += of[w][lane()];
    return sum;
  };
  AtomSums part;
  if (warp == 0) part.kept = all(memory.kept);
  if (warp == 1) part.squared = all(memory.squared);
  if (warp == 2) part.certain = all(memory.certain);
  if (warp == 3) part.units = all(memory.units);
  if (warp == 4) part.noise = all(memory.noises);
  part.pass_on(sums, lane());
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

/// A round of a block: everything that does not change from unit to unit.
struct Search {
  const Frame& frame;
  const PricePlan& plan;
  Turn turn;
  PriceInterval in;
  Candidate candidate;  ///< of the lane
  float price;          ///< its own

  __device__ Search(const Frame& f, const PricePlan& p, const Turn& t)
      : frame(f),
        plan(p),
        turn(t),
        in(interval_of(f.pool(kAtomsPool), *f(p.totals), t.round)),
        candidate(candidate_of(lane(), in.lowest, in.low, in.high)),
        price(price::price_of_code(candidate.code)) {}

  [[nodiscard]] __device__ bool is_finite_layer(std::uint32_t layer) const {
    return (frame.layer(layer).flags & format::LayerRecord::kNonFinite) == 0;
  }
  /// By the warp that ends a layer: adds what it comes to to the pool's cost; the last one of the
  /// round finds the next interval.
  __device__ void add_layer(const Expected& own) const {
    PriceTotals& totals = *frame(plan.totals);
    if (own.bits_256 != 0) {
      atomicAdd(&totals.cost[lane()], static_cast<unsigned long long>(own.bits_256));
      atomicAdd(&totals.worth[lane()], static_cast<unsigned long long>(own.worth));
    }
    if (!warp_comes_last(&totals.tickets, plan.searched)) return;
    const Expected all{atomicExch(&totals.cost[lane()], 0ull),
                       atomicExch(&totals.worth[lane()], 0ull)};
    const bool ends = turn.round + 1 == kPriceRounds;
    narrow(frame, frame.pool(kAtomsPool), all, ends, in);
    if (lane() == 0) end_round(totals.rounds, ends);
  }
};

/// What a block of the search has in shared memory.
union BlockMemory {
  SearchMemory atoms;
  coordinate::SizeMemories grids;
};

/// Blocks of the search that look at a layer's grid in every round.
__device__ std::uint32_t grid_parts(const Frame& frame, const PricePlan& plan,
                                    const PricedLayer& of) {
  if (of.grid == PricedLayer::kNoGrid || frame(plan.grids)[of.grid].tried == 0) return 0;
  return kLanes / coordinate::candidates_together(frame.info(of.layer).n);
}

/// By a whole block: a part of a job.
__device__ void search_atoms(const Frame& frame, const PricePlan& plan, const Turn& turn,
                             SearchMemory& memory) {
  const UnitOf at = find_unit_together(frame, plan.parts, turn.unit);
  const PriceJob& job = frame(plan.jobs)[at.job];
  const PricedLayer& of = frame(plan.layers)[job.priced];
  const PriceUnits* const noises = noises_of(frame, plan, job);
  load_part(frame, job, noises, at.index, memory);
  wait_for_round(frame(plan.totals)->rounds, turn.round);
  const Search search(frame, plan, turn);
  const bool finite = search.is_finite_layer(of.layer);
  PriceSums& sums = frame(plan.sums)[at.job];
  if (finite) {
    AtomSums own;
    add_part(memory, job.selection, noises != nullptr, search.candidate.code, own);
    pass_on(memory, own, sums);
  }
  if (!block_comes_last(&sums.tickets, divide_up(job.atoms, kSearchPart))) return;
  if (warp_in_block() != 0) return;
  Expected own;
  if (layer_cost(frame, plan, at.job, grid_parts(frame, plan, of), finite, search.price, own))
    search.add_layer(own);
}

/// By a whole block: a grid at some of the candidates.
__device__ void search_grid(const Frame& frame, const PricePlan& plan,
                            const coordinate::Plan& grids, const Turn& turn, const GridLook& look,
                            coordinate::SizeMemories& memory) {
  const std::uint32_t priced = frame(plan.grid_layers)[look.grid];
  const PricedLayer& of = frame(plan.layers)[priced];
  const coordinate::Team team(frame.info(of.layer).n);
  wait_for_round(frame(plan.totals)->rounds, turn.round);
  const Search search(frame, plan, turn);
  const std::uint32_t node = look.first + team.number();
  const Candidate own = candidate_of(node, search.in.lowest, search.in.low, search.in.high);
  if (node == 0 ? turn.round + 1 == kPriceRounds : own.open)
    coordinate::weigh_at(frame, grids, plan, look.grid, price::price_of_code(own.code), node, team,
                         memory);
  __syncthreads();  // all have read the interval, and their results are there
  if (warp_in_block() != 0) return;
  Expected cost;
  const bool finite = search.is_finite_layer(of.layer);
  if (form_cost(frame, plan, priced, of.jobs + grid_parts(frame, plan, of), finite, search.price,
                cost))
    search.add_layer(cost);
}

__global__ void __launch_bounds__(kScanThreads, 3)
    search(Frame frame, PricePlan plan, coordinate::Plan grids) {
  PoolPrice& pool = frame.pool(kAtomsPool);
  PriceTotals& totals = *frame(plan.totals);
  const bool limited = frame.state().cap.limit != 0;  // then a given price may be raised
  if (pool.given > 0 && !limited) {
    if (blockIdx.x == 0 && threadIdx.x == 0) pool.price = pool.given;
    return;
  }
  if (totals.largest == 0) return;
  auto& memory = shared<BlockMemory>();
  const std::uint64_t units = plan.parts.units + totals.looks;
  take_turns(totals.rounds, kPriceRounds, units, [&](const Turn& turn) {
    if (turn.unit < plan.parts.units) {
      search_atoms(frame, plan, turn, memory.atoms);
    } else {
      const GridLook look = frame(plan.looks)[turn.unit - plan.parts.units];
      search_grid(frame, plan, grids, turn, look, memory.grids);
    }
  });
}

/// A warp a part of a job, as the search, but four atoms a lane at the one price of the layer.
__global__ void choose(Frame frame, PricePlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.choices);
  if (!at) return;
  const PriceJob& job = frame(plan.jobs)[at.job];
  PriceSums& sums = frame(plan.sums)[at.job];
  const PricedLayer& of = frame(plan.layers)[job.priced];
  const float price = choose_price(frame, plan, job.priced).price;
  if (price > 0)
    add_expected(frame, plan, job, kPricePart, at.index, static_cast<double>(price), sums);
  if (!warp_comes_last(&sums.tickets, divide_up(job.atoms, kPricePart))) return;
  Expected own;
  if (!layer_cost(frame, plan, at.job, 0, price > 0, price, own) || price == 0 || lane() != 0)
    return;
  const std::uint32_t form = least_form(frame, plan, of, price, 0).form;
  frame(plan.made)[job.priced].form = form;
}

}  // namespace

void search_price(const Frame& frame, const PricePlan& plan, const coordinate::Plan& grids,
                  Queue& queue) {
  static_assert(price::kLastPriceCode < 1u << 5 * kPriceRounds);
  if (plan.parts.units == 0) return;
  const std::uint64_t turns = kPriceRounds * (grids.searches.units + plan.parts.units);
  queue.launch_blocks(search, blocks_of_turns(turns), kScanThreads, 0, frame, plan, grids);
}

void choose_forms(const Frame& frame, const PricePlan& plan, Queue& queue) {
  queue.launch_warps(choose, plan.choices.units, frame, plan);
}

}  // namespace atomo::cuda
