// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a layer is sent at and as, once a price is found: rules for host and device.

#include <cstdint>
#include <limits>

#include "core/host_device.hpp"
#include "format/dithered_layer.hpp"
#include "price/price.hpp"

namespace atomo::price {

/// The price that a layer is sent at.
struct ChosenPrice {
  float price = 0;   ///< 0: nothing is sent
  bool own = false;  ///< it stands in the layer's body
};

/// `wanted`, but for a price below the `lowest` that the layer can be sent at, or keep its limit at:
/// then the lowest, which is the layer's own.
[[nodiscard]] ATOMO_HD constexpr ChosenPrice at_least(float lowest, ChosenPrice wanted) noexcept {
  return wanted.price > 0 && wanted.price < lowest ? ChosenPrice{lowest, true} : wanted;
}

/// A body with pairs and rows starts with the bytes of its pairs.
inline constexpr std::uint64_t kTwoFamilies256 = 256 * 8 * kPairBytesField;

/// What a form with both families comes to. When neither keeps anything there is no body.
[[nodiscard]] ATOMO_HD constexpr Expected expected_of_both(const Expected& pairs,
                                                           const Expected& rows) noexcept {
  const std::uint64_t bits = pairs.bits_256 + rows.bits_256;
  return {bits == 0 ? 0 : bits + kTwoFamilies256, pairs.worth + rows.worth};
}
[[nodiscard]] ATOMO_HD constexpr std::uint64_t loss_of_both(std::uint64_t pairs,
                                                            std::uint64_t rows) noexcept {
  return pairs + rows + kTwoFamilies256;
}

/// The loss of a form of atoms. One that is expected to keep nothing is taken where no other keeps
/// anything either: without draws its loss may be the least, and the budget would not be spent.
[[nodiscard]] ATOMO_HD constexpr std::uint64_t loss_of_form(const Expected& expected,
                                                            std::uint64_t loss) noexcept {
  return expected.worth == 0 ? std::numeric_limits<std::uint64_t>::max() : loss;
}

/// The form of least loss, the first of equal ones; forms are offered in their order. Whatever its
/// loss, the first one counts until another has less.
struct LeastForm {
  std::uint32_t form = 0;
  std::uint64_t loss = std::numeric_limits<std::uint64_t>::max();

  /// Whether the form is the best so far.
  ATOMO_HD constexpr bool offer(std::uint32_t offered, std::uint64_t its_loss) noexcept {
    if (its_loss >= loss) return false;
    form = offered;
    loss = its_loss;
    return true;
  }
};

}  // namespace atomo::price
