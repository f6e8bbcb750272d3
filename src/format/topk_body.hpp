// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A body of top-k: marks, zero padding, and the values, which stand at a multiple of 4 bytes.

#include <cstddef>
#include <cstdint>

#include "coding/marks.hpp"

namespace atomo::format {

/// Where the values begin behind marks of so many bytes.
[[nodiscard]] constexpr std::size_t topk_values_at(std::size_t marks_bytes) noexcept {
  return (marks_bytes + 3) / 4 * 4;
}

/// Where they begin at the latest: behind the bit map.
[[nodiscard]] constexpr std::size_t max_topk_values_at(std::uint64_t n) noexcept {
  return topk_values_at(coding::max_marks_bytes(n));
}

}  // namespace atomo::format
