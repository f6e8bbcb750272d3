// SPDX-License-Identifier: Apache-2.0
/// Confidence intervals of means: Maurer's and Pontil's empirical Bernstein bound (COLT 2009, theorem
/// 4) and the bound of Chernoff and Hoeffding in its form with relative entropy (Hoeffding 1963,
/// theorem 1), inverted by bisection.
#include "verify/bounds.hpp"

namespace atomo::verify {
namespace {

/// Relative entropy of two coins.
double entropy(double p, double q) {
  const auto part = [](double a, double b) { return a == 0 ? 0.0 : a * std::log(a / b); };
  return part(p, q) + part(1 - p, 1 - q);
}

/// The furthest q from p, towards `end`, with entropy(p, q) at most `most`.
double furthest(double p, double end, double most) {
  double near = p, far = end;
  for (int i = 0; i < 60; ++i) {
    const double middle = (near + far) / 2;
    (entropy(p, middle) <= most ? near : far) = middle;
  }
  return far;
}

}  // namespace

Span mean_interval(const Statistic& numbers, const Span& range, double error) {
  const double n = numbers.count, width = range.width();
  if (n < 2 || !(width > 0)) return {range.low, range.high};
  // Two bounds and two sides share the error; the one from the sample's variance fails twice as often.
  const double log = std::log(4 / error), empirical = std::log(8 / error);
  const double reach =
      std::sqrt(2 * numbers.variance() * empirical / n) + 7 * width * empirical / (3 * (n - 1));
  const double p = std::clamp((numbers.mean - range.low) / width, 0.0, 1.0);
  const Span coins{range.low + width * furthest(p, 0, log / n),
                   range.low + width * furthest(p, 1, log / n)};
  return {std::max({numbers.mean - reach, coins.low, range.low}),
          std::min({numbers.mean + reach, coins.high, range.high})};
}

double unseen_rate(double draws, double error) {
  return draws > 0 ? std::log(1 / error) / draws : 1;
}

Span range_of(const Statistic& numbers, const Span& possible) {
  if (!numbers.is_typical()) return possible;
  const double more = (numbers.highest - numbers.lowest) / 2;
  return {std::max(possible.low, numbers.lowest - more),
          std::min(possible.high, numbers.highest + more)};
}

}  // namespace atomo::verify
