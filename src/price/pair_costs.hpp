// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Costs of singular pairs with dithered factors, for the search for a price.

#include <cstdint>

#include "format/matrix.hpp"
#include "price/price.hpp"

namespace atomo::price {

/// Amplitude of a pair of sigma 1.
[[nodiscard]] double pair_amplitude(const MatrixShape& shape) noexcept;
[[nodiscard]] PriceCosts pair_costs(const MatrixShape& shape) noexcept;
/// The weight of a pair in the price search.
[[nodiscard]] std::uint64_t pair_weight(const MatrixShape& shape) noexcept;

}  // namespace atomo::price
