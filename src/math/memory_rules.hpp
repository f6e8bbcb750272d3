// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The memories of senders (docs/memories.md), an entry at a time. Each product and each sum is one f32
/// rounding.

#include "core/host_device.hpp"

namespace atomo::math {

/// What is encoded of a gradient g where e was kept.
[[nodiscard]] ATOMO_HD constexpr float with_residual(float g, float factor, float e) noexcept {
  return g + factor * e;
}

/// The same where a velocity u and what was not sent of it, v, were kept.
struct Velocity {
  float u, x;
};
[[nodiscard]] ATOMO_HD constexpr Velocity with_velocity(float g, float factor, float u,
                                                        float v) noexcept {
  const float moved = g + factor * u;
  return {moved, v + moved};
}
/// What was sent so far of a gradient, s, where the message left `left` of x = with_residual(g, -1, s).
[[nodiscard]] ATOMO_HD constexpr float sent_so_far(float g, float s, float left) noexcept {
  return s + ((g - s) - left);
}
/// The velocity that is kept where the message left `left` of x: none where it took something.
[[nodiscard]] ATOMO_HD constexpr float kept_velocity(const Velocity& of, float left) noexcept {
  return left == of.x ? of.u : 0.0f;
}

}  // namespace atomo::math
