// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Systematic sampling of one chunk of atoms from one uniform 32-bit draw.

#include <cstddef>
#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

/// The places of a chunk stand in rows of kColumns, and are visited column by column, each from its
/// first row on: place i of the order is (i mod rows) * kColumns + i / rows. Lanes that own columns
/// then read whole rows, and need no sum of another but where theirs begins.
template <std::size_t kChunk, std::size_t kColumns>
[[nodiscard]] ATOMO_HD constexpr std::size_t visited_place(std::size_t i) noexcept {
  constexpr std::size_t kRows = kChunk / kColumns;
  static_assert(kRows * kColumns == kChunk);
  return i % kRows * kColumns + i / kRows;
}

/// Visits the m <= kChunk places of a chunk; those beyond a short chunk are skipped. `probability(k)`
/// in units of 2^-32 is added to a running 32-bit sum that starts at u; `taken(k, 1)` when the sum
/// carries, else `taken(k, 0)`: with probability exactly probability(k) / 2^32 each.
template <std::size_t kChunk, std::size_t kColumns, typename Probability, typename Taken>
inline void systematic_draw(std::size_t m, std::uint32_t u, Probability probability,
                            Taken taken) noexcept {
  std::uint32_t sum = u;
  for (std::size_t i = 0; i < kChunk; ++i) {
    const std::size_t k = visited_place<kChunk, kColumns>(i);
    if (k >= m) continue;
    const std::uint32_t next = sum + probability(k);
    taken(k, next < sum ? 1u : 0u);
    sum = next;
  }
}

}  // namespace atomo::math
