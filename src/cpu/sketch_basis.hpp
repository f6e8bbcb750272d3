// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The small matrices of a sketch: bases of the columns of thin matrices, and the rotation that turns
/// a basis to singular pairs. Matrices are row-major; nothing here allocates.

#include <lapacke.h>

#include <cstddef>
#include <span>

#include "core/workspace.hpp"

namespace atomo::cpu {

/// Rows of a thin matrix that are multiplied at once.
inline constexpr std::size_t kBasisBlock = 128;

/// Memory for matrices of up to r columns.
struct BasisMemory {
  std::span<float> block;              ///< kBasisBlock x r, and at least r x r
  std::span<float> small, correction;  ///< r x r
  std::span<double> gram, scale;       ///< r x r and r
  std::span<float> values, solver;     ///< of the eigensolver
  std::span<lapack_int> integers;

  BasisMemory(core::Carver& carver, std::size_t r) noexcept;
};

/// Makes the columns of x (n x r) nearly orthonormal: one pass. Columns of which little is new come
/// out short, and none stands for those of which nothing is. Returns how many there are; x is then
/// n x that.
[[nodiscard]] std::size_t condition(const BasisMemory& memory, float* x, std::size_t n,
                                    std::size_t r) noexcept;

/// The first of two passes over the columns of x (n x r), and in `memory.correction` that of the
/// second: x times it is a basis. Returns the columns of both, of which x then has as many.
[[nodiscard]] std::size_t find_basis(const BasisMemory& memory, float* x, std::size_t n,
                                     std::size_t r) noexcept;

/// memory.block = the rotation (r x r) that makes pairs of the columns of k (n x r) and of the basis:
/// row i is C w_i, with C the correction and w_i the eigenvectors of (k C)^T (k C), the largest
/// eigenvalue first. Where the solver fails, which costs variance alone, w_i is the i-th unit vector.
void find_rotation(const BasisMemory& memory, const float* k, std::size_t n,
                   std::size_t r) noexcept;

}  // namespace atomo::cpu
