// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Water filling, over a scalar type: the probabilities p_i = min(1, t a_i) with sum p_i = keep.
///
/// They minimise sum a_i^2 / p_i, the second moment of an unbiased sample. ATOMO's Algorithm 1:
/// while the largest a_i asks for more than 1, it gets 1 and the rest share what is left.

#include <cstddef>

namespace atomo::detail {

template <typename Real>
struct WaterLevel {
  std::size_t certain = 0;  ///< the first `certain` amplitudes have p = 1
  Real per_amplitude = 0;   ///< t of the others
};

/// `amplitude(i)`, i < count, descends and is above 0; 0 < keep < count.
template <typename Real, typename Amplitude>
[[nodiscard]] WaterLevel<Real> find_water_level(std::size_t count, Real keep,
                                                Amplitude amplitude) noexcept {
  // From the smallest up, so that small ones are not lost beside large ones.
  Real sum = 0;
  WaterLevel<Real> level{count, 0};
  for (std::size_t certain = count; certain-- > 0;) {
    sum += amplitude(certain);
    const Real left = keep - static_cast<Real>(certain);
    // The shares of the amplitudes from `certain` on, were all before it certain, are at most 1.
    if (left > 0 && amplitude(certain) * left <= sum) level = {certain, left / sum};
  }
  return level;
}

}  // namespace atomo::detail
