// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A sketch of a matrix: a few singular pairs by one step of randomised subspace iteration, and the
/// residual that they leave (Halko, Martinsson, Tropp, "Finding structure with randomness", 2011,
/// Algorithm 4.4). Pairs and residual sum to the matrix whatever the subspace that was found, so
/// estimates made of both are exactly unbiased for any sketch, good or bad.
///
/// ```cpp
/// atomo::MatrixShape shape{512, 4608};
/// std::vector<std::byte> workspace(atomo::cpu::sketch_workspace_bytes(shape, 32));
/// atomo::SingularPairs pairs{shorter, longer, sigma};  // 32 pairs, the caller's memory
/// auto status = atomo::cpu::sketch(g, shape, {.rank = 32}, key, pairs, residual, workspace);
/// ```

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "cpu/svd.hpp"

namespace atomo::cpu {

/// Bytes of a workspace, of any alignment: about 12 for each entry of the pairs.
[[nodiscard]] std::size_t sketch_workspace_bytes(const MatrixShape& shape,
                                                 std::size_t rank) noexcept;

/// Finds `options.rank` pairs of `g` (finite, host memory, row-major) and what they leave of it.
/// `pairs` has room for that many rows; sigma descends but for rounding. `residual` has the shape
/// of `g` and may not overlap it: g minus the sum of the pairs, from the very f32 vectors that are
/// returned. The random start is drawn under Purpose::sketch_omega of `key`.
///
/// Pairs that the matrix has not (its rank is lower) have zero vectors. A matrix with an entry of
/// 2^120 or more is all residual, so that no sum leaves the range of f32.
///
/// Accuracy: |sum of the outer products + residual - g| at an entry is at most (rank + 2) 2^-24
/// times the norm of the entry's line along the shorter side, plus 2^-150, the rounding of a
/// subnormal residual. How much of the matrix the pairs hold depends on its spectrum; directions
/// below 2^-11 of the largest singular value are lost in rounding.
///
/// Does not allocate, but BLAS does while it runs on several threads of its own. The last bits
/// depend on BLAS's build.
/// Status::unsupported for other shapes or options; Status::workspace_too_small.
Status sketch(const float* g, const MatrixShape& shape, const SketchOptions& options,
              const Key& key, SingularPairs& pairs, std::span<float> residual,
              Bytes workspace) noexcept;

/// The same along a basis that the caller chose, good or stale: `basis` has shorter() rows of r
/// entries, its columns orthonormal or zero (otherwise the pairs' first vectors are no unit
/// vectors, which encoding them takes for granted). Pairs and residual sum to g whatever they are.
Status sketch_onto(const float* g, const MatrixShape& shape, std::span<const float> basis,
                   SingularPairs& pairs, std::span<float> residual, Bytes workspace) noexcept;

}  // namespace atomo::cpu
