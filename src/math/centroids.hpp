// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The arithmetic of content without draws. An entry x of the step d becomes the integer nearest to x / d.
/// It decodes to the mean of what is rounded to that, which lies nearer to zero, for entries are more
/// often small than large: v = (|q| - offset) d with the sign of q, and 0 for 0. Offsets were fitted
/// on gradients of a LeNet and of a transformer (docs/memories.md, "Centroids").

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/host_device.hpp"
#include "math/dither.hpp"

namespace atomo::math {

/// By coding step, in 32nds of a step.
[[nodiscard]] ATOMO_HD constexpr std::int32_t centroid_offset(std::uint32_t coding_step) noexcept {
  if (coding_step < 8) return 6;
  if (coding_step < 9) return 5;
  if (coding_step < 11) return 4;
  if (coding_step < 13) return 3;
  if (coding_step < 15) return 2;
  if (coding_step < 18) return 1;
  return 0;
}
/// In place of the offset of content that is dithered.
inline constexpr std::int32_t kDithered = -1;

/// The integer of an entry; ties go to the even one.
[[nodiscard]] ATOMO_HD inline std::int32_t nearest_level(float x, float inverse) noexcept {
  constexpr float kBound = kLargestLevel;
  const float y = std::rint(x * inverse);
  return static_cast<std::int32_t>(std::max(std::min(kBound, y), -kBound));
}

/// The value that q decodes to in 32nds of a step.
[[nodiscard]] ATOMO_HD inline std::int32_t centred_units(std::int32_t q,
                                                         std::int32_t offset) noexcept {
  return 32 * q - std::max(std::min(32 * q, offset), -offset);
}

[[nodiscard]] ATOMO_HD inline float centred_value(std::int32_t q, std::int32_t offset,
                                                  float step) noexcept {
  return value_of_units(centred_units(q, offset), step);
}

}  // namespace atomo::math
