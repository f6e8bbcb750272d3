// SPDX-License-Identifier: Apache-2.0
/// The costs of rows and blocks from the tables of the prefix code: content, class, their share of
/// a group's length.
#include "price/atom_costs.hpp"

#include <algorithm>

#include "format/atom_body.hpp"
#include "price/price_math.hpp"

namespace atomo::price {
namespace {

/// The cost of the content of an atom of any length.
PriceCosts entry_costs() noexcept {
  PriceCosts costs;
  const auto self_noise = [](std::size_t c) {
    const auto delta = static_cast<double>(kAtomClasses[c].delta);
    return delta * delta * kDitherVariance;
  };
  for (std::size_t c = 0; c < PriceCosts::kClasses; ++c) {
    const auto& step = kStepCost256[kAtomClasses[c].step];
    for (std::size_t part = 0; part < PriceCosts::kParts; ++part)
      costs.unit[c][part] = c == 0 ? step[0] : step[1 + ((c - 1) % 2) * PriceCosts::kParts + part];
    if (c > 0) costs.noise[c].fill(noise_cost_256(self_noise(c)));
  }
  costs.uncertain_noise = noise_cost_256(1 + self_noise(0));
  costs.signal = noise_cost_256(1);
  return costs;
}

}  // namespace

std::size_t max_price_bins(const AtomLayout& layout) noexcept {
  return static_cast<std::size_t>(std::min<std::uint64_t>(layout.count, kLastPriceCode));
}

PriceCosts price_costs(const AtomLayout& layout) noexcept {
  static const PriceCosts of_entries = entry_costs();
  PriceCosts costs = of_entries;
  // The 16 bits of a group's length are shared by its atoms or paid for every piece.
  const GroupShape shape = GroupShape::of(std::max<std::uint64_t>(layout.length, 1));
  const auto lengths = static_cast<std::uint32_t>(shape.pieces * 16 * 256 / shape.atoms);
  costs.uncertain = 256 + lengths;
  costs.certain = 256 * (1 + kClassBits) + lengths;
  costs.entries = std::max(costs.entries, static_cast<std::uint32_t>(layout.length_of(0)));
  return costs;
}

}  // namespace atomo::price
