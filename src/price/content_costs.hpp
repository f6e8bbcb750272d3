// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What an entry of content costs, as the search for a price expects it.

#include <cstdint>

#include "coding/duo_code_tables.hpp"
#include "math/selection.hpp"
#include "price/centred_costs.hpp"

namespace atomo::price {

/// A row a coding step, in 1/256 bit (coding::kStepCost256). Content without draws has words of its own.
[[nodiscard]] constexpr const std::uint16_t (*content_costs(Selection selection) noexcept)[17] {
  return selection == Selection::nearest ? kCentredStepCost256 : coding::kStepCost256;
}

}  // namespace atomo::price
