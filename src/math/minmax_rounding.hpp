// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Stochastic rounding between the least and the largest entry of a bucket (FORMAT.md, "minmax"):
/// the grid low + k step, k = 0 ... L, whose last value is not below the largest entry, so that no
/// entry is beyond it. A bucket of one value has the step 0.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/host_device.hpp"
#include "math/draw_between.hpp"

namespace atomo::math {

struct MinmaxGrid {
  float low = 0, step = 0;
};

/// What code k decodes to. k step is exact in f64; the sum is rounded to f64, then to f32, and both
/// keep the order of codes.
[[nodiscard]] ATOMO_HD constexpr float minmax_value(const MinmaxGrid& grid,
                                                    std::uint32_t code) noexcept {
  constexpr double kMost = std::numeric_limits<float>::max();
  const double v =
      static_cast<double>(grid.low) + static_cast<double>(code) * static_cast<double>(grid.step);
  return static_cast<float>(v < kMost ? v : kMost);
}

[[nodiscard]] ATOMO_HD constexpr float next_above(float magnitude) noexcept {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) + 1);
}

/// The grid of a bucket from its least and its largest entry, both finite. Of a low of -0 it makes 0.
/// The second step up is for a largest entry finer than f64 has the difference: one unit of the
/// step, L times, is far more.
[[nodiscard]] ATOMO_HD constexpr MinmaxGrid minmax_grid(float least, float largest,
                                                        std::uint32_t levels) noexcept {
  MinmaxGrid grid{least + 0.0f, 0};
  if (!(largest > least)) return grid;
  const double exact =
      (static_cast<double>(largest) - static_cast<double>(least)) / static_cast<double>(levels);
  grid.step = static_cast<float>(exact);
  if (static_cast<double>(grid.step) < exact) grid.step = next_above(grid.step);
  if (minmax_value(grid, levels) < largest) grid.step = next_above(grid.step);
  return grid;
}

/// 1/step; 0 of no step.
[[nodiscard]] ATOMO_HD constexpr double minmax_inverse(const MinmaxGrid& grid) noexcept {
  return grid.step > 0 ? 1.0 / static_cast<double>(grid.step) : 0.0;
}

/// The code whose value is the last one that is not above x, or a code before it of the same value;
/// below `levels`. x is within the bucket, so at most one step is wrong.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t minmax_below(const MinmaxGrid& grid, double inverse,
                                                            std::uint32_t levels,
                                                            float x) noexcept {
  const double y = (static_cast<double>(x) - static_cast<double>(grid.low)) * inverse;
  auto code = static_cast<std::uint32_t>(y);
  if (code >= levels) code = levels - 1;
  if (code > 0 && minmax_value(grid, code) > x) return code - 1;
  if (code + 1 < levels && minmax_value(grid, code + 1) < x) return code + 1;
  return code;
}

/// The code of an entry; `random` is uniform over 32 bits.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t minmax_code(const MinmaxGrid& grid, double inverse,
                                                           std::uint32_t levels, float x,
                                                           std::uint32_t random) noexcept {
  const std::uint32_t code = minmax_below(grid, inverse, levels, x);
  const auto below = static_cast<double>(minmax_value(grid, code)),
             above = static_cast<double>(minmax_value(grid, code + 1));
  const bool up = draw_between(static_cast<double>(x) - below, above - below, random);
  return code + (up ? 1u : 0u);
}

/// An estimate of `minmax_code` in f32, which says where it may be wrong.
///
/// The values of neighbouring codes and a draw w put an entry at S = code + chance - w, and its code is
/// S rounded up, S + 1/2 rounded. (x - low) / step + (1/2 - w) in f32 is near S + 1/2, in units
/// u = 2^-24 (L + 1):
/// - three roundings, of the difference, of 1/step and of the fused product and sum: 3.01 u;
/// - values are rounded to f32, which moves the ends of the step that x is in by 2^-24 of the largest
///   magnitude, at most 4 (L + 1) steps: 4 u;
/// - the draw has 24 bits: 2^-24;
/// - draw_between's product is rounded, 2^-53 of a step.
/// All are below 8 u. So the estimate is the code where S is farther than that from whole numbers.
struct MinmaxEstimate {
  float low, inverse;
  float sure;  ///< largest distance of S's fraction from 1/2 at which the estimate is the code
};
/// False where the bucket's steps are out of f32's range or too near its rounding: the estimate is of
/// no use.
[[nodiscard]] ATOMO_HD constexpr bool minmax_estimate(const MinmaxGrid& grid, float largest,
                                                      std::uint32_t levels,
                                                      MinmaxEstimate& estimate) noexcept {
  const bool one_value = grid.step == 0;
  estimate = {grid.low, one_value ? 0.0f : 1.0f / grid.step,
              0.5f - 0x1p-21f * static_cast<float>(levels + 1)};
  const float low = grid.low < 0 ? -grid.low : grid.low;
  const float high = largest < 0 ? -largest : largest;
  const float most = low > high ? low : high;
  const float in_steps = 3.9f * static_cast<float>(levels + 1);
  const bool in_range = grid.step > 0x1p-100f && grid.step < 0x1p100f;
  return one_value || (in_range && most < grid.step * in_steps);
}

/// The code, where `distance`, how far S's fraction is from 1/2, is one that is sure; any number else.
[[nodiscard]] ATOMO_HD inline std::uint32_t minmax_estimated(const MinmaxEstimate& estimate,
                                                             float x, std::uint32_t random,
                                                             float& distance) noexcept {
  constexpr float kWhole = 0x1.8p23f;  // floats near it are whole numbers
  const float half_less_draw = std::fma(static_cast<float>(random >> 8), -0x1p-24f, 0.5f);
  const float s = std::fma(x - estimate.low, estimate.inverse, half_less_draw);
  const float rounded = s + kWhole;
  distance = std::fabs((rounded - kWhole) - s);
  return std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(kWhole);
}

}  // namespace atomo::math
