// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Water filling, over a scalar type: the probabilities p_i = min(1, t a_i) with sum p_i = keep.
///
/// They minimise sum a_i^2 / p_i, the second moment of an unbiased sample. ATOMO's Algorithm 1:
/// while the largest a_i asks for more than 1, it gets 1 and the rest share what is left.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

template <typename Real>
struct WaterLevel {
  std::size_t certain = 0;  ///< the first `certain` amplitudes have p = 1
  Real per_amplitude = 0;   ///< t of the others
};

/// `amplitude(i)`, i < count, descends and is above 0; 0 < keep < count.
template <typename Real, typename Amplitude>
[[nodiscard]] ATOMO_HD inline WaterLevel<Real> find_water_level(std::size_t count, Real keep,
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

/// The probabilities of the first `count` amplitudes as integers of 2^-32 that sum to keep * 2^32,
/// or all 2^32 when `keep` is their count or more: `probability(i)` is assigned to.
template <typename Amplitude, typename Probability>
ATOMO_HD inline void fill_water(std::size_t count, std::uint64_t keep, Amplitude amplitude,
                                Probability probability) noexcept {
  constexpr std::uint64_t kCertain = std::uint64_t{1} << 32;
  if (keep >= count) {
    for (std::size_t i = 0; i < count; ++i) probability(i) = kCertain;
    return;
  }
  const WaterLevel<double> level = find_water_level(count, static_cast<double>(keep), amplitude);
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double share = amplitude(i) * level.per_amplitude;
    const double p = i < level.certain || share > 1.0 ? 1.0 : share;
    probability(i) = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(p * 0x1p32));
    used += probability(i);
  }
  // What rounding left or took, one unit at a time, from those that are not certain.
  const std::uint64_t wanted = keep * kCertain;
  while (used != wanted) {
    const bool raise = used < wanted;
    // As many whole rounds as all that have room can take.
    std::uint64_t with_room = 0, least = kCertain;
    for (std::size_t i = level.certain; i < count; ++i) {
      const std::uint64_t room = raise ? kCertain - probability(i) : probability(i) - 1;
      with_room += room > 0 ? 1 : 0;
      if (room > 0 && room < least) least = room;
    }
    if (with_room == 0) return;  // amplitudes that are no numbers
    const std::uint64_t apart = raise ? wanted - used : used - wanted;
    const std::uint64_t rounds = std::min(least, apart / with_room);
    for (std::size_t i = level.certain; i < count && rounds > 0; ++i) {
      std::uint64_t& p = probability(i);
      if (raise ? p < kCertain : p > 1) p = raise ? p + rounds : p - rounds;
    }
    used = raise ? used + rounds * with_room : used - rounds * with_room;
    if (rounds > 0) continue;
    for (std::size_t i = count; i-- > level.certain && used != wanted;) {
      std::uint64_t& p = probability(i);
      if (used < wanted && p < kCertain) {
        ++p;
        ++used;
      } else if (used > wanted && p > 1) {
        --p;
        --used;
      }
    }
  }
}

}  // namespace atomo::math
