// SPDX-License-Identifier: Apache-2.0
/// The expected bits and the expected loss of atoms at a price, as sums over bins of amplitudes.
#include "price/price.hpp"

#include <algorithm>

#include "price/price_math.hpp"

namespace atomo::price {
namespace {

struct LayerSums {
  Wide bits_256 = 0;
  std::uint64_t worth = 0;
};

LayerSums layer_sums(const PriceLayer& layer, float a) noexcept {
  const auto price = static_cast<double>(a);
  Wide uncertain = 0, certain = 0, kept_32 = 0;
  for (const PriceBin& bin : layer.bins) {
    const double ratio = representative(bin.key) / price;
    if (ratio < 1.0) {
      const std::uint64_t p = probability_of_ratio(ratio);
      uncertain +=
          (Wide{bin.weight} * layer.costs->unit[0][0] + Wide{bin.count} * layer.costs->uncertain) *
          p;
      kept_32 += Wide{bin.count} * p;
    } else {
      const int c = std::min(certain_class(ratio), PriceCosts::kClasses - 1);
      const std::uint32_t unit =
          layer.costs->unit[static_cast<std::size_t>(c)][part_of_ratio(ratio)];
      certain += Wide{bin.weight} * unit + Wide{bin.count} * layer.costs->certain;
      kept_32 += Wide{bin.count} << 32;
    }
  }
  if (kept_32 == 0) return {};
  return {(uncertain >> 32) + certain + marks_cost(layer.atoms, kept_32, kGapCost256),
          worth_of_atoms(kept_32, layer.costs->entries)};
}

/// What the variance of a layer costs. One shift at the end: sums over atoms in any order agree.
Wide layer_noise_256(const PriceLayer& layer, float a) noexcept {
  const auto price = static_cast<double>(a);
  Wide uncertain = 0, certain = 0;
  for (const PriceBin& bin : layer.bins) {
    const double ratio = representative(bin.key) / price;
    if (ratio < 1.0) {
      const std::uint64_t p = probability_of_ratio(ratio), squared = (p * p) >> 32;
      uncertain +=
          Wide{bin.weight} * (p * layer.costs->uncertain_noise - squared * layer.costs->signal);
    } else {
      const int c = std::min(certain_class(ratio), PriceCosts::kClasses - 1);
      certain +=
          Wide{bin.weight} * layer.costs->noise[static_cast<std::size_t>(c)][part_of_ratio(ratio)];
    }
  }
  return (uncertain >> 32) + certain;
}

}  // namespace

Expected expected(std::span<const PriceLayer> layers, float a) noexcept {
  Wide bits = 0;
  std::uint64_t worth = 0;
  for (const PriceLayer& layer : layers) {
    const LayerSums sums = layer_sums(layer, a);
    bits += sums.bits_256;
    worth += sums.worth;
  }
  return {saturated(bits), worth};
}

std::uint64_t expected_loss_256(std::span<const PriceLayer> layers, float a) noexcept {
  Wide total = 0;
  for (const PriceLayer& layer : layers)
    total += layer_sums(layer, a).bits_256 + layer_noise_256(layer, a);
  return saturated(total);
}

}  // namespace atomo::price
