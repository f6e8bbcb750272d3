// SPDX-License-Identifier: Apache-2.0
/// How the factors of a pair are quantised, by the shape's aspect and the pair's class, what that
/// costs and how long it can be.

#include <algorithm>
#include <bit>
#include <cmath>

#include "atom_body.hpp"
#include "content_bound.hpp"
#include "pairs.hpp"
#include "price_math.hpp"

namespace atomo::detail {
namespace {

constexpr std::size_t kAspects = std::size(kPairKappa);

/// Margin of a reach over roundings, as in the atoms' table.
constexpr double kReachMargin = 1 + 0x1p-10;

/// Upper end of r in a class; an uncertain pair's content is below 2 a, for P is rounded down.
double top_of_class(std::size_t c) noexcept {
  return c == 0 ? 2.0 : std::ldexp(c % 2 == 0 ? 1.0 : 1.5, static_cast<int>(c / 2));
}

/// Largest rms of the factors of a class, in steps.
struct FactorReach {
  double shorter, longer;
};
FactorReach factor_reach(const MatrixShape& shape, std::size_t atom_class) noexcept {
  const PairSteps steps = kPairSteps[pair_aspect(shape)][atom_class];
  const double shorter = kCodingSteps[steps.shorter].d;
  const double longer = kCodingSteps[steps.longer].d * kClassMiddle[atom_class];
  const double top = top_of_class(atom_class) / longer;
  return {1 / shorter * kReachMargin, top * kReachMargin};
}

/// Variance of a factor's entry under a step, in units of its squared rms.
double self_noise(double step) noexcept { return step * step * kDitherVariance; }

/// Of a pair of ratio r, an entry of its factors: kappa^2 r^2 (E / p - 1), E = (1 + e_u)(1 + e_v),
/// with e_v r^2 the second factor's noise when that has the step of its class.
void add_noise(const PairSteps* steps, double kappa2, cpu::PriceCosts& costs) noexcept {
  const auto noise_of = [](std::size_t step) { return self_noise(kCodingSteps[step].d); };
  for (std::size_t c = 1; c < cpu::PriceCosts::kClasses; ++c) {
    const double bottom = top_of_class(c - 1) * (c == 1 ? 0.5 : 1.0), top = top_of_class(c);
    const double u = noise_of(steps[c].shorter);
    const double v = noise_of(steps[c].longer) * kClassMiddle[c] * kClassMiddle[c];
    for (std::size_t part = 0; part < cpu::PriceCosts::kParts; ++part) {
      const double r = bottom + (top - bottom) * (static_cast<double>(part) + 0.5) /
                                    static_cast<double>(cpu::PriceCosts::kParts);
      costs.noise[c][part] = noise_cost256(kappa2 * (r * r * u + (1 + u) * v));
    }
  }
  const double u = noise_of(steps[0].shorter), v = noise_of(steps[0].longer);
  costs.uncertain_noise = noise_cost256(kappa2 * (1 + u) * (1 + v));
  costs.signal = noise_cost256(kappa2);
}

std::uint32_t cost_of(std::size_t step, std::size_t column) noexcept {
  return kStepCost256[step][column];
}

}  // namespace

PairStep pair_step(const MatrixShape& shape, std::size_t atom_class) noexcept {
  const std::size_t aspect = pair_aspect(shape);
  const auto m = static_cast<double>(shape.shorter()), n = static_cast<double>(shape.longer());
  // rms of the second factor of a pair that is just certain, in units of the price.
  const double unit = kPairKappa[aspect] * std::sqrt((m + n) / (m * n));
  const PairSteps steps = kPairSteps[aspect][atom_class];
  const double shorter = kCodingSteps[steps.shorter].d;
  const double longer = kCodingSteps[steps.longer].d * kClassMiddle[atom_class];
  const FactorReach reach = factor_reach(shape, atom_class);
  return {
      {steps.shorter, escape_bits(shape.shorter(), reach.shorter), static_cast<float>(shorter)},
      {steps.longer, escape_bits(shape.longer(), reach.longer), static_cast<float>(unit * longer)}};
}

std::size_t pair_aspect(const MatrixShape& shape) noexcept {
  // floor(log2(ratio^2) + 1/2), by the exponent of an f64.
  const double ratio = static_cast<double>(shape.longer()) / static_cast<double>(shape.shorter());
  const double squared = ratio * ratio * 1.4142135623730951;
  const auto octave =
      static_cast<std::size_t>((std::bit_cast<std::uint64_t>(squared) >> 52) - 1023);
  return std::min(octave, kAspects - 1);
}

double pair_amplitude(const MatrixShape& shape) noexcept {
  const double entries = static_cast<double>(shape.shorter() + shape.longer());
  return 1.0 / (kPairKappa[pair_aspect(shape)] * std::sqrt(entries));
}

std::uint64_t pair_weight(const MatrixShape& shape) noexcept {
  return 2 * (pairs_of(shape.shorter()) + pairs_of(shape.longer()));
}

cpu::PriceCosts pair_costs(const MatrixShape& shape) noexcept {
  cpu::PriceCosts costs;
  const std::size_t aspect = pair_aspect(shape);
  const std::uint64_t u = 2 * pairs_of(shape.shorter()), v = 2 * pairs_of(shape.longer());
  for (std::size_t c = 0; c < cpu::PriceCosts::kClasses; ++c) {
    const PairSteps steps = kPairSteps[aspect][c];
    for (std::size_t part = 0; part < cpu::PriceCosts::kParts; ++part) {
      // The first factor has the nominal rms, the second stands where r does within its class.
      const std::size_t column = c == 0 ? 0 : 1 + ((c - 1) % 2) * cpu::PriceCosts::kParts + part;
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

std::uint64_t max_pair_content_bits(const MatrixShape& shape) noexcept {
  std::uint64_t bits = 0;
  for (std::size_t c = 0; c < kAtomClassCount; ++c) {
    const PairSteps steps = kPairSteps[pair_aspect(shape)][c];
    const FactorReach reach = factor_reach(shape, c);
    bits = std::max(bits, max_vector_bits(steps.shorter, reach.shorter, shape.shorter()) +
                              max_vector_bits(steps.longer, reach.longer, shape.longer()));
  }
  return bits;
}

}  // namespace atomo::detail
