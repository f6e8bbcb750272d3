// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Whether an entry between two values goes to the upper one. The probability follows from the very
/// values that a decoder has, so their own rounding biases nothing.

#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

/// True with probability `above_low` / `gap`, rounded up to a multiple of 2^-32 (and by 2^-53 of
/// itself, the one product that rounds): 0 for 0, 1 for `gap`. `random` is uniform over 32 bits.
/// 0 <= above_low <= gap, differences of f32 numbers in f64.
[[nodiscard]] ATOMO_HD constexpr bool draw_between(double above_low, double gap,
                                                   std::uint32_t random) noexcept {
  return static_cast<double>(random) * gap < above_low * 0x1p32;
}

}  // namespace atomo::math
