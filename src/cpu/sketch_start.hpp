// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The start of a sketch: a matrix times a sparse random one, in one pass.

#include <cstddef>
#include <span>

#include "atomo/types.hpp"
#include "core/philox.hpp"

namespace atomo::cpu {

/// The sparse matrix S, columns x rank: row c has one entry, a uniform weight, in a column that is
/// c plus a random shift, modulo the rank. The shift is drawn for every group of `width` columns, so
/// that columns of one stride do not meet in one place.
struct SparseStart {
  std::size_t columns = 0, rank = 0;
  std::span<float> weights;         ///< columns
  std::span<std::uint32_t> shifts;  ///< a group

  /// Columns of a group: a multiple of the rank, at least 64 for wide registers.
  [[nodiscard]] static constexpr std::size_t width(std::size_t rank) noexcept {
    return rank * (rank < 64 ? (63 + rank) / rank : 1);
  }
  [[nodiscard]] static constexpr std::size_t groups(std::size_t columns,
                                                    std::size_t rank) noexcept {
    return (columns + width(rank) - 1) / width(rank);
  }
  /// Weight c is word c mod 4 of block c / 4, a signed number times 2^-31; the groups' words follow
  /// the columns' from a new block on, group q's shift is its word times the width, divided by 2^32.
  void draw(const Philox& draws) const noexcept;
};

/// y (rows x rank) = x S, rows of x `columns` apart. Sums are taken in f32 in one order.
void multiply_start(const float* x, std::size_t rows, const SparseStart& start, float* y) noexcept;

}  // namespace atomo::cpu
