// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What one draw of each codec does to each entry, from its formulas: the variance, the largest
/// error that can happen, and what float rounding may add to the mean. Written from the methods'
/// definitions, with the library's own steps.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "coding/duo_code_tables.hpp"
#include "core/half.hpp"
#include "cpu/atoms.hpp"
#include "cpu/svd.hpp"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"
#include "math/dither.hpp"
#include "math/selection.hpp"
#include "math/stochastic_level.hpp"
#include "price/pair_costs.hpp"
#include "statistics/statistics_checks.hpp"
#include "support/sketch_support.hpp"

namespace atomo::test {

using namespace model;

struct Prediction {
  std::vector<double> variance, largest, slack;
  /// Stretches of the tensor whose inner products <y - x, x> are predicted too: independent of one
  /// another over draws, each a sum of independent terms none above `line_largest`. None where
  /// entries are drawn together.
  std::size_t line = 0;
  std::vector<double> line_variance, line_largest;

  explicit Prediction(std::size_t n) : variance(n), largest(n), slack(n) {}

  /// Lines of independent entries.
  void independent(const std::vector<float>& x, std::size_t length) {
    line = length;
    line_variance.assign((x.size() + length - 1) / length, 0.0);
    line_largest = line_variance;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double v = static_cast<double>(x[i]);
      line_variance[i / length] += v * v * variance[i];
      line_largest[i / length] = std::max(line_largest[i / length], std::fabs(v) * largest[i]);
    }
  }
  [[nodiscard]] double squared_error() const {
    double sum = 0;
    for (const double v : variance) sum += v;
    return sum;
  }
};

/// Rounding to a grid of `step`.
inline void predict_step(Prediction& p, std::size_t i, double x, double step, double bias_bound) {
  const double t = std::fabs(x) / step, f = t - std::floor(t);
  p.variance[i] = step * step * f * (1 - f);
  p.largest[i] = step;
  p.slack[i] = bias_bound * (std::fabs(x) + step);
}

inline Prediction predict_half(const std::vector<float>& x, bool f16) {
  Prediction p(x.size());
  bool overflow = false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double up = static_cast<double>(f16 ? from_f16(to_f16(x[i], 0u, overflow))
                                              : from_bf16(to_bf16(x[i], 0u, overflow)));
    const double down = static_cast<double>(f16 ? from_f16(to_f16(x[i], ~0u, overflow))
                                                : from_bf16(to_bf16(x[i], ~0u, overflow)));
    const double v = static_cast<double>(x[i]);
    p.variance[i] = std::fabs((up - v) * (v - down));
    p.largest[i] = std::fabs(up - down);
    p.slack[i] = 0x1p-57;
  }
  p.independent(x, 100);
  return p;
}

inline Prediction predict_qsgd(const std::vector<float>& x, int bits, std::size_t bucket, bool l2,
                               double bias_bound) {
  Prediction p(x.size());
  for (std::size_t first = 0; first < x.size(); first += bucket) {
    const std::size_t end = std::min(x.size(), first + bucket);
    double squares = 0;
    float largest = 0;
    for (std::size_t i = first; i < end; ++i) {
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      largest = std::max(largest, std::fabs(x[i]));
    }
    const int levels = bits == 1 ? 1 : (1 << (bits - 1)) - 1;
    const auto step = static_cast<double>(
        math::level_step(l2 ? math::norm_from_squares(squares) : largest, levels));
    for (std::size_t i = first; i < end && step > 0; ++i) {
      const double v = static_cast<double>(x[i]);
      predict_step(p, i, v, step, bias_bound);
      if (bits == 1) {
        p.variance[i] = std::max(0.0, step * step - v * v);
        p.largest[i] = step + std::fabs(v);
      }
    }
  }
  p.independent(x, 100);
  return p;
}

