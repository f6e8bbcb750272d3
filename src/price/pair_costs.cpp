// SPDX-License-Identifier: Apache-2.0
/// The costs and the noise of singular pairs with dithered factors, from the tables of their steps.
#include "price/pair_costs.hpp"

#include <algorithm>
#include <cmath>

#include "coding/tiles.hpp"
#include "format/atom_body.hpp"
#include "format/pair_body.hpp"
#include "price/price_math.hpp"

namespace atomo::price {
namespace {

/// Variance of a factor's entry under a step, in units of its squared rms.
double self_noise(double step) noexcept { return step * step * kDitherVariance; }

/// Of a pair of ratio r, an entry of its factors: kappa^2 r^2 (E / p - 1), E = (1 + e_u)(1 + e_v),
/// with e_v r^2 the second factor's noise when that has the step of its class.
void add_noise(const PairSteps* steps, double kappa2, PriceCosts& costs) noexcept {
  const auto noise_of = [](std::size_t step) { return self_noise(kCodingSteps[step].d); };
  for (std::size_t c = 1; c < PriceCosts::kClasses; ++c) {
    const double bottom = top_of_class(c - 1) * (c == 1 ? 0.5 : 1.0), top = top_of_class(c);
    const double u = noise_of(steps[c].shorter);
    const double v = noise_of(steps[c].longer) * kClassMiddle[c] * kClassMiddle[c];
    for (std::size_t part = 0; part < PriceCosts::kParts; ++part) {
      const double r = bottom + (top - bottom) * (static_cast<double>(part) + 0.5) /
                                    static_cast<double>(PriceCosts::kParts);
      costs.noise[c][part] = noise_cost_256(kappa2 * (r * r * u + (1 + u) * v));
    }
  }
  const double u = noise_of(steps[0].shorter), v = noise_of(steps[0].longer);
  costs.uncertain_noise = noise_cost_256(kappa2 * (1 + u) * (1 + v));
  costs.signal = noise_cost_256(kappa2);
}

std::uint32_t cost_of(std::size_t step, std::size_t column) noexcept {
  return kStepCost256[step][column];
}

}  // namespace

double pair_amplitude(const MatrixShape& shape) noexcept {
  const double entries = static_cast<double>(shape.shorter() + shape.longer());
  return 1.0 / (kPairKappa[pair_aspect(shape)] * std::sqrt(entries));
}

std::uint64_t pair_weight(const MatrixShape& shape) noexcept {
  return 2 * (duos_of(shape.shorter()) + duos_of(shape.longer()));
}

PriceCosts pair_costs(const MatrixShape& shape) noexcept {
  PriceCosts costs;
  const std::size_t aspect = pair_aspect(shape);
  const std::uint64_t u = 2 * duos_of(shape.shorter()), v = 2 * duos_of(shape.longer());
  for (std::size_t c = 0; c < PriceCosts::kClasses; ++c) {
    const PairSteps steps = kPairSteps[aspect][c];
    for (std::size_t part = 0; part < PriceCosts::kParts; ++part) {
      // The first factor has the nominal rms, the second stands where r does within its class.
      const std::size_t column = c == 0 ? 0 : 1 + ((c - 1) % 2) * PriceCosts::kParts + part;
      const std::uint64_t total = u * cost_of(steps.shorter, 0) + v * cost_of(steps.longer, column);
      costs.unit[c][part] = static_cast<std::uint32_t>((total + (u + v) / 2) / (u + v));
    }
  }
  const GroupShape groups = group_shape(shape);
  const auto lengths = static_cast<std::uint32_t>(groups.pieces * 16 * 256 / groups.atoms);
  costs.uncertain = 256 + lengths;
  costs.certain = 256 * (1 + kClassBits) + lengths;
  costs.entries =
      std::max(costs.entries, static_cast<std::uint32_t>(shape.shorter() + shape.longer()));
  add_noise(kPairSteps[aspect], kPairKappa[aspect] * kPairKappa[aspect], costs);
  return costs;
}

}  // namespace atomo::price
