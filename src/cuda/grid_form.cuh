// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Coordinates as a form of layers of the method automatic (grid_form.cu): whether they are tried,
/// what they cost beside the layer's atoms. Once they are chosen, `size` of coordinates writes
/// them. Each of these launches nothing without such layers.

#include "cuda/coordinate.cuh"
#include "cuda/price.cuh"

namespace atomo::cuda::coordinate {

/// Extents, histograms of the layers that try coordinates, GridOffer: three launches.
void offer_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, Queue& queue);
/// PricePlan::results of the grids, at the candidates of a round of the search, or, at the round
/// behind the last, at the layers' prices. A launch.
void price_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, unsigned round,
                 Queue& queue);
/// The steps of the layers that chose coordinates: a launch.
void settle_grids(const Frame& frame, const Plan& plan, const PricePlan& prices, Queue& queue);

}  // namespace atomo::cuda::coordinate