inline Prediction predict_coordinates(const std::vector<float>& x, double step, double bias_bound) {
  Prediction p(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    predict_step(p, i, static_cast<double>(x[i]), step, bias_bound);
  return p;
}

inline Prediction predict_random_k(const std::vector<float>& x, std::size_t keep) {
  Prediction p(x.size());
  const double scale = static_cast<double>(x.size()) / static_cast<double>(keep);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = std::fabs(static_cast<double>(x[i]));
    p.variance[i] = v * v * (scale - 1);
    p.largest[i] = v * std::max(1.0, scale - 1);
    p.slack[i] = 0x1p-22 * v;
  }
  return p;
}

inline Prediction predict_atoms(const std::vector<float>& x, const AtomLayout& layout, double price,
                                double bias_bound) {
  Prediction p(x.size());
  p.line = static_cast<std::size_t>(layout.length);
  for (std::uint64_t t = 0; t < layout.count; ++t) {
    const std::size_t first = t * layout.length, length = layout.length_of(t);
    double squares = 0;
    for (std::size_t i = first; i < first + length; ++i)
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    double line = 0, reach = 0;
    if (squares > 0) {
      const cpu::AtomChoice choice = cpu::choose_atom(
          std::sqrt(squares / static_cast<double>(length)), static_cast<float>(price));
      const double step =
          price * static_cast<double>(coding::kAtomClasses[choice.atom_class].delta);
      const double chance = choice.atom_class != 0 ? 1 : choice.probability / math::kTwo32;
      for (std::size_t i = first; i < first + length; ++i) {
        const double v = static_cast<double>(x[i]),
                     noise = dither_variance(v / chance / step) * step * step;
        p.variance[i] = v * v * (1 / chance - 1) + chance * noise;
        p.largest[i] = std::fabs(v) * std::max(1.0, 1 / chance - 1) + step;
        p.slack[i] = bias_bound * (std::fabs(v) + step);
        line += 2 * v * v * chance * noise;  // entries of a pair share a level: at most twice
        reach += std::fabs(v) * step;
      }
      line += squares * squares * (1 / chance - 1);
      reach += squares * std::max(1.0, 1 / chance - 1);
    }
    p.line_variance.push_back(line);
    p.line_largest.push_back(reach);
  }
  return p;
}

/// Singular pairs. Which pairs are kept is drawn together, so an entry's variance is bounded by
/// what full correlation would give; `total` is the predicted squared error of all entries, where
/// pairs are orthogonal.
struct PairPrediction : Prediction {
  double total = 0;
  using Prediction::Prediction;
};

/// The decomposition as the encoder has it, or a sketch.
struct Pairs {
  MatrixShape view;
  std::vector<float> shorter, longer;
  std::vector<double> sigma;
  double unit = 1;  ///< of the longer factors

  Pairs(const std::vector<float>& x, const Shape& shape)
      : view(format::matrix_view(shape)),
        shorter(view.shorter() * view.shorter()),
        longer(view.shorter() * view.longer()),
        sigma(view.shorter()) {
    std::vector<std::byte> workspace(cpu::svd_workspace_bytes(view));
    SingularPairs pairs{shorter, longer, sigma};
    if (failed(cpu::svd(x.data(), view, pairs, workspace))) sigma.clear();
    unit = std::ldexp(1.0, pairs.exponent);
  }
  explicit Pairs(const Sketched& s)
      : view(s.shape),
        shorter(s.shorter),
        longer(s.longer),
        sigma(s.sigma),
        unit(std::ldexp(1.0, s.exponent)) {}
  [[nodiscard]] double u(std::size_t k, std::size_t i) const {
    return static_cast<double>(shorter[k * view.shorter() + i]);
  }
  [[nodiscard]] double v(std::size_t k, std::size_t j) const {
    return static_cast<double>(longer[k * view.longer() + j]) * unit;
  }
};

