// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The entries of a chunk that may be kept, and the largest of them.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "format/chunk_body.hpp"

namespace atomo::cpu {

inline constexpr std::uint32_t kMaxChunk = format::ChunkConfig::kMaxChunk;

/// Magnitudes order as these integers.
[[nodiscard]] inline std::uint32_t magnitude_of(float x) noexcept {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
}

/// Places of the entries of one chunk that may be among the k largest, and their magnitudes.
struct Candidates {
  std::uint16_t places[kMaxChunk];
  std::uint32_t magnitudes[kMaxChunk], sorted[kMaxChunk];
  std::uint32_t count = 0;

  void collect(const float* x, std::size_t n, const std::uint64_t* words) noexcept {
    count = 0;
    for (std::size_t w = 0; w * 64 < n; ++w) {
      for (std::uint64_t left = words[w]; left != 0; left &= left - 1) {
        const std::size_t i = 64 * w + static_cast<std::size_t>(std::countr_zero(left));
        places[count] = static_cast<std::uint16_t>(i);
        magnitudes[count++] = magnitude_of(x[i]);
      }
    }
  }
  /// Drops all but the k largest; returns the least of them.
  std::uint32_t keep_largest(std::uint32_t k) noexcept {
    std::copy_n(magnitudes, count, sorted);
    std::nth_element(sorted, sorted + (k - 1), sorted + count, std::greater<>());
    const std::uint32_t key = sorted[k - 1];
    std::uint32_t ties = k;
    for (std::uint32_t i = 0; i < k; ++i) ties -= sorted[i] > key ? 1 : 0;
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool tie = magnitudes[i] == key && ties > 0;
      ties -= tie ? 1 : 0;
      places[kept] = places[i];
      magnitudes[kept] = magnitudes[i];
      kept += magnitudes[i] > key || tie ? 1 : 0;
    }
    count = kept;
    return key;
  }
};

}  // namespace atomo::cpu
