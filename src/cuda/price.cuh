// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The price of the pool of dithered atoms, on the device (price.cu): the smallest code whose
/// expected bits fit the pool's budget, by the bisection of price/price_input.cpp. A layer has a job for
/// each family of atoms that it can be sent as; where these make several forms, the one of least
/// loss counts at every price, and at the layer's own in the end. Amplitudes are given out with
/// `offer_amplitudes`; `choose_price` and `chosen_form` say what became of a layer.

#include <array>

#include "cuda/atom_forms.hpp"
#include "cuda/cub.cuh"
#include "cuda/frame.cuh"
#include "cuda/rounds.cuh"
#include "price/form_choice.hpp"
#include "price/grid_form.hpp"
#include "price/price.hpp"
#include "price/price_math.hpp"

namespace atomo::cuda {

namespace coordinate {
struct Plan;
}

/// The cost of a unit of weight, by class and part: PriceCosts::unit.
using PriceUnits = decltype(PriceCosts::unit);

/// One family of atoms of a layer.
struct PriceJob {
  Scratch<double> amplitudes;  ///< of each atom, final when the search begins
  std::uint64_t atoms = 0;
  std::uint64_t weight = 0, last_weight = 0;  ///< of each atom but the last, and of the last
  Table<PriceUnits> units;
  std::uint32_t uncertain = 0, certain = 0;  ///< of a kept atom beside its content
  std::uint32_t entries = 0;                 ///< that a kept atom counts for (PriceCosts)
  // Variance, of layers that choose (PriceCosts):
  Table<PriceUnits> noise;
  std::uint32_t uncertain_noise = 0, signal = 0;
  Selection selection = Selection::drawn;
  std::uint32_t form = 0;
  std::uint32_t priced = 0;  ///< number of its PricedLayer
  BodyPart part = BodyPart::whole;
};

/// A layer with a price.
struct PricedLayer {
  std::uint32_t layer = 0;
  std::uint32_t first = 0, jobs = 0;  ///< in the order of forms
  std::uint32_t forms = 1;            ///< that it chooses among, coordinates included
  std::uint32_t grid = kNoGrid;       ///< number of its grid
  float price = 0;                    ///< > 0: its own, at least; 0: it takes part in the search
  std::uint64_t min_limit_bytes = 0;  ///< under a cap: bytes its body may always have; else 0

  static constexpr std::uint32_t kNoGrid = ~std::uint32_t{0};
};

/// What is known of coordinates as a form, once the layer is analysed; zeroed.
struct GridOffer {
  std::uint32_t tried = 0;
  std::uint32_t lowest = 0;  ///< code of the lowest price that they can be sent at
};

/// What a block of the search weighs of a grid: the candidates of some lanes (candidates_together).
struct GridLook {
  std::uint32_t grid = 0;
  std::uint32_t first = 0;  ///< of these lanes
};

/// The cost of a job, or of a grid, at the candidates of 32 lanes.
struct PriceResult {
  std::uint64_t cost[kLanes], worth[kLanes], loss[kLanes];
};

/// One a job; zeroed.
struct PriceDemand {
  unsigned long long largest = 0;  ///< amplitude, the bits of its f64
  std::uint32_t tickets = 0;       ///< of parts whose amplitudes are there
  std::uint32_t absent = 0;        ///< 1: pairs that were not looked for; they are no form
};

/// Sums over a job's atoms at the candidates of 32 lanes; zeroed, and zero again after each round.
struct PriceSums {
  unsigned long long kept_low[kLanes], kept_high[kLanes];  ///< probabilities: kept_high * 2^32 +
  unsigned long long certain[kLanes];                      ///< atoms
  unsigned long long units[kLanes];                        ///< of certain atoms, each at weight 1
  // Of layers that choose:
  unsigned long long squared_low[kLanes], squared_high[kLanes];  ///< of probabilities, over 2^32
  unsigned long long noise[kLanes];  ///< of certain atoms, each at weight 1
  std::uint32_t tickets;
};

/// What a layer with several jobs has come to; zeroed.
struct PriceChoice {
  std::uint32_t form = 0;     ///< once the price is found
  std::uint32_t tickets = 0;  ///< of its jobs, and of what weighs its grid
};

/// The sums of a pool; zeroed.
struct PriceTotals {
  unsigned long long cost[kLanes] = {};   ///< of all layers; zero again after each round
  unsigned long long worth[kLanes] = {};  ///< likewise
  unsigned long long largest = 0;         ///< amplitude of the finite layers of the search
  std::uint32_t min_grid_code = 0;        ///< GridOffer::lowest of these, the largest
  std::uint32_t looks = 0;                ///< PricePlan::looks that there are
  std::uint32_t tickets = 0;
  Rounds rounds;  ///< of the search
};

struct PricePlan {
  Table<PriceJob> jobs;
  Table<PricedLayer> layers;
  std::uint32_t count = 0;     ///< layers
  std::uint32_t searched = 0;  ///< layers that take part in the search
  Split parts;    ///< of the jobs whose layers take part in the search: units of kSearchPart atoms
  Split choices;  ///< of those whose layers choose: units of kPricePart atoms
  Scratch<PriceDemand> demands;
  Scratch<PriceSums> sums;
  Scratch<PriceResult> results;      ///< of the jobs, then of the grids
  std::uint32_t first_grid = 0;      ///< of these
  Scratch<PriceChoice> made;         ///< a layer
  Table<std::uint32_t> grid_layers;  ///< the priced layer of each grid
  Scratch<GridOffer> grids;
  Scratch<GridLook> looks;  ///< of the grids that are tried and take part in the search
  Scratch<PriceTotals> totals;
};

/// Atoms of a block's part of the search, and of a warp's where one price is asked for.
inline constexpr std::uint64_t kSearchPart = 2048, kPricePart = 256;

/// Plans the search for layers added in order, each before its jobs.
class PricePlanner {
 public:
  PricePlanner(Layout& layout, std::size_t layers, std::size_t jobs, std::size_t grids) noexcept
      : layout_(layout),
        jobs_(layout, jobs),
        layers_(layout, layers),
        parts_(layout, jobs),
        choices_(layout, jobs),
        grid_layers_(layout, grids) {}

