// SPDX-License-Identifier: Apache-2.0
/// The expected bits and the expected loss of atoms at a price, as sums over bins of amplitudes.
#include "price/price.hpp"

#include <algorithm>

#include "price/price_math.hpp"

namespace atomo::price {
namespace {

/// Sums over the atoms of a layer at a price.
struct LayerSums {
  Wide bits_256 = 0;
  std::uint64_t worth = 0;
  Wide noise_256 = 0;  ///< what the variance costs
};

/// One shift of each sum at the end: sums over atoms in any order agree.
template <bool kNoise>
LayerSums layer_sums(const PriceLayer& layer, float a) noexcept {
  const auto price = static_cast<double>(a);
  Wide uncertain = 0, certain = 0, kept_32 = 0, uncertain_noise = 0, certain_noise = 0;
  for (const PriceBin& bin : layer.bins) {
    const PriceCosts& costs = *layer.costs;
    const double ratio = representative(bin.key) / price;
    if (ratio < 1.0) {
      const std::uint64_t p = probability_of_ratio(ratio);
      if (costs.selection == Selection::nearest) {
        if constexpr (kNoise) uncertain_noise += Wide{bin.weight} * ((p * p >> 32) * costs.signal);
        continue;
      }
      uncertain += (Wide{bin.weight} * costs.unit[0][0] + Wide{bin.count} * costs.uncertain) * p;
      kept_32 += Wide{bin.count} * p;
      if constexpr (kNoise) {
        const std::uint64_t squared = (p * p) >> 32;
        uncertain_noise += Wide{bin.weight} * (p * costs.uncertain_noise - squared * costs.signal);
      }
    } else {
      const auto c =
          static_cast<std::size_t>(std::min(certain_class(ratio), PriceCosts::kClasses - 1));
      const std::size_t part = part_of_ratio(ratio);
      if constexpr (kNoise) certain_noise += Wide{bin.weight} * costs.noise[c][part];
      if (costs.selection == Selection::nearest && c < kNearestClass) continue;
      certain += Wide{bin.weight} * costs.unit[c][part] + Wide{bin.count} * costs.certain;
      kept_32 += Wide{bin.count} << 32;
    }
  }
  LayerSums sums;
  sums.noise_256 = (uncertain_noise >> 32) + certain_noise;
  if (kept_32 == 0) return sums;
  sums.bits_256 = (uncertain >> 32) + certain + marks_cost(layer.atoms, kept_32, kGapCost256);
  sums.worth = worth_of_atoms(kept_32, layer.costs->entries);
  return sums;
}

}  // namespace

PriceCosts costs_of(Selection selection, PriceCosts drawn) noexcept {
  PriceCosts costs = drawn;
  costs.selection = selection;
  if (selection == Selection::drawn) return costs;
  for (std::size_t part = 0; part < PriceCosts::kParts; ++part) {
    const double r = 1 + (static_cast<double>(part) + 0.5) / (2 * PriceCosts::kParts);
    costs.noise[1][part] = static_cast<std::uint32_t>(r * r * static_cast<double>(drawn.signal));
  }
  return costs;
}

Expected expected(const PriceLayer& layer, float a) noexcept {
  const LayerSums sums = layer_sums<false>(layer, a);
  return {saturated(sums.bits_256), sums.worth};
}

Weighed weigh(const PriceLayer& layer, float a) noexcept {
  const LayerSums sums = layer_sums<true>(layer, a);
  return {{saturated(sums.bits_256), sums.worth}, saturated(sums.bits_256 + sums.noise_256)};
}

}  // namespace atomo::price
