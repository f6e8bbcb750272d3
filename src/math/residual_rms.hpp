// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The rms of a row of what a sketch leaves, without the row. The pairs project rows onto a space
/// that they have an orthonormal basis of, so by Pythagoras the squared norm of what is left is
/// |t|^2 - |k|^2: the row's less that of its coordinates. Rounding is added, so the rms is never
/// less than the row's. Where almost nothing is left the difference has no digits, and the row has
/// to be computed.

#include <cmath>
#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

/// What f32 products make the squared norm of a row's residual wrong by, in units of the row's own:
/// twice the largest error seen. Sums of more than 2^14 products are less exact.
[[nodiscard]] inline double square_error(std::uint64_t columns) noexcept {
  const double grows = std::sqrt(static_cast<double>(columns) * 0x1p-14);
  return 0x1p-18 * (grows > 1 ? grows : 1.0);
}

/// Of a row's rms: the rounding of a computed residual; and that of subnormal ones.
inline constexpr double kResidualError = 0x1p-20, kLeastResidual = 0x1p-149;

struct ResidualRms {
  double rms = 0;  ///< where it has no digits: what is to be added to a computed row's
  bool has_digits = true;
};

/// Of a row with the rms `rms`, whose coordinates have the squared norm `taken`; `error` is
/// `square_error(columns)`.
[[nodiscard]] ATOMO_HD inline ResidualRms residual_rms(double rms, double taken,
                                                       std::uint64_t columns,
                                                       double error) noexcept {
  const auto entries = static_cast<double>(columns);
  const double square = rms * rms * entries, left = square - taken;
  const double least = rms > 0 ? kLeastResidual : 0;
  if (left >= 2 * error * square)
    return {least + std::sqrt((left + error * square) / entries), true};
  return {least + kResidualError * rms, false};
}

}  // namespace atomo::math
