// SPDX-License-Identifier: Apache-2.0
#pragma once
/// By which power of two the matrix of a sketch is divided, so that its sums stay within f32.

#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

/// How a sketch's matrix is scaled.
struct SketchScale {
  bool sketches = false;  ///< false: the vectors are zero, and the matrix is as it is
  /// Of the power of two that the largest row's norm is just below; 0 where nothing needs scaling.
  std::int32_t exponent = 0;
};

/// `exponent`: that of the largest row's norm, as std::frexp has it.
[[nodiscard]] ATOMO_HD constexpr SketchScale sketch_scale(std::int32_t exponent) noexcept {
  /// Rows whose norm is at least 2 to this are left to the residual, so that no sum leaves the
  /// range of f32.
  constexpr std::int32_t kLargest = 120;
  /// Up to here, either way, fourth powers of entries are far from both ends of f32: no scaling.
  constexpr std::int32_t kPlain = 24;
  if (exponent > kLargest) return {};
  return {true, exponent < -kPlain || exponent > kPlain ? exponent : 0};
}

}  // namespace atomo::math