  /// `layer` without `first`.
  void add(PricedLayer layer) noexcept {
    layer.first = jobs_.count();
    layer_ = layer;
    const std::uint32_t number = layers_.add(layer);
    searched_ += layer.price > 0 ? 0 : 1;
    if (layer.grid != PricedLayer::kNoGrid) grid_layers_.add(number);
  }
  /// Adds a job of the layer added last; it sets `job.priced`.
  void add(PriceJob job) noexcept {
    job.priced = priced();
    jobs_.add(job);
    parts_.add(layer_.price > 0 ? 0 : divide_up(job.atoms, kSearchPart));
    choices_.add(layer_.forms > 1 ? divide_up(job.atoms, kPricePart) : 0);
  }
  [[nodiscard]] std::uint32_t priced() const noexcept { return layers_.count() - 1; }
  [[nodiscard]] PricePlan finish() noexcept {
    const std::uint32_t jobs = jobs_.count(), layers = layers_.count();
    const std::uint32_t grids = grid_layers_.count();
    const std::uint32_t results = jobs > layers || grids > 0 ? jobs + grids : 0;
    return {jobs_.table(),
            layers_.table(),
            layers,
            searched_,
            parts_.split(),
            choices_.split(),
            layout_.zeroed<PriceDemand>(jobs),
            layout_.zeroed<PriceSums>(jobs),
            layout_.scratch<PriceResult>(results),
            jobs,
            layout_.zeroed<PriceChoice>(layers),
            grid_layers_.table(),
            layout_.zeroed<GridOffer>(grids),
            layout_.scratch<GridLook>(std::size_t{grids} * kLanes),
            layout_.zeroed<PriceTotals>(1)};
  }

