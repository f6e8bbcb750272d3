// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What tests of distributions share: moments over enumerated outcomes, and bounds for Monte Carlo
/// runs that state their error.
///
/// A check returns an empty string or what is wrong, so that the same check can be asked of the
/// library and of a planted mistake (test_mutants.cpp).

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "verify/bounds.hpp"

namespace atomo::test {

/// Enumerated results may be off by the roundings of a double, and by nothing else.
inline constexpr double kExact = 1e-12;

/// Says what is wrong: "mean: 3.5 instead of 3.25 (x = 13)".
template <typename... Words>
[[nodiscard]] std::string complaint(const Words&... words) {
  std::ostringstream out;
  out.precision(17);
  (out << ... << words);
  return out.str();
}

/// True when `value` is `expected` within `kExact` of `scale`.
[[nodiscard]] inline bool is_exact(double value, double expected, double scale) {
  return std::fabs(value - expected) <= kExact * scale;
}

/// Outcomes of a random vector with their probabilities.
class Outcomes {
 public:
  explicit Outcomes(std::vector<double> truth)
      : truth_(std::move(truth)), error_(truth_.size()), products_(truth_.size() * truth_.size()) {}

  void add(double probability, std::span<const double> estimate) {
    weight_ += probability;
    for (std::size_t i = 0; i < truth_.size(); ++i) {
      const long double e = static_cast<long double>(estimate[i]) - truth_[i];
      error_[i] += probability * e;
      for (std::size_t j = 0; j <= i; ++j) {
        products_[i * truth_.size() + j] +=
            probability * e * (static_cast<long double>(estimate[j]) - truth_[j]);
      }
    }
  }

  /// 1 once every outcome was added.
  [[nodiscard]] double weight() const { return static_cast<double>(weight_); }
  [[nodiscard]] double bias(std::size_t i) const { return static_cast<double>(error_[i]); }
  /// E[(y_i - x_i) (y_j - x_j)], j <= i.
  [[nodiscard]] double product(std::size_t i, std::size_t j) const {
    return static_cast<double>(products_[i * truth_.size() + j]);
  }
  [[nodiscard]] double squared_error(std::size_t i) const { return product(i, i); }

 private:
  std::vector<double> truth_;
  std::vector<long double> error_, products_;
  long double weight_ = 0;
};

/// Calls `visit(digits)` for every tuple with digits[i] < sizes[i]: the outcomes of independent
/// uniforms.
template <typename Visit>
void for_each_tuple(std::span<const std::uint32_t> sizes, Visit visit) {
  std::vector<std::uint32_t> digits(sizes.size(), 0);
  for (;;) {
    visit(std::span<const std::uint32_t>(digits));
    std::size_t i = 0;
    for (; i < sizes.size(); ++i) {
      if (++digits[i] < sizes[i]) break;
      digits[i] = 0;
    }
    if (i == sizes.size()) return;
  }
}

using verify::BernsteinFamily;

}  // namespace atomo::test
