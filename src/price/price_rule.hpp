// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The source of a layer's price: a budget, a price or a count to keep.

#include <cstdint>

#include "core/namespaces.hpp"

namespace atomo::price {

/// Layers of one pool share a price.
enum class Pool : std::uint8_t {
  none,   ///< the layer has no price
  atoms,  ///< price: rms amplitude `a` of an atom that is only just certain
  grid,   ///< price: the grid step
};

/// The rule that an encoder has for its price.
struct PriceRule {
  enum class From : std::uint8_t { none, budget, price, keep };
  Pool pool = Pool::none;
  From from = From::none;
  double budget_bits = 0;  ///< budget: bits a parameter
  double cap_bits = 0;     ///< bits a parameter that no message exceeds; 0: no cap
  float price = 0;         ///< price: at least this, or the least that the layer can be sent at
  std::uint64_t keep = 0;  ///< keep: entries expected not to become zero, or pairs expected kept
};

}  // namespace atomo::price