 private:
  Layout& layout_;
  TableMaker<PriceJob> jobs_;
  TableMaker<PricedLayer> layers_;
  SplitMaker parts_, choices_;
  TableMaker<std::uint32_t> grid_layers_;
  PricedLayer layer_;  ///< the one added last
  std::uint32_t searched_ = 0;
};

/// The search for the pool's price, unless it is given: one launch. `grids` are the coordinates of
/// the layers that may choose them.
void search_price(const Frame& frame, const PricePlan& plan, const coordinate::Plan& grids,
                  Queue& queue);
inline constexpr unsigned kPriceRounds = 3;
/// The forms of the layers that choose, at their prices: one launch, none without such layers.
void choose_forms(const Frame& frame, const PricePlan& plan, Queue& queue);

/// By a whole warp, once what its lanes wrote is to be seen: whether it is the last of `count`. The
/// tickets are zero again then.
__device__ inline bool warp_comes_last(std::uint32_t* tickets, std::uint64_t count) {
  __syncwarp();
  bool last = false;
  if (lane() == 0) {
    last = take_ticket(tickets) + 1 == count;
    if (last) atomicExch(tickets, 0u);
  }
  last = __shfl_sync(kAllLanes, static_cast<int>(last), 0) != 0;
  __syncwarp();  // a shuffle orders no memory
  return last;
}

__device__ inline bool is_finite(double x) {
  return (static_cast<std::uint64_t>(__double_as_longlong(x)) >> 52 & 0x7FFu) != 0x7FFu;
}

/// By a whole warp that has written `of_parts`'th part of a job's amplitudes, the largest of which
/// is `largest` (in every lane); an amplitude that is not finite takes the layer out. The warp that
/// comes last passes the job's largest on to the search.
__device__ inline void offer_amplitudes(const Frame& frame, const PricePlan& plan,
                                        std::uint32_t job, std::uint64_t of_parts, double largest) {
  __syncwarp();
  if (lane() != 0) return;
  const PricedLayer& of = frame(plan.layers)[frame(plan.jobs)[job].priced];
  PriceDemand& demand = frame(plan.demands)[job];
  if (!is_finite(largest)) {
    frame.mark_non_finite(of.layer);
  } else if (largest > 0) {
    atomicMax(&demand.largest, static_cast<unsigned long long>(__double_as_longlong(largest)));
  }
  if (take_ticket(&demand.tickets) + 1 != of_parts || of.price > 0) return;
  if ((atomicOr(&frame.layer(of.layer).flags, 0u) & format::LayerRecord::kNonFinite) != 0) return;
  const unsigned long long all = atomicMax(&demand.largest, 0ull);
  if (all != 0) atomicMax(&frame(plan.totals)->largest, all);
}

/// The sums that atoms add to a job's at a price.
struct AtomSums {
  std::uint64_t kept = 0;     ///< probabilities of uncertain atoms
  std::uint64_t squared = 0;  ///< their squares over 2^32, where noise is asked for
  std::uint32_t certain = 0, units = 0, noise = 0;

