// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Checks of what decides: the loss by which a form is chosen, and the probabilities of pairs
/// beside those of rows. Against plain formulas in f64. As in statistics_checks.hpp, the default is
/// the library.

#include <array>
#include <cmath>

#include "cpu/atoms.hpp"
#include "cpu/magnitudes.hpp"
#include "format/kind.hpp"
#include "format/pair_body.hpp"
#include "math/dither.hpp"
#include "price/atom_costs.hpp"
#include "price/coordinate_price.hpp"
#include "price/magnitude_histogram.hpp"
#include "price/pair_costs.hpp"
#include "price/price.hpp"
#include "price/price_math.hpp"
#include "statistics/statistics_checks.hpp"
#include "support/price_support.hpp"

namespace atomo::test {

using namespace model;

/// Largest relative difference that bins, parts of classes and integer costs may make.
inline constexpr double kLossTolerance = 0.02;

/// What the variance of one atom or pair of a ratio counts in a loss, in squared prices.
struct LossArithmetic {
  /// An atom of `length` entries.
  static double atom(const AtomLayout& layout, double ratio) {
    return noise_of(price::price_costs(layout), layout.length, ratio);
  }
  static double pair(const MatrixShape& shape, double ratio) {
    return noise_of(price::pair_costs(shape), price::pair_weight(shape), ratio);
  }
  /// Entries at `x` prices, `count` of them.
  static double grid(double x, std::size_t count) {
    constexpr float kPrice = 0.25f;
    const std::vector<float> entries(count, static_cast<float>(x) * kPrice);
    std::vector<std::byte> demand(price::magnitude_histogram_bytes(count)),
        scratch(cpu::magnitude_scratch_bytes(count));
    cpu::count_magnitudes(entries.data(), count, demand, scratch, nullptr);
    const double step = static_cast<double>(format::kGridStepOfPrice);
    return static_cast<double>(
               price::expected_on_grid(demand, kPrice * format::kGridStepOfPrice).error16) /
           65536 * step * step;
  }