/// `chance(k)`, and the steps of the two factors as sent, u and sigma v; 0 where they are sent as
/// they are.
template <typename Chance, typename Steps>
PairPrediction predict_pairs(const Pairs& pairs, const Shape& shape, Chance chance, Steps steps) {
  PairPrediction p(shape.elements());
  const std::size_t m = pairs.view.shorter(), n = pairs.view.longer();
  const bool wide = pairs.view.rows <= pairs.view.columns;
  double energy = 0;
  for (const double s : pairs.sigma) energy += s * s;
  std::vector<double> spread(p.variance.size());
  for (std::size_t k = 0; k < pairs.sigma.size(); ++k) {
    const double c = chance(k);
    if (!(c > 0)) continue;
    const auto [step_u, step_v] = steps(k);
    const double noise_u = step_u * step_u * (1 + 2.0 / 256) / 12,
                 noise_v = step_v * step_v * (1 + 2.0 / 256) / 12;
    const double mean_u = static_cast<double>(m) * step_u * step_u * math::kDitherVariance;
    const double mean_v = static_cast<double>(n) * step_v * step_v * math::kDitherVariance;
    const double sigma = pairs.sigma[k];
    p.total += sigma * sigma * (1 / c - 1) +
               c * (mean_v + sigma * sigma / (c * c) * mean_u + mean_u * mean_v);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const std::size_t at = wide ? i * n + j : j * m + i;
        const double u = std::fabs(pairs.u(k, i)), v = std::fabs(pairs.v(k, j));
        spread[at] += u * v * std::sqrt(1 / c - 1);
        p.variance[at] += c * (u * u * noise_v + v * v / (c * c) * noise_u + noise_u * noise_v);
        p.largest[at] += std::max(u * v, (u + step_u) * (v / c + step_v));
      }
    }
  }
  for (std::size_t i = 0; i < spread.size(); ++i) {
    p.variance[i] += spread[i] * spread[i];
    p.slack[i] = 0x1p-20 * std::sqrt(energy);
  }
  return p;
}

/// Steps and probabilities of the dithered pairs at a price (pairs.hpp).
inline PairPrediction predict_dithered_pairs(const Pairs& pairs, const Shape& shape, float price) {
  const auto m = static_cast<double>(pairs.view.shorter()),
             n = static_cast<double>(pairs.view.longer());
  const std::size_t aspect = format::pair_aspect(pairs.view);
  const double unit = price::pair_amplitude(pairs.view);
  const auto choice = [&](std::size_t k) { return cpu::choose_atom(pairs.sigma[k] * unit, price); };
  return predict_pairs(
      pairs, shape,
      [&](std::size_t k) {
        if (pairs.sigma[k] == 0) return 0.0;
        const cpu::AtomChoice c = choice(k);
        return c.atom_class != 0 ? 1.0 : c.probability / math::kTwo32;
      },
      [&](std::size_t k) {
        const std::size_t c = choice(k).atom_class;
        const coding::PairSteps steps = coding::kPairSteps[aspect][c];
        // u sqrt m and sigma v / sqrt m have these steps.
        const double shorter = coding::kCodingSteps[steps.shorter].d;
        const double longer = coding::kCodingSteps[steps.longer].d * coding::kClassMiddle[c] *
                              static_cast<double>(price) * coding::kPairKappa[aspect] *
                              std::sqrt((m + n) / (m * n));
        return std::pair{shorter / std::sqrt(m), longer * std::sqrt(m)};
      });
}

/// A sketch's pairs, and the rows of what they leave: their errors are independent.
inline PairPrediction predict_sketch(const Sketched& s, const Shape& shape, float price,
                                     double bias_bound) {
  PairPrediction p = predict_dithered_pairs(Pairs(s), shape, price);
  const Prediction rows = predict_atoms(s.residual, AtomLayout::rows(s.shape.rows, s.shape.columns),
                                        static_cast<double>(price), bias_bound);
  for (std::size_t i = 0; i < p.variance.size(); ++i) {
    p.variance[i] += rows.variance[i];
    p.largest[i] += rows.largest[i];
    p.slack[i] += rows.slack[i];
  }
  p.total += rows.squared_error();
  return p;
}

}  // namespace atomo::test
