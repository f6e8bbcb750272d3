// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The learning rate of each step.

#include <cstdint>
#include <string>
#include <vector>

namespace train {

struct Schedule {
  std::string name = "cosine";  ///< or constant, trapezoid, step, exponential
  double rate = 0.05;           ///< that the schedule begins with
  std::uint32_t warmup = 0;     ///< steps over which the rate rises from 0
  std::uint32_t steps = 1;      ///< of the whole run
  double decay = 1;  ///< the factor of `step` at each of its places, of `exponential` a step
  /// Shares of the run: of `step`, or the one from which on `trapezoid` falls along a line to 0.
  std::vector<double> decay_at{};

  /// Of a step, from 0 on. During the warm-up it is what the schedule says, times a share that
  /// rises.
  [[nodiscard]] double operator()(std::uint32_t step) const;
  /// What is left of `rate` at a step, as if there were no warm-up: 1 at first.
  [[nodiscard]] double left(std::uint32_t step) const;
};

/// "0.5,0.75" -> {0.5, 0.75}. \throws std::runtime_error naming the number that is not between 0
/// and 1 or not above the one before it.
[[nodiscard]] std::vector<double> parse_decay_at(const std::string& text);

}  // namespace train
