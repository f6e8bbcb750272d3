// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The small matrices of a sketch: bases of the columns of thin matrices, and the rotation that turns
/// a basis to singular pairs. Matrices are row-major; nothing here allocates.

#include <lapacke.h>

#include <cstddef>
#include <span>

#include "atomo/types.hpp"
#include "core/workspace.hpp"

namespace atomo::cpu {

/// Rows of a thin matrix that are multiplied at once.
inline constexpr std::size_t kBasisBlock = 128;

/// Rows of a thin matrix whose Gram matrix is one sum, and such sums at most.
inline constexpr std::size_t kGramRows = 512, kGramParts = 8;

/// Memory for matrices of up to r columns.
struct BasisMemory {
  std::span<float> block;              ///< r x r
  std::span<float> small, correction;  ///< r x r
  std::span<float> parts;              ///< kGramParts of r x r
  std::span<double> gram, scale;       ///< r x r and r
  std::span<float> values, solver;     ///< of the eigensolver
  std::span<lapack_int> integers;

  BasisMemory(core::Carver& carver, std::size_t r) noexcept;
};

/// A thin matrix, n x r, with as much scratch beside it. Loops over its rows run on the executor, which
/// may be null; they are cut where the shape says, so no bit depends on it.
struct ThinMatrix {
  float* x = nullptr;
  std::size_t n = 0, r = 0;
  float* scratch = nullptr;
  Executor* executor = nullptr;
};

/// Makes the columns of x nearly orthonormal: one pass. Columns of which little is new come
/// out short, and none stands for those of which nothing is. Returns how many there are; x is then
/// n x that.
[[nodiscard]] std::size_t condition(const BasisMemory& memory, ThinMatrix x) noexcept;

/// The first of two passes over the columns of x, and in `memory.correction` that of the second: x
/// times it is a basis. Returns the columns of both, of which x then has as many.
[[nodiscard]] std::size_t find_basis(const BasisMemory& memory, ThinMatrix x) noexcept;

/// memory.block = the rotation (r x r) that makes pairs of the columns of k and of the basis:
/// row i is C w_i, with C the correction and w_i the eigenvectors of (k C)^T (k C), the largest
/// eigenvalue first. Where the solver fails, which costs variance alone, w_i is the i-th unit vector.
void find_rotation(const BasisMemory& memory, const ThinMatrix& k) noexcept;

}  // namespace atomo::cpu