  /// `count` atoms of one share; `noises` is null where the variance does not matter. Without draws
  /// those of the first classes are lost.
  __device__ void add(Selection selection, const PriceUnits& unit, const PriceUnits* noises,
                      const price::AtomShare& share, std::uint32_t count = 1) {
    const bool nearest = selection == Selection::nearest;
    if (share.kept < price::kCertain) {
      if (!nearest) kept += count * share.kept;
      if (noises != nullptr) squared += count * ((share.kept * share.kept) >> 32);
    } else {
      const std::uint32_t c = share.place / PriceCosts::kParts;
      const std::uint32_t part = share.place % PriceCosts::kParts;
      if (noises != nullptr) noise += count * (*noises)[c][part];
      if (nearest && c < math::kNearestClass) return;
      certain += count;
      units += count * unit[c][part];
    }
  }
  /// Adds these to the job's sums of lane `to`.
  __device__ void pass_on(PriceSums& sums, unsigned to) const {
    const auto add = [to](unsigned long long(&all)[kLanes], std::uint64_t value) {
      if (value != 0) atomicAdd(&all[to], static_cast<unsigned long long>(value));
    };
    add(sums.kept_low, kept & 0xFFFFFFFFu);
    add(sums.kept_high, kept >> 32);
    add(sums.certain, certain);
    add(sums.units, units);
    add(sums.squared_low, squared & 0xFFFFFFFFu);
    add(sums.squared_high, squared >> 32);
    add(sums.noise, noise);
  }
};

/// The tables of what noise costs, null where the job's layer does not choose.
__device__ inline const PriceUnits* noises_of(const Frame& frame, const PricePlan& plan,
                                              const PriceJob& job) {
  return frame(plan.layers)[job.priced].forms > 1 ? frame(job.noise) : nullptr;
}

/// The bin of an atom, 0 when it is zero.
__device__ inline std::uint32_t price_key_of(double amplitude) {
  return amplitude > 0 ? price::amplitude_key(amplitude) : 0;
}

/// By a whole warp: adds what a part of a job, of `size` atoms, takes at `price` to the first of the
/// job's sums.
__device__ inline void add_expected(const Frame& frame, const PricePlan& plan, const PriceJob& job,
                                    std::uint64_t size, std::uint64_t part, double price,
                                    PriceSums& sums) {
  const double* const amplitudes = frame(job.amplitudes);
  AtomSums own;
  for (std::uint64_t atom = part * size + lane(); atom < (part + 1) * size; atom += kLanes) {
    const std::uint32_t key = atom < job.atoms ? price_key_of(amplitudes[atom]) : 0;
    if (key != 0)
      own.add(job.selection, *frame(job.units), noises_of(frame, plan, job),
              price::share_of_atom(key, price));
  }
  own.kept = warp_sum(own.kept);
  own.squared = warp_sum(own.squared);
  own.certain = warp_sum(own.certain);
  own.units = warp_sum(own.units);
  own.noise = warp_sum(own.noise);
  if (lane() == 0) own.pass_on(sums, 0);
}

/// What is expected, and its bits with what the expected variance is worth.
struct JobCost {
  Expected expected;
  std::uint64_t loss = 0;
};

/// What a job takes at `price`, from the sums of the lane, which become zero.
__device__ inline JobCost job_cost(const Frame& frame, const PricePlan& plan, const PriceJob& job,
                                   double price, PriceSums& sums) {
  static constexpr auto kGapCosts = std::to_array(coding::kGapCost256);
  const PriceUnits& unit = *frame(job.units);
  const PriceUnits* const noises = noises_of(frame, plan, job);
  const auto take = [](unsigned long long(&all)[kLanes]) {
    return static_cast<std::uint64_t>(atomicExch(&all[lane()], 0ull));
  };
  const std::uint64_t kept_low = take(sums.kept_low), squared_low = take(sums.squared_low);
  const Wide kept = (Wide{take(sums.kept_high)} << 32) + kept_low;
  const Wide squared = (Wide{take(sums.squared_high)} << 32) + squared_low;
  const std::uint64_t certain = take(sums.certain), units = take(sums.units);
  const std::uint64_t noise = take(sums.noise), each = unit[0][0];
  AtomSums last;  // the last atom may be shorter
  const std::uint32_t key = price_key_of(frame(job.amplitudes)[job.atoms - 1]);
  if (key != 0) last.add(job.selection, unit, noises, price::share_of_atom(key, price));
  const std::uint64_t less = job.weight - job.last_weight;
  const Wide of_uncertain =
      kept * (job.weight * each + job.uncertain) - Wide{last.kept} * (less * each);
  const Wide of_certain =
      Wide{units} * job.weight + Wide{certain} * job.certain - Wide{last.units} * less;
  const Wide all = kept + (Wide{certain} << 32);
  const Wide marks = price::marks_cost(job.atoms, all, kGapCosts.data());
  const Wide bits = (of_uncertain >> 32) + of_certain + marks;
  const Expected expected{price::saturated(bits), price::worth_of_atoms(all, job.entries)};
  if (noises == nullptr) return {expected, 0};
  const auto variance = [&](const Wide& p, const Wide& square) {
    const Wide signal = square * job.signal;
    return job.selection == Selection::nearest ? signal : p * job.uncertain_noise - signal;
  };
  const Wide uncertain_noise =
      variance(kept, squared) * job.weight - variance(Wide{last.kept}, Wide{last.squared}) * less;
  const Wide certain_noise = Wide{noise} * job.weight - Wide{last.noise} * less;
  return {expected, price::saturated(bits + (uncertain_noise >> 32) + certain_noise)};
}

/// A form of a layer, and what it comes to.
struct PricedForm {
  std::uint32_t form = 0;
  Expected expected;
};

/// The layer's form of least loss, the first of equal ones, by the results of lane `at`; `price` is
/// theirs.
__device__ inline PricedForm least_form(const Frame& frame, const PricePlan& plan,
                                        const PricedLayer& of, float price, unsigned at) {
  const PriceJob* const jobs = frame(plan.jobs);
  const PriceResult* const results = frame(plan.results);
  PricedForm best;
  price::LeastForm least;
  for (std::uint32_t j = of.first; j < of.first + of.jobs; ++j) {
    const std::uint32_t form = jobs[j].form;
    if (frame(plan.demands)[j].absent != 0) {
      ++j;
      continue;
    }
    Expected expected{results[j].cost[at], results[j].worth[at]};
    std::uint64_t loss = results[j].loss[at];
    if (jobs[j].part == BodyPart::pairs) {
      ++j;
      expected = price::expected_of_both(expected, {results[j].cost[at], results[j].worth[at]});
      loss = price::loss_of_both(loss, results[j].loss[at]);
    }
    if (j == of.first || form == jobs[of.first].form) best = {form, expected};
    if (least.offer(form, price::loss_of_form(expected, loss))) best = {form, expected};
  }
  if (of.grid == PricedLayer::kNoGrid || frame(plan.grids)[of.grid].tried == 0) return best;
  const PriceResult& grid = results[plan.first_grid + of.grid];
  if (is_finite(price::grid_step(price)) && least.offer(format::kGridForm, grid.loss[at]))
    return {format::kGridForm, {grid.cost[at], grid.worth[at]}};
  return best;
}

/// By the whole warp that ends one of the `count` parts of a layer, the part's results being there:
/// what the layer comes to at the lane's candidate, where it is the last; false where others are
/// under way.
__device__ inline bool form_cost(const Frame& frame, const PricePlan& plan, std::uint32_t priced,
                                 std::uint32_t count, bool finite, float price, Expected& layer) {
  if (!warp_comes_last(&frame(plan.made)[priced].tickets, count)) return false;
  const PricedLayer& of = frame(plan.layers)[priced];
  layer = finite ? least_form(frame, plan, of, price, lane()).expected : Expected{};
  return true;
}

/// The same by the warp that ends a job; `grid_parts` are those of the layer beside its jobs.
__device__ inline bool layer_cost(const Frame& frame, const PricePlan& plan, std::uint32_t number,
                                  std::uint32_t grid_parts, bool finite, float price,
                                  Expected& layer) {
  const PriceJob& job = frame(plan.jobs)[number];
  const PricedLayer& of = frame(plan.layers)[job.priced];
  PriceSums& sums = frame(plan.sums)[number];
  JobCost own;
  if (finite) own = job_cost(frame, plan, job, static_cast<double>(price), sums);
  layer = own.expected;
  if (of.jobs == 1 && of.grid == PricedLayer::kNoGrid) return true;
  PriceResult& result = frame(plan.results)[number];
  result.cost[lane()] = own.expected.bits_256;
  result.worth[lane()] = own.expected.worth;
  result.loss[lane()] = own.loss;
  return form_cost(frame, plan, job.priced, of.jobs + grid_parts, finite, price, layer);
}

using price::ChosenPrice;

/// The price a layer is sent at, once the pool's is found.
__device__ inline ChosenPrice choose_price(const Frame& frame, const PricePlan& plan,
                                           std::uint32_t priced) {
  const PricedLayer& of = frame(plan.layers)[priced];
  const PoolPrice& pool = frame.pool(kAtomsPool);
  unsigned long long bits = 0;  // of a positive f64: as its value
  for (std::uint32_t j = of.first; j < of.first + of.jobs; ++j) {
    const unsigned long long own = frame(plan.demands)[j].largest;
    bits = own > bits ? own : bits;
  }
  const double largest = __longlong_as_double(static_cast<long long>(bits));
  if (largest == 0 || (frame.layer(of.layer).flags & format::LayerRecord::kNonFinite) != 0)
    return {};
  const float wanted = of.price > 0 ? of.price : pool.price;
  if (!(wanted > 0)) return {};
  const bool own = of.price > 0 || pool.alone != 0 || (pool.given > 0 && pool.price > pool.given);
  std::uint32_t least = price::kFirstPriceCode;
  if (of.grid != PricedLayer::kNoGrid && frame(plan.grids)[of.grid].lowest > least)
    least = frame(plan.grids)[of.grid].lowest;
  // A candidate at or below `wanted` at which the largest atom can be sent: it need not be raised.
  const std::uint32_t code = __float_as_uint(wanted) >> 16;
  if (code >= least && largest / static_cast<double>(price::price_of_code(code)) < math::kTopRatio)
    return {wanted, own};
  const std::uint32_t of_atoms = price::min_price_code(largest);
  const float lowest = price::price_of_code(of_atoms < least ? least : of_atoms);
  return price::at_least(lowest, {wanted, own});
}

/// The form of a layer's body, once forms are chosen.
__device__ inline std::uint32_t chosen_form(const Frame& frame, const PricePlan& plan,
                                            std::uint32_t priced) {
  return frame(plan.made)[priced].form;
}

// ---- candidates

/// Next five levels of the search as lanes see them.
struct Candidate {
  std::uint32_t code = 0;
  bool open = false;  ///< the interval is not down to one code: the cost at `code` decides
};

/// Lane `node` of a round's: 1 .. 31 are nodes of the tree of middles, 0 is the lowest code.
__device__ inline Candidate candidate_of(std::uint32_t node, std::uint32_t lowest,
                                         std::uint32_t low, std::uint32_t high) {
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

/// The interval that a round begins with.
struct PriceInterval {
  std::uint32_t lowest = 0, low = 0, high = 0;
  bool unpaid = false;  ///< PoolPrice::unpaid
};
__device__ inline PriceInterval interval_of(const PoolPrice& pool, const PriceTotals& totals,
                                            unsigned round) {
  if (round > 0) return {pool.lowest, pool.low, pool.high, pool.unpaid != 0};
  const std::uint32_t of_atoms =
      price::min_price_code(__longlong_as_double(static_cast<long long>(totals.largest)));
  const std::uint32_t lowest = of_atoms < totals.min_grid_code ? totals.min_grid_code : of_atoms;
  return {lowest, lowest, price::kLastPriceCode};
}

}  // namespace atomo::cuda
