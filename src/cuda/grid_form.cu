// SPDX-License-Identifier: Apache-2.0
/// Coordinates beside the atoms of layers that choose their form.
///
/// The mathematics stands in grid_form.hpp and coordinate_levels.hpp: coordinates are tried for
/// tensors of few entries and for those that are mostly zeros; on the grid of 3 times the price
/// they cost the expected bits of the body and what the expected error is worth.
///
/// Mapping. Extents: coordinate_price.cu (measure). offer: a thread a layer. count_tried: a block a
/// segment of 32,768 entries, for the layers that try coordinates and are large enough for a
/// histogram. The price search (price.cu) weighs those that are tried at its candidates; weigh_chosen: a block a
/// layer, at the layer's price. settle: a thread a layer.
///
/// Traffic. 4 bytes an entry, and 4 more where coordinates are tried; then bins, or a small layer's
/// entries, once a candidate, 97 times, from L2.
///
/// Shared memory: 24 KiB (count_tried), 23 KiB (weigh_chosen). Integers: results depend on no order.
/// Tensors are aligned to their entries.

#include "cuda/grid_form.cuh"

namespace atomo::cuda::coordinate {
namespace {

__global__ void offer(Frame frame, Plan plan, PricePlan prices) {
  const std::uint64_t number = warp_in_grid() * kLanes + lane();
  if (number >= plan.count) return;
  const Job& job = frame(plan.jobs)[number];
  const State& state = frame(plan.states)[number];
  if (was_non_finite(frame, job.layer)) return;
  const std::uint64_t n = frame.info(job.layer).n;
  if (!price::tries_grid(n, n - state.nonzero)) return;
  const float least = price::price_of_code(math::min_step_code(__uint_as_float(state.largest)));
  GridOffer& offer = frame(prices.grids)[number];
  offer.tried = 1;
  offer.lowest = price::min_grid_price_code(least);
  if (priced_of(frame, prices, static_cast<std::uint32_t>(number)).price > 0) return;
  atomicMax(&frame(prices.totals)->min_grid_code, offer.lowest);
  enter_search(frame, prices, static_cast<std::uint32_t>(number), n);
}

__global__ void __launch_bounds__(kScanThreads)
    count_tried(Frame frame, Plan plan, PricePlan prices) {
  const UnitOf unit = find_unit(frame, plan.segments, blockIdx.x);
  const Job& job = frame(plan.jobs)[unit.job];
  if (job.counts == kNoCounts || frame(prices.grids)[unit.job].tried == 0) return;
  const std::uint64_t n = frame.info(job.layer).n;
  const std::uint64_t begin = unit.index * math::kCoordinateSegment;
  const std::uint64_t rest = n - begin;
  const std::uint64_t end = rest < math::kCoordinateSegment ? n : begin + math::kCoordinateSegment;
  std::uint64_t* const counts = counts_of(frame, plan, job);
  auto& window = shared<Window>();
  clear(window);
  count_entries(frame.entries(job.layer), begin, end, window, counts);
  __syncthreads();
  put_counts(window, counts);
}

__global__ void __launch_bounds__(kScanThreads)
    weigh_chosen(Frame frame, Plan plan, PricePlan prices) {
  if (frame(prices.grids)[blockIdx.x].tried == 0) return;
  const float price = choose_price(frame, prices, frame(prices.grid_layers)[blockIdx.x]).price;
  if (price > 0)
    weigh_at(frame, plan, prices, blockIdx.x, price, 0, Team(), shared<SizeMemories>());
}

__global__ void settle_steps(Frame frame, Plan plan, PricePlan prices) {
  const std::uint64_t number = warp_in_grid() * kLanes + lane();
  if (number >= plan.count) return;
  const std::uint32_t priced = frame(prices.grid_layers)[number];
  if (chosen_form(frame, prices, priced) != format::kGridForm) return;
  const ChosenPrice chosen = choose_price(frame, prices, priced);
  State& state = frame(plan.states)[number];
  frame.layer(frame(plan.jobs)[number].layer).price = chosen.price;
  state.step = price::grid_step(chosen.price);
  state.own = chosen.own ? 1 : 0;
}

}  // namespace

void offer_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, Queue& queue) {
  if (plan.empty()) return;
  analyse(frame, plan, queue);
  queue.launch_warps(offer, divide_up(plan.count, kLanes), frame, plan, prices);
  queue.launch_blocks(count_tried, plan.segments.units, kScanThreads, 0, frame, plan, prices);
}

void price_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, Queue& queue) {
  queue.launch_blocks(weigh_chosen, plan.count, kScanThreads, 0, frame, plan, prices);
}

void settle_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, Queue& queue) {
  queue.launch_warps(settle_steps, divide_up(plan.count, kLanes), frame, plan, prices);
}

}  // namespace atomo::cuda::coordinate
