// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Singular atoms: the exact decomposition of a matrix into a sum of pairs, and the paper's own
/// sampling of them (ATOMO, arXiv 1806.04090, Algorithm 1): which pairs are kept, with which
/// probability.
///
/// A matrix of `rows` x `columns` has min(rows, columns) pairs. A pair is a unit vector along the
/// shorter side and sigma times a unit vector along the longer one; their outer products sum to the
/// matrix.
///
/// ```cpp
/// atomo::MatrixShape shape{512, 4608};
/// std::vector<std::byte> workspace(atomo::cpu::svd_workspace_bytes(shape));
/// atomo::SingularPairs pairs{shorter, longer, sigma};  // the caller's memory
/// auto status = atomo::cpu::svd(g, shape, pairs, workspace);
/// ```

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "format/matrix.hpp"

namespace atomo::cpu {

/// Where a decomposition is written. Pair k: row k of `shorter` and of `longer`; in descending
/// order of the eigenvalues found, so sigma descends but for rounding.
struct SingularPairs {
  std::span<float> shorter;  ///< shorter() rows of shorter() entries, unit vectors
  std::span<float> longer;   ///< shorter() rows of longer() entries: sigma v 2^-exponent
  std::span<double> sigma;   ///< shorter() amplitudes, in the matrix's own unit
  int exponent = 0;          ///< of the power of two that the largest entry is just below
};

/// Matrices `svd` takes: sides of at least 1 and at most 2^22, the shorter at most 2^14.
[[nodiscard]] bool svd_supports(const MatrixShape& shape) noexcept;

/// Of any alignment: about 16 bytes an entry of the matrix and 16 bytes an entry of shorter() x
/// shorter().
[[nodiscard]] std::size_t svd_workspace_bytes(const MatrixShape& shape) noexcept;

/// Decomposes `g` (finite, host memory) in f64 through LAPACK: the eigenvectors of the smaller Gram
/// matrix where the shorter side is at most 512 or a quarter of the longer, else the vectors of a
/// full SVD. The second vectors are then the matrix times the first ones, so the pairs sum to the
/// matrix however close the singular values are, and for any rank; sigma is their norm.
///
/// Accuracy: with the f32 vectors returned, |sum of the outer products - g| at an entry is at most
/// 2^-23 (1 + 2^-8) times the norm of the entry's line along the shorter side (its column, when
/// rows <= columns). sigma has a relative error below 1e-6 for every sigma above 1e-6 of the largest.
///
/// Allocates (inside LAPACK). The last bits may depend on LAPACK's build and threads, whose
/// settings are not touched. Status::external when LAPACK fails; Status::unsupported for other
/// shapes; Status::workspace_too_small.
Status svd(const float* g, const MatrixShape& shape, SingularPairs& pairs,
           Bytes workspace) noexcept;

/// Probabilities p_i = min(1, t amplitude_i) whose sum is `keep`, the ones that minimise sum
/// amplitude_i^2 / p_i: the mass of those cut at 1 goes to the others. As integers P_i in units of
/// 2^-32 (2^32: certain) that sum to keep * 2^32 exactly unless fewer amplitudes are above 0; those
/// have P_i >= 1, all of them 2^32 when `keep` is their number or more. Zero amplitudes have 0.
/// `order` is scratch; all spans have the same size.
void water_fill(std::span<const double> amplitudes, std::uint64_t keep,
                std::span<std::uint64_t> probabilities, std::span<std::uint32_t> order) noexcept;

}  // namespace atomo::cpu
