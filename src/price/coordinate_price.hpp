// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a grid step costs: the magnitudes of a layer as a histogram over the upper 15 bits of |x|
/// (128 bins an octave), and the expected size of its body at any step, in integers alone.

#include <cstddef>
#include <cstdint>

#include "atomo/types.hpp"
#include "price/price.hpp"

namespace atomo::price {

/// What the body comes to at a step, nothing when every entry is zero; its bits fall as the step
/// rises.
struct GridExpected {
  Expected expected;
  /// The expected squared error of rounding to that grid, in units of the squared step and of 2^-16,
  /// each |x| at the middle of its bin.
  std::uint64_t error16 = 0;
};
[[nodiscard]] GridExpected expected_on_grid(ConstBytes demand, float step) noexcept;

/// The step at which `keep` entries are expected not to become zero: sum of min(1, |x|/step), with
/// each |x| at the middle of its bin (within 2^-8). When fewer are not zero, a step that keeps all
/// of them. 0 when every entry is zero.
[[nodiscard]] float step_that_keeps(ConstBytes demand, std::uint64_t keep) noexcept;

[[nodiscard]] float largest_magnitude(ConstBytes demand) noexcept;

/// The smallest step for entries up to `largest` in magnitude, at which levels stay below 2^29. Its
/// lower 16 bits are zero.
[[nodiscard]] float min_grid_step(float largest) noexcept;

}  // namespace atomo::price
