// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Systematic sampling of one chunk of atoms from one uniform 32-bit draw.

#include <cstddef>
#include <cstdint>

#include "core/namespaces.hpp"

namespace atomo::math {

/// Visits the m <= kChunk places of a chunk in the order kStride * i mod kChunk, i < kChunk; places
/// beyond a short chunk are skipped, so that the order stays a permutation (kStride is odd, kChunk
/// a power of two). `probability(k)` in units of 2^-32 is added to a running 32-bit sum that starts
/// at u; `taken(k, 1)` when the sum carries, else `taken(k, 0)`: with probability exactly
/// probability(k) / 2^32 each.
template <std::size_t kChunk, std::size_t kStride, typename Probability, typename Taken>
inline void systematic_draw(std::size_t m, std::uint32_t u, Probability probability,
                            Taken taken) noexcept {
  static_assert(kStride % 2 == 1 && (kChunk & (kChunk - 1)) == 0);
  std::uint32_t sum = u;
  std::size_t k = 0;
  for (std::size_t i = 0; i < kChunk; ++i) {
    if (k < m) {
      const std::uint32_t next = sum + probability(k);
      taken(k, next < sum ? 1u : 0u);
      sum = next;
    }
    k = (k + kStride) % kChunk;
  }
}

}  // namespace atomo::math
