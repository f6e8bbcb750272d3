// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Every outcome of short dyadic draws: exact expectations and covariances of an estimator, in
/// double.

#include <cstdint>
#include <functional>
#include <vector>

namespace atomo::test {

/// A draw that was chosen, not drawn: `high` and `low` bits of one entry.
struct ChosenDraw {
  std::uint32_t high_bits = 0, low_bits = 0;
  [[nodiscard]] std::uint32_t high() const { return high_bits; }
  [[nodiscard]] std::uint32_t low() const { return low_bits; }
};

struct Moments {
  std::vector<double> mean;
  std::vector<double> covariance;  ///< row-major, of n x n
};

/// Moments of `estimate(draws)` over all draws of `bits` high and `bits` low bits for each of
/// `entries` entries.
inline Moments enumerate_draws(
    int entries, int bits,
    const std::function<std::vector<double>(const std::vector<ChosenDraw>&)>& estimate) {
  const auto n = static_cast<std::size_t>(entries);
  const std::uint64_t each = std::uint64_t{1} << (2 * bits);
  std::uint64_t outcomes = 1;
  for (std::size_t i = 0; i < n; ++i) outcomes *= each;
  std::vector<ChosenDraw> draws(n);
  std::vector<double> sum(n), products(n * n);
  for (std::uint64_t outcome = 0; outcome < outcomes; ++outcome) {
    std::uint64_t left = outcome;
    for (auto& draw : draws) {
      const auto word = static_cast<std::uint32_t>(left % each);
      draw = {word >> bits, word & ((1u << bits) - 1)};
      left /= each;
    }
    const std::vector<double> y = estimate(draws);
    for (std::size_t i = 0; i < n; ++i) {
      sum[i] += y[i];
      for (std::size_t j = 0; j < n; ++j) products[i * n + j] += y[i] * y[j];
    }
  }
  const auto count = static_cast<double>(outcomes);
  Moments moments{sum, products};
  for (auto& m : moments.mean) m /= count;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double& c = moments.covariance[i * n + j];
      c = c / count - moments.mean[i] * moments.mean[j];
    }
  }
  return moments;
}

}  // namespace atomo::test
