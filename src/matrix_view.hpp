// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The matrix a tensor is for singular pairs: dim0 x rest.

#include "atomo/svd.hpp"
#include "atomo/types.hpp"
#include "kind_rules.hpp"

namespace atomo::detail {

/// The shape must have two dimensions or more and at least one element.
[[nodiscard]] inline MatrixShape matrix_view(const Shape& shape) noexcept {
  const auto rows = static_cast<std::size_t>(shape[0]);
  return {rows, shape.elements() / rows};
}

/// Whether the tensor is taken as a matrix at all.
[[nodiscard]] inline bool is_matrix(const Shape& shape) noexcept {
  Kind kind;
  kind.shape = shape;
  return is_matrix(fields_of(kind));
}

}  // namespace atomo::detail
