// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The price of the pool of dithered atoms, on the device (price.cu): the smallest code whose
/// expected bits fit the pool's budget, by the bisection of price_search.cpp. Operations with such
/// atoms add a job a layer, give their largest amplitudes out with `offer_amplitudes`, and ask for
/// a layer's price with `choose_price`.

#include <array>

#include "atomo/price.hpp"
#include "cuda/cub.cuh"
#include "cuda/frame.cuh"
#include "price_math.hpp"

namespace atomo::cuda {

/// What a unit of weight costs, by class and part: cpu::PriceCosts::unit.
using PriceUnits = decltype(cpu::PriceCosts::unit);

/// The atoms of a layer.
struct PriceJob {
  Scratch<double> amplitudes;  ///< of each atom, final when the search begins
  std::uint64_t atoms = 0;
  std::uint64_t weight = 0, last_weight = 0;  ///< of each atom but the last, and of the last
  Table<PriceUnits> units;
  std::uint32_t uncertain = 0, certain = 0;  ///< of a kept atom beside its content
  std::uint32_t layer = 0;
  float price = 0;  ///< > 0: the layer's own, at least; 0: it takes part in the search
};

/// One a job; zeroed.
struct PriceDemand {
  unsigned long long largest = 0;  ///< amplitude, the bits of its f64
  std::uint32_t tickets = 0;       ///< of parts whose amplitudes are there
};

/// Sums over a job's atoms at the candidates of 32 lanes; zeroed, and zero again after each round.
struct PriceSums {
  unsigned long long kept_low[kLanes], kept_high[kLanes];  ///< probabilities: kept_high * 2^32 +
  unsigned long long certain[kLanes];                      ///< atoms
  unsigned long long units[kLanes];                        ///< of certain atoms, each at weight 1
  std::uint32_t tickets;
};

/// Of the pool; zeroed.
struct PriceTotals {
  unsigned long long cost[kLanes] = {};  ///< of all jobs; zero again after each round
  unsigned long long largest = 0;        ///< amplitude of the finite layers of the search
  std::uint32_t tickets = 0;
};

struct PricePlan {
  Table<PriceJob> jobs;
  Split parts;                 ///< of the jobs that take part in the search: warps' shares of atoms
  std::uint32_t searched = 0;  ///< jobs that take part
  Scratch<PriceDemand> demands;
  Scratch<PriceSums> sums;
  Scratch<PriceTotals> totals;
};

/// Atoms of a part.
inline constexpr std::uint64_t kPricePart = 128;

/// Plans the search for jobs added in order.
class PricePlanner {
 public:
  PricePlanner(Layout& layout, std::size_t jobs) noexcept
      : layout_(layout), jobs_(layout.table<PriceJob>(jobs)), parts_(layout, jobs) {}

  void add(const PriceJob& job) noexcept {
    if (!jobs_.values.empty()) jobs_.values[count_] = job;
    parts_.add(job.price > 0 ? 0 : divide_up(job.atoms, kPricePart));
    searched_ += job.price > 0 ? 0 : 1;
    ++count_;
  }
  [[nodiscard]] PricePlan finish() noexcept {
    return {jobs_.place,
            parts_.split(),
            searched_,
            layout_.zeroed<PriceDemand>(count_),
            layout_.zeroed<PriceSums>(count_),
            layout_.zeroed<PriceTotals>(1)};
  }

 private:
  Layout& layout_;
  Layout::NewTable<PriceJob> jobs_;
  SplitMaker parts_;
  std::uint32_t count_ = 0, searched_ = 0;
};

/// Searches the pool's price, unless it is given. Three launches.
void find_price(const PricePlan& plan, const Frame& frame, Queue& queue);

/// By a whole warp, once what its lanes wrote is to be seen: whether it is the last of `count`. The
/// tickets are zero again then.
__device__ inline bool warp_comes_last(std::uint32_t* tickets, std::uint64_t count) {
  __threadfence();
  __syncwarp();
  bool last = false;
  if (lane() == 0) {
    __threadfence();
    last = atomicAdd(tickets, 1u) + 1 == count;
    if (last) atomicExch(tickets, 0u);
  }
  last = __shfl_sync(kAllLanes, static_cast<int>(last), 0) != 0;
  __syncwarp();  // a shuffle orders no memory
  if (last) __threadfence();
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
  const PriceJob& of = frame(plan.jobs)[job];
  PriceDemand& demand = frame(plan.demands)[job];
  if (!is_finite(largest)) {
    frame.mark_non_finite(of.layer);
  } else if (largest > 0) {
    atomicMax(&demand.largest, static_cast<unsigned long long>(__double_as_longlong(largest)));
  }
  __threadfence();
  if (atomicAdd(&demand.tickets, 1u) + 1 != of_parts || of.price > 0) return;
  __threadfence();
  if ((atomicOr(&frame.layer(of.layer).flags, 0u) & detail::Row::kNonFinite) != 0) return;
  const unsigned long long all = atomicMax(&demand.largest, 0ull);
  if (all != 0) atomicMax(&frame(plan.totals)->largest, all);
}

/// What atoms add to a job's sums at a price.
struct AtomSums {
  std::uint64_t kept = 0;  ///< probabilities of uncertain atoms
  std::uint32_t certain = 0, units = 0;

