// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How far the mean of independent draws may be from the truth: Bernstein's inequality where the
/// variance is known, Maurer's and Pontil's where it is estimated, Chernoff's and Hoeffding's where
/// hardly anything varies. Each holds for every number of draws.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace atomo::verify {

/// Bernstein and Bonferroni. A family of `count` sums, each of independent errors with variances
/// that add up to `variance` and none above `largest` in magnitude: with probability at least 1 -
/// `family_error` no sum is above its reach, because P(|S| > t) <= 2 exp(-t^2 / (2 variance + 2
/// largest t / 3)) = family_error / count.
class BernsteinFamily {
 public:
  BernsteinFamily(double count, double family_error) : log_(std::log(2 * count / family_error)) {}

  [[nodiscard]] double reach(double variance, double largest) const {
    const double edge = log_ * largest / 3;
    return edge + std::sqrt(edge * edge + 2 * log_ * variance);
  }
  /// The same for z = S / sqrt(variance) of many small errors: about 7.5 for a million sums and
  /// 1e-9.
  [[nodiscard]] double largest_z() const { return std::sqrt(2 * log_); }

 private:
  double log_;
};

/// Of numbers that come one by one: their mean, the squares around it, the ends.
struct Statistic {
  double count = 0, mean = 0, squares = 0;
  double lowest = std::numeric_limits<double>::infinity();
  double highest = -std::numeric_limits<double>::infinity();

  void add(double value) {
    count += 1;
    const double step = value - mean;
    mean += step / count;
    squares += step * (value - mean);
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  [[nodiscard]] double variance() const { return count > 1 ? squares / (count - 1) : 0; }
  /// No draw has more than a tenth of all squares: what varies was seen often.
  [[nodiscard]] bool is_typical() const {
    const double furthest = std::max(highest - mean, mean - lowest);
    return squares > 0 && furthest * furthest <= squares / 10;
  }
};

/// An interval.
struct Span {
  double low = 0, high = 0;
  [[nodiscard]] double width() const { return high - low; }
};

/// Where the mean of the numbers is, if all of them are in `range`, but for a chance of `error`: of two
/// intervals, each with half of it, what they share.
[[nodiscard]] Span mean_interval(const Statistic& numbers, const Span& range, double error);

/// The range of a statistic whose draws are in `possible`: twice the seen range where that is typical.
[[nodiscard]] Span range_of(const Statistic& numbers, const Span& possible);

/// The rate a draw of events of which none came in so many draws is at most this, but for a chance of `error`.
[[nodiscard]] double unseen_rate(double draws, double error);

}  // namespace atomo::verify
