// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Coordinates as a form of layers of the method automatic (grid_form.cu): whether they are tried,
/// what they cost beside the layer's atoms. Once they are chosen, `size` of coordinates writes
/// them. Each of these launches nothing without such layers.

#include "cuda/coordinate_price.cuh"
#include "cuda/price.cuh"
#include "price/grid_form.hpp"

namespace atomo::cuda::coordinate {

/// Extents, histograms of the layers that try coordinates, GridOffer: three launches.
void offer_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, Queue& queue);
/// PricePlan::results of the grids at the layers' prices, once these are found. A launch.
void price_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, Queue& queue);
/// The steps of the layers that chose coordinates: a launch.
void settle_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, Queue& queue);

// ---- for these files

/// What `prices` knows of a job; the numbers of grids are those of jobs.
__device__ inline const PricedLayer& priced_of(const Frame& frame, const PricePlan& prices,
                                               std::uint32_t number) {
  return frame(prices.layers)[frame(prices.grid_layers)[number]];
}

/// By one thread that knows that a grid of `n` entries is tried: the search weighs it.
__device__ inline void enter_search(const Frame& frame, const PricePlan& prices,
                                    std::uint32_t number, std::uint64_t n) {
  const std::uint32_t together = candidates_together(n);
  std::uint32_t at = atomicAdd(&frame(prices.totals)->looks, kLanes / together);
  for (std::uint32_t first = 0; first < kLanes; first += together)
    frame(prices.looks)[at++] = {number, first};
}

/// A whole team finds the result of a lane at a price.
__device__ inline void weigh_at(const Frame& frame, const Plan& plan, const PricePlan& prices,
                                std::uint32_t number, float price, unsigned at, Team team,
                                SizeMemories& memories) {
  const float step = price::grid_step(price);
  if (!is_finite(step)) return;  // never chosen
  const GridSize size = expected_size<true>(frame, plan, frame(plan.jobs)[number],
                                            frame(plan.states)[number], step, team, memories);
  if (team.rank() != 0) return;
  PriceResult& result = frame(prices.results)[prices.first_grid + number];
  result.cost[at] = size.expected.bits_256;
  result.worth[at] = size.expected.worth;
  result.loss[at] = size.expected.bits_256 + price::grid_error_cost_256(size.error);
}

}  // namespace atomo::cuda::coordinate
