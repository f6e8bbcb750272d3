// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The settings of a registered codec, and which of them a layer is sent at, at a price.

#include <cstddef>
#include <cstdint>
#include <span>

#include "price/price.hpp"

namespace atomo::price {

/// One setting of a codec on a layer.
struct Setting {
  std::uint64_t bits_256 = 0;  ///< expected bits of the body, in 1/256 bit
  double squared_error = 0;    ///< expected, finite
};

/// The place of the setting with the least expected error and bits at a price, of equal ones that with
/// fewer bits, then the first; its bits fall as the price rises. At 0: that with the least error.
[[nodiscard]] std::size_t best_setting(std::span<const Setting> settings, float price) noexcept;

/// The best setting's bits. A message with the layer counts as worth sending up to the smallest price at
/// which the best setting is the one of fewest bits: beyond that a higher price changes nothing.
[[nodiscard]] Expected expected_of_settings(std::span<const Setting> settings,
                                            float price) noexcept;

}  // namespace atomo::price
