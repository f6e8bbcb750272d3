// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The matrix a tensor is for singular pairs: dim0 x rest.

#include "atomo/svd.hpp"
#include "atomo/types.hpp"

namespace atomo::detail {

inline constexpr std::size_t kLeastRows = 2, kLeastColumns = 16;

/// The shape must have two dimensions or more and at least one element.
[[nodiscard]] inline MatrixShape matrix_view(const Shape& shape) noexcept {
  const auto rows = static_cast<std::size_t>(shape[0]);
  return {rows, shape.elements() / rows};
}

/// Whether the tensor is taken as a matrix at all.
[[nodiscard]] inline bool is_matrix(const Shape& shape) noexcept {
  if (shape.rank() < 2 || shape.elements() == 0) return false;
  const MatrixShape view = matrix_view(shape);
  return view.rows >= kLeastRows && view.columns >= kLeastColumns && cpu::svd_supports(view);
}

}  // namespace atomo::detail