 private:
  /// The difference of the expected loss and the expected bits. Many atoms, so that their integers
  /// are large.
  static double noise_of(const cpu::PriceCosts& costs, std::uint64_t weight, double ratio) {
    constexpr std::uint64_t kAtoms = 4096;
    const cpu::PriceBin bin{weight * kAtoms, kAtoms, amplitude_key(ratio)};
    const cpu::PriceLayer layer{{&bin, 1}, &costs, kAtoms, ratio};
    const price::Weighed weighed = price::weigh(layer, 1.0f);
    const std::uint64_t noise = weighed.loss_256 - weighed.expected.bits_256;
    return static_cast<double>(noise) / 256 * price::kBitPrice / kAtoms;
  }
};

/// The amplitude that stands for those near it.
inline double middle_of_bin(double ratio) { return price::representative(amplitude_key(ratio)); }

/// E||y - x||^2 of a dithered atom, in squared prices.
inline double variance_of_atom(double length, double ratio) {
  const cpu::AtomChoice choice = cpu::choose_atom(ratio, 1.0f);
  const double delta = static_cast<double>(coding::kAtomClasses[choice.atom_class].delta);
  const double energy = length * ratio * ratio,
               noise = length * delta * delta * math::kDitherVariance;
  if (choice.atom_class != 0) return noise;
  const double p = choice.probability / math::kTwo32;
  return energy * (1 / p - 1) + p * noise;
}

/// The same of a pair: u and sigma v have independent errors, and what is kept is divided by p.
inline double variance_of_pair(const MatrixShape& shape, double ratio) {
  const double m = static_cast<double>(shape.shorter()), n = static_cast<double>(shape.longer());
  const double sigma = ratio / price::pair_amplitude(shape);
  const cpu::AtomChoice choice = cpu::choose_atom(ratio, 1.0f);
  const format::PairStep steps = format::pair_step(shape, choice.atom_class);
  const double p = choice.atom_class != 0 ? 1 : choice.probability / math::kTwo32;
  const double step_u = static_cast<double>(steps.shorter.size) / std::sqrt(m),
               step_v = static_cast<double>(steps.longer.size) * std::sqrt(m);
  const double of_u = m * step_u * step_u * math::kDitherVariance,
               of_v = n * step_v * step_v * math::kDitherVariance;
  const double second = sigma * sigma / (p * p);
  return sigma * sigma * (1 / p - 1) + p * (of_v + second * of_u + of_u * of_v);
}

inline bool is_near(double value, double expected, double scale) {
  return std::fabs(value - expected) <= kLossTolerance * scale;
}

/// What the loss says of variances is the variance.
template <typename Arithmetic = LossArithmetic>
std::string check_loss() {
  const AtomLayout layouts[] = {AtomLayout::blocks(256 * 4096), AtomLayout::rows(4096, 576)};
  const MatrixShape shapes[] = {{64, 64}, {64, 90}, {300, 40}, {16, 1000}, {2, 4000}};
  for (double exponent = -9; exponent < 14.4; exponent += 0.17) {
    const double ratio = middle_of_bin(std::exp2(exponent));
    for (const AtomLayout& layout : layouts) {
      const double expected = variance_of_atom(static_cast<double>(layout.length), ratio);
      const double found = Arithmetic::atom(layout, ratio);
      if (!is_near(found, expected, expected))
        return complaint("atoms of ", layout.length, ", r = ", ratio, ": variance ", found, " for ",
                         expected);
    }
    for (const MatrixShape& shape : shapes) {
      const double expected = variance_of_pair(shape, ratio),
                   found = Arithmetic::pair(shape, ratio);
      // Within an eighth of a class the first factor's part goes with r^2.
      const double middle = ratio < 1 ? 0 : 0.05 * expected;
      if (std::fabs(found - expected) > kLossTolerance * expected + middle)
        return complaint("pairs of ", shape.shorter(), " and ", shape.longer(), ", r = ", ratio,
                         ": variance ", found, " for ", expected);
    }
  }
  const double step = static_cast<double>(format::kGridStepOfPrice);
  for (const double x : {0.01, 0.3, 1.0, 1.7, 2.9, 3.5, 20.0}) {
    const double t = middle_of_bin(x) / step, f = t - std::floor(t);
    const double expected = 1000 * step * step * f * (1 - f), found = Arithmetic::grid(x, 1000);
    if (!is_near(found, expected, 1000 * step * step / 4))
      return complaint("coordinates at ", x, " prices: variance ", found, " for ", expected);
  }
  return {};
}

/// By what a pair's amplitude is divided.
struct PairProbability {
  static double kappa(const MatrixShape& shape) {
    return 1 / (price::pair_amplitude(shape) *
                std::sqrt(static_cast<double>(shape.shorter() + shape.longer())));
  }
};

/// Pairs and rows that are all uncertain: of all probabilities with the same expected bits, those
/// p_j = sqrt(N_j E_j / b_j) / t have the least sum of N_j E_j / p_j (Cauchy-Schwarz), where N_j is
/// the atom's energy, E_j what dither makes of it, b_j its bits. The library's probabilities follow
/// from one price, and come to the same sum.
template <typename Arithmetic = PairProbability>
std::string check_pair_probabilities() {
  constexpr double kBesideContent = 6;  // in 1/256 bit an entry, as the price has it
  const auto self_noise = [](double step) { return 1 + step * step * math::kDitherVariance; };
  const coding::AtomClass& uncertain = coding::kAtomClasses[0];
  for (const MatrixShape& shape :
       {MatrixShape{64, 64}, {64, 90}, {300, 150}, {40, 300}, {16, 1000}, {32, 32000}}) {
    const double entries = static_cast<double>(shape.shorter() + shape.longer());
    const coding::PairSteps steps = coding::kPairSteps[format::pair_aspect(shape)][0];
    const double e_pair = self_noise(coding::kCodingSteps[steps.shorter].d) *
                          self_noise(coding::kCodingSteps[steps.longer].d);
    const double e_row = self_noise(static_cast<double>(uncertain.delta));
    const double b_pair = entries * (price::pair_costs(shape).unit[0][0] + kBesideContent) / 256;
    const double length = static_cast<double>(shape.columns);
    const double b_row = length * (coding::kStepCost256[uncertain.step][0] + kBesideContent) / 256;
    const double kappa = Arithmetic::kappa(shape);
    double sum = 0, bits = 0, root_sum = 0;
    const auto add = [&](double energy, double e, double b, double p) {
      sum += energy * e / p;
      bits += p * b;
      root_sum += std::sqrt(energy * e * b);
    };
    for (int k = 1; k <= 8; ++k) {
      const double sigma = std::sqrt(entries) / (2 * k), rms = 0.9 / k;
      add(sigma * sigma, e_pair, b_pair, sigma / (kappa * std::sqrt(entries)));
      add(length * rms * rms, e_row, b_row, rms);
    }
    const double least = root_sum * root_sum / bits;
    if (!(sum >= least * (1 - 1e-12) && sum <= least * 1.0005))
      return complaint(shape.rows, " x ", shape.columns, ": second moments sum to ", sum, " where ",
                       least, " is possible");
  }
  return {};
}

}  // namespace atomo::test
