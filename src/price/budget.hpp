// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The bits and bytes that budgets and caps leave for bodies.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/namespaces.hpp"

namespace atomo::price {

/// The least and the largest budget, in bits a parameter.
inline constexpr double kMinBudgetBits = 0.001, kMaxBudgetBits = 32;

/// Of `cap` bits a parameter for n parameters, what `head` bytes leave for bodies; 0 when they
/// leave nothing.
[[nodiscard]] inline std::size_t capped_bytes(double cap, std::size_t n,
                                              std::size_t head) noexcept {
  const double bytes = std::floor(cap * static_cast<double>(n) / 8) - static_cast<double>(head);
  return bytes < 4 ? 0 : static_cast<std::size_t>(bytes) / 4 * 4;
}

/// Bits that may go into bodies when `budget` is meant to pay for `fixed` too: never under half of
/// the budget, so that a message smaller than its head still says something.
[[nodiscard]] constexpr double body_budget(double budget, double fixed) noexcept {
  return std::max(budget - fixed, budget / 2);
}

/// The bytes that the body of a streamed layer may take.
struct StreamedCap {
  std::uint64_t limit = 0;        ///< at least 1; 0: the message has its limits by itself
  std::uint64_t reserve = 0;      ///< beside it, of one layer of the step
  std::uint32_t layers_log2 = 0;  ///< of a power of two that is at least the number of layers
};

}  // namespace atomo::price
