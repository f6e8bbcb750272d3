// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whether an array has nothing but numbers in it.

#include <cmath>
#include <span>

namespace train {

/// Looks at all of them, as a loop that does not end early is several times as fast.
[[nodiscard]] inline bool all_finite(std::span<const float> values) noexcept {
  bool finite = true;
  for (const float value : values) finite = finite & std::isfinite(value);
  return finite;
}

}  // namespace train
