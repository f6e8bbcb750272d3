// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Costs of rows and blocks, for the search for a price.

#include <cstddef>

#include "format/atom_layout.hpp"
#include "price/price.hpp"

namespace atomo::price {

/// The costs of the atoms of this layout.
[[nodiscard]] PriceCosts price_costs(const AtomLayout& layout) noexcept;

/// Bins that suffice for the amplitudes of this layout.
[[nodiscard]] std::size_t max_price_bins(const AtomLayout& layout) noexcept;

}  // namespace atomo::price
