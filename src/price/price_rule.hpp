// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Where the price of a layer comes from.

#include <cstdint>

#include "core/namespaces.hpp"

namespace atomo::price {

/// Layers of one pool share a price.
enum class Pool : std::uint8_t {
  none,   ///< the method has no price
  atoms,  ///< price: rms amplitude `a` of an atom that is only just certain
  grid,   ///< price: the grid step
};

/// Where the price of a layer comes from.
struct PriceRule {
  enum class From : std::uint8_t { none, budget, price, keep };
  From from = From::none;
  float price = 0;  ///< price: at least this, or the lowest that the layer can be sent at
  std::uint64_t keep =
      0;  ///< keep: entries expected not to become zero, or pairs expected to be kept
};

}  // namespace atomo::price
