// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The matrix a tensor is for singular pairs: dim0 x rest. What a sketch of it costs.

#include "atomo/types.hpp"
#include "format/kind.hpp"

namespace atomo::format {

/// A dense row-major matrix.
struct MatrixShape {
  std::size_t rows = 0;     ///< of the matrix
  std::size_t columns = 0;  ///< of the matrix

  /// Entries of the first vector of a pair, and the number of pairs.
  [[nodiscard]] constexpr std::size_t shorter() const noexcept {
    return rows < columns ? rows : columns;
  }
  /// Entries of the second vector of a pair.
  [[nodiscard]] constexpr std::size_t longer() const noexcept {
    return rows < columns ? columns : rows;
  }
};

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

/// The rank and the rounds of a sketch: its cost and its quality.
struct SketchOptions {
  std::size_t rank = 0;     ///< pairs, 1..kMaxSketchRank and at most MatrixShape::shorter()
  unsigned iterations = 1;  ///< passes forth and back through the matrix, 1..8
};

/// The largest rank of a sketch.
inline constexpr std::size_t kMaxSketchRank = 256;

/// The rank that a shape gets when none is asked for: half of its shorter side in fours, at least 4
/// and at most 64, never more than the shorter side.
[[nodiscard]] constexpr std::size_t default_sketch_rank(const MatrixShape& shape) noexcept {
  const std::size_t half = shape.shorter() / 8 * 4;
  const std::size_t rank = half < 4 ? 4 : half > 64 ? 64 : half;
  return rank < shape.shorter() ? rank : shape.shorter();
}

}  // namespace atomo::format
