// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The search for a price over plain layers: what codec/price_search.cpp does over methods.

#include <cstdint>
#include <limits>
#include <span>

#include "price/price.hpp"
#include "price/price_math.hpp"

namespace atomo::price {

/// What a search found.
struct Price {
  float a = 0;                          ///< 0 when every atom is zero
  std::uint64_t expected_bits_256 = 0;  ///< at this price, in 1/256 bit
  bool at_floor = false;                ///< the finest class is spent: no budget buys a lower price
  bool overspent = false;  ///< the largest price worth sending at, which is above the budget
};

/// What all layers come to at the price `a`, in 1/256 bit.
[[nodiscard]] inline std::uint64_t expected_bits_256(std::span<const PriceLayer> layers,
                                                     float a) noexcept {
  return expected(layers, a).bits_256;
}

/// The smallest price not below the floor whose expected bits are at most `budget_bits`; the
/// largest that is worth sending at when that is smaller.
[[nodiscard]] inline Price find_price(std::span<const PriceLayer> layers,
                                      std::uint64_t budget_bits) noexcept {
  double max_rms = 0;
  for (const PriceLayer& layer : layers) max_rms = std::max(max_rms, layer.max_rms);
  if (max_rms == 0) return {};
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t budget = budget_bits > kMost / 256 ? kMost : budget_bits * 256;
  const std::uint32_t lowest = min_price_code(max_rms);
  const FoundCode found = search_codes(
      lowest, budget, [&](std::uint32_t code) { return expected(layers, price_of_code(code)); });
  const float a = price_of_code(found.code);
  return {a, expected_bits_256(layers, a), found.code == lowest, found.overspent};
}

}  // namespace atomo::price
