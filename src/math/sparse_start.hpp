// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The sparse random matrix that a sketch starts from (FORMAT.md, "Sketch"), columns x rank: row c
/// has one entry, a weight, in a column that is c plus the shift of c's group, modulo the rank. A
/// shift of its own for every group keeps columns of one stride from meeting in one place.

#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

/// Columns of a group: a multiple of the rank, at least 64 for wide registers.
[[nodiscard]] ATOMO_HD constexpr std::uint64_t start_width(std::uint64_t rank) noexcept {
  return rank * (rank < 64 ? (63 + rank) / rank : 1);
}
[[nodiscard]] ATOMO_HD constexpr std::uint64_t start_groups(std::uint64_t columns,
                                                            std::uint64_t rank) noexcept {
  return (columns + start_width(rank) - 1) / start_width(rank);
}

/// Column c's weight is word c mod 4 of block c / 4 of the draws.
[[nodiscard]] ATOMO_HD constexpr float start_weight(std::uint32_t word) noexcept {
  return static_cast<float>(static_cast<std::int32_t>(word)) * 0x1p-31f;
}
/// The groups' words follow those of the columns from a new block on.
[[nodiscard]] ATOMO_HD constexpr std::uint64_t first_shift_block(std::uint64_t columns) noexcept {
  return (columns + 3) / 4;
}
[[nodiscard]] ATOMO_HD constexpr std::uint32_t start_shift(std::uint32_t word,
                                                           std::uint64_t rank) noexcept {
  return static_cast<std::uint32_t>((word * start_width(rank)) >> 32);
}

}  // namespace atomo::math
