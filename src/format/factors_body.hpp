// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Singular pairs kept with the probabilities of ATOMO's Algorithm 1 and sent as f32. FORMAT.md
/// ("factors") has the body.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "format/matrix.hpp"
#include "math/selection.hpp"
#include "math/systematic_sampling.hpp"

namespace atomo::format {

inline constexpr std::size_t kFactorsHeadBytes = 8;  ///< of a body: u32 kept, i32 exponent
/// Largest magnitude of an exponent: entries are f32, 2^-149 to 2^128.
inline constexpr std::int32_t kMaxFactorsExponent = 160;

inline constexpr std::uint64_t kCertainPair = std::uint64_t{1} << 32;

/// Pairs that one body can hold at most when `keep` are expected: each chunk of 256 may round up.
[[nodiscard]] constexpr std::size_t max_kept_pairs(const MatrixShape& shape,
                                                   std::uint64_t keep) noexcept {
  const std::size_t chunks = (shape.shorter() + kSelectionChunk - 1) / kSelectionChunk;
  return static_cast<std::size_t>(std::min<std::uint64_t>(shape.shorter(), keep + chunks));
}

/// Bytes of a body that holds so many pairs.
[[nodiscard]] constexpr std::size_t factors_bytes(const MatrixShape& shape,
                                                  std::size_t kept) noexcept {
  return kFactorsHeadBytes + 4 * kept * (shape.shorter() + shape.longer());
}

/// Which pairs a message keeps: pair k with probability P_k / 2^32 exactly (2^32: always).
/// `draw(c)` is the uniform 32-bit word of chunk c. `kept` receives the numbers, in order.
template <typename Draw>
std::size_t draw_pairs(std::span<const std::uint64_t> probabilities, Draw draw,
                       std::span<std::uint32_t> kept) noexcept {
  constexpr std::size_t kChunk = kSelectionChunk;
  std::size_t count = 0;
  for (std::size_t first = 0; first < probabilities.size(); first += kChunk) {
    const std::size_t m = std::min(kChunk, probabilities.size() - first);
    bool taken[kChunk] = {};
    systematic_draw<kChunk, kSelectionColumns>(
        m, draw(first / kChunk),
        [&](std::size_t k) { return static_cast<std::uint32_t>(probabilities[first + k]); },
        [&](std::size_t k, std::uint32_t carried) {
          taken[k] = carried != 0 || probabilities[first + k] == kCertainPair;
        });
    for (std::size_t k = 0; k < m; ++k) {
      if (taken[k]) kept[count++] = static_cast<std::uint32_t>(first + k);
    }
  }
  return count;
}

/// The factor of a kept pair: the inverse of the probability it was drawn with.
[[nodiscard]] constexpr double pair_scale(std::uint64_t probability) noexcept {
  return static_cast<double>(kCertainPair) / static_cast<double>(probability);
}

}  // namespace atomo::format