  __device__ void add(const PriceUnits& unit, std::uint32_t key, double price) {
    const double ratio = detail::representative(key) / price;
    if (ratio < 1.0) {
      kept += detail::probability_of_ratio(ratio);
    } else {
      const int c = detail::certain_class(ratio);
      constexpr int kLast = cpu::PriceCosts::kClasses - 1;
      ++certain;
      units += unit[static_cast<std::size_t>(c < kLast ? c : kLast)][detail::part_of_ratio(ratio)];
    }
  }
};

/// The bin of an atom, 0 when it is zero.
__device__ inline std::uint32_t price_key_of(double amplitude) {
  return amplitude > 0 ? detail::amplitude_key(amplitude) : 0;
}

/// What a job takes at `price`, in 1/256 bit, from the sums of the lane, which become zero.
__device__ inline std::uint64_t job_cost(const Frame& frame, const PriceJob& job, double price,
                                         PriceSums& sums) {
  static constexpr auto kGapCosts = std::to_array(detail::kGapCost256);
  const PriceUnits& unit = *frame(job.units);
  const std::uint64_t kept_low = atomicExch(&sums.kept_low[lane()], 0ull);
  const detail::Wide kept =
      (detail::Wide{atomicExch(&sums.kept_high[lane()], 0ull)} << 32) + kept_low;
  const std::uint64_t certain = atomicExch(&sums.certain[lane()], 0ull);
  const std::uint64_t units = atomicExch(&sums.units[lane()], 0ull);
  const std::uint64_t each = unit[0][0];
  detail::Wide of_uncertain = kept * (job.weight * each + job.uncertain);
  detail::Wide of_certain = detail::Wide{units} * job.weight + detail::Wide{certain} * job.certain;
  const std::uint32_t key = price_key_of(frame(job.amplitudes)[job.atoms - 1]);
  if (key != 0) {  // the last atom may be shorter
    AtomSums last;
    last.add(unit, key, price);
    const std::uint64_t less = job.weight - job.last_weight;
    of_uncertain -= detail::Wide{last.kept} * (less * each);
    of_certain -= detail::Wide{last.units} * less;
  }
  const detail::Wide marks =
      detail::marks_cost(job.atoms, kept + (detail::Wide{certain} << 32), kGapCosts.data());
  return detail::saturated((of_uncertain >> 32) + of_certain + marks);
}

struct ChosenPrice {
  float price = 0;  ///< 0 when there is nothing to send
  bool own = false;
};

/// The price a layer is sent at, once the pool's is found: layer.cpp's rule.
__device__ inline ChosenPrice choose_price(const Frame& frame, const PricePlan& plan,
                                           std::uint32_t job) {
  const PriceJob& of = frame(plan.jobs)[job];
  const PoolState& pool = frame.pool(kAtomsPool);
  const double largest =
      __longlong_as_double(static_cast<long long>(frame(plan.demands)[job].largest));
  if (largest == 0 || (frame.layer(of.layer).flags & detail::Row::kNonFinite) != 0) return {};
  const float wanted = of.price > 0 ? of.price : pool.price;
  if (!(wanted > 0)) return {};
  const bool own = of.price > 0 || pool.alone != 0;
  // A candidate at or below `wanted` at which the largest atom can be sent: it need not be raised.
  const std::uint32_t code = __float_as_uint(wanted) >> 16;
  if (code >= detail::kFirstPriceCode &&
      largest / static_cast<double>(detail::code_price(code)) < detail::kTopRatio) {
    return {wanted, own};
  }
  const float lowest = detail::code_price(detail::lowest_code(largest));
  if (wanted < lowest) return {lowest, true};
  return {wanted, own};
}

}  // namespace atomo::cuda
