// SPDX-License-Identifier: Apache-2.0
/// \file
/// Squared norms are added in f64 and kept as f32, as checkpoints have them.

#include "algorithms/lazy_rule.hpp"

#include <algorithm>
#include <numeric>

namespace train {

LazyRule::LazyRule(double xi, std::size_t weights) : xi_(xi), before_(weights), numbers_(kPlaces) {}

void LazyRule::begin(std::span<const float> weights) {
  double change = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double by = static_cast<double>(weights[i]) - static_cast<double>(before_[i]);
    change += by * by;
  }
  std::copy(weights.begin(), weights.end(), before_.begin());
  if (numbers_[kBegun] > 0) {
    std::shift_right(numbers_.begin(), numbers_.begin() + kChanges, 1);
    numbers_[0] = static_cast<float>(change);
  }
}

bool LazyRule::sends(double rate, double change, double error) {
  const bool first = numbers_[kBegun] == 0;
  numbers_[kBegun] = 1;
  const double moved = std::accumulate(numbers_.begin(), numbers_.begin() + kChanges, 0.0);
  const double bearable =
      xi_ / kChanges * moved / (rate * rate) + 3 * (error + static_cast<double>(numbers_[kError]));
  if (!first && change <= bearable && numbers_[kSkipped] < kMostSkipped) {
    numbers_[kSkipped] += 1;
    return false;
  }
  numbers_[kSkipped] = 0;
  numbers_[kError] = static_cast<float>(error);
  return true;
}

}  // namespace train
