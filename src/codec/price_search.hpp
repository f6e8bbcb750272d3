// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The price that meets a budget: the smallest candidate at which the expected bits of all layers
/// of a pool fit, but none above the largest at which a message is worth sending. Candidates are
/// the positive f32 whose lower 16 bits are zero (128 an octave), named by their upper 16 bits.

#include <cstdint>
#include <span>

#include "codec/method.hpp"
#include "price/price.hpp"

namespace atomo::codec {

struct Demand {
  const Method* method = nullptr;
  const Shape* shape = nullptr;
  ConstBytes bytes;
};

struct FoundPrice {
  float price = 0;  ///< 0 when there is nothing to send
  bool underspent =
      false;  ///< held up by a layer's lowest price: the budget is above what can be spent
  bool overspent = false;  ///< the budget does not pay for a message worth sending
};

/// `budget_bits` is for bodies alone. Expected sizes fall as the price rises, so it bisects.
/// Neither allocates nor depends on the order of the demands.
[[nodiscard]] FoundPrice find_price(std::span<const Demand> demands, double budget_bits) noexcept;

}  // namespace atomo::codec
