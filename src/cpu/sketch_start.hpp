// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The start of a sketch: a matrix times a sparse random one, in one pass.

#include <cstddef>
#include <span>

#include "atomo/types.hpp"
#include "core/philox.hpp"

namespace atomo::cpu {

/// The sparse matrix S, columns x rank (math/sparse_start.hpp).
struct SparseStart {
  std::size_t columns = 0, rank = 0;
  std::span<float> weights;         ///< columns
  std::span<std::uint32_t> shifts;  ///< a group

  void draw(const Philox& draws) const noexcept;
};

/// y (rows x rank) = x S, rows of x `columns` apart. Sums are taken in f32 in one order.
void multiply_start(const float* x, std::size_t rows, const SparseStart& start, float* y) noexcept;

}  // namespace atomo::cpu
