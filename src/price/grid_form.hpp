// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Coordinates as a form of the method automatic, for host and device: when they are tried, and
/// what they cost at a price.

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"
#include "format/kind.hpp"
#include "price/price_math.hpp"

namespace atomo::price {

/// Up to here, or when all but a quarter of the entries are zero, coordinates are tried.
inline constexpr std::uint64_t kFewEntries = 1024;
[[nodiscard]] constexpr bool tries_grid(std::uint64_t n, std::uint64_t zeros) noexcept {
  return n <= kFewEntries || zeros >= n - n / 4;
}

/// The grid step at a price; infinite when it would leave the range of f32.
[[nodiscard]] constexpr float grid_step(float price) noexcept { return price * kGridStepOfPrice; }

/// Code of the lowest price whose grid has at least this step.
[[nodiscard]] constexpr std::uint32_t min_grid_price_code(float step) noexcept {
  return (std::bit_cast<std::uint32_t>(step / kGridStepOfPrice) >> 16) + 1;
}

/// The worth of an error in 1/256 bit; `error` is GridExpected::error16.
[[nodiscard]] constexpr std::uint64_t grid_error_cost_256(std::uint64_t error) noexcept {
  constexpr double kErrorCost =
      static_cast<double>(kGridStepOfPrice) * static_cast<double>(kGridStepOfPrice) / kBitPrice;
  constexpr auto kCost = static_cast<std::uint64_t>(kErrorCost * 256 + 0.5);
  return (error >> 16) * kCost + ((error & 0xFFFF) * kCost >> 16);
}

}  // namespace atomo::price
