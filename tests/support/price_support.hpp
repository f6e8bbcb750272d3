// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The library's search for a price, asked over plain families of atoms, a layer each.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "price/price_input.hpp"
#include "price/price_math.hpp"

namespace atomo::price {

/// What a search found.
struct Price {
  float a = 0;                          ///< 0 when every atom is zero
  std::uint64_t expected_bits_256 = 0;  ///< at this price, in 1/256 bit
  bool at_floor = false;                ///< the finest class is spent: no budget buys a lower price
  bool overspent = false;  ///< the largest price worth sending at, which is above the budget
};

/// What all layers come to at the price `a`.
[[nodiscard]] inline Expected expected(std::span<const PriceLayer> layers, float a) {
  Expected sum;
  for (const PriceLayer& layer : layers) {
    const Expected own = expected(layer, a);
    sum.bits_256 += own.bits_256;
    sum.worth += own.worth;
  }
  return sum;
}
[[nodiscard]] inline std::uint64_t expected_bits_256(std::span<const PriceLayer> layers, float a) {
  return expected(layers, a).bits_256;
}

[[nodiscard]] inline Price find_price(std::span<const PriceLayer> layers,
                                      std::uint64_t budget_bits) {
  std::vector<PriceInput> inputs(layers.size());
  std::vector<const PriceInput*> all;
  double max_rms = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    inputs[i].forms[0].atoms = layers[i];
    all.push_back(&inputs[i]);
    max_rms = std::max(max_rms, layers[i].max_rms);
  }
  const FoundPrice found = find_price(all, static_cast<double>(budget_bits));
  if (found.price == 0) return {};
  return {found.price, expected_bits_256(layers, found.price),
          found.price == price_of_code(min_price_code(max_rms)), found.overspent};
}

}  // namespace atomo::price
