// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A sketch of a matrix: a few singular pairs by one step of randomised subspace iteration from a
/// sparse start (Halko, Martinsson, Tropp, "Finding structure with randomness", 2011, Algorithm 4.4;
/// Tropp, Yurtsever, Udell, Cevher, "Streaming low-rank matrix approximation with an application to
/// scientific simulation", 2019, section 3.9, on sparse sign starts), and the rows that they leave.
/// Pairs and residual sum to the matrix whatever the subspace that was found, so estimates made of
/// both are exactly unbiased for any sketch, good or bad.
///
/// Only the norms of the residual's rows are found at once; the rows themselves follow when it is
/// known which of them are kept.
///
/// ```cpp
/// atomo::MatrixShape shape{512, 4608};
/// std::vector<std::byte> workspace(atomo::cpu::sketch_workspace_bytes(shape, 32));
/// atomo::SingularPairs pairs{shorter, longer, sigma};  // 32 pairs, the caller's memory
/// auto status = atomo::cpu::sketch(g, shape, {.rank = 32}, key, rms, pairs, residual,
///                                  residual_rms, nullptr, workspace);
/// status = atomo::cpu::residual_rows(g, shape, pairs, marks, residual, nullptr, workspace);
/// ```

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "cpu/svd.hpp"

namespace atomo::cpu {

/// Bytes of a workspace of each call below, of any alignment: about 8 for each entry of the pairs.
[[nodiscard]] std::size_t sketch_workspace_bytes(const MatrixShape& shape,
                                                 std::size_t rank) noexcept;

/// Finds `options.rank` pairs of `g` (finite, host memory, row-major) and the rms of each row of
/// what they leave of it, never less than it is. `rms` has the rms of each row of `g`
/// (`atom_amplitudes`) and may be the same memory as `residual_rms`. `pairs` has room for that many rows; sigma descends but for rounding.
/// `residual` is scratch of as many entries as `g`, which it may not overlap. The random start is drawn under Purpose::sketch_omega of `key`. Long loops run on the executor, which
/// may be null; results do not depend on it.
///
/// Pairs that the matrix has not (its rank is lower) have zero vectors. A matrix with a row whose
/// norm is 2^120 or more is all residual, so that no sum leaves the range of f32.
///
/// Accuracy: how much of the matrix the pairs hold depends on its spectrum; directions below 2^-11
/// of the largest singular value are lost in rounding. The first vectors of a matrix with at least
/// as many columns as rows are orthogonal to rounding times sigma[0] / sigma[k]. The rms may
/// be too large: by 2^-18 of the row's square, which is a quarter of what is left where that is
/// least, or by 2^-20 of the row's own.
///
/// Does not allocate, but BLAS does while it runs on several threads of its own. The last bits
/// depend on BLAS's build.
/// Status::unsupported for other shapes or options; Status::workspace_too_small.
Status sketch(const float* g, const MatrixShape& shape, const SketchOptions& options,
              const Key& key, std::span<const double> rms, SingularPairs& pairs,
              std::span<float> residual, std::span<double> residual_rms, Executor* executor,
              Bytes workspace) noexcept;

/// The same along a basis that the caller chose, good or stale: `basis` has `shape.columns` rows of
/// r entries, its columns orthonormal to 2^-16 or zero.
Status sketch_onto(const float* g, const MatrixShape& shape, std::span<const float> basis,
                   std::span<const double> rms, SingularPairs& pairs, std::span<float> residual,
                   std::span<double> residual_rms, Executor* executor, Bytes workspace) noexcept;

/// Rows of g minus the sum of the pairs, from the very f32 vectors of `pairs`, whose span of sigma
/// says how many they are: those whose bit of `marks` is set, in order and one behind the other.
/// `residual` has room for them and may not overlap `g`.
///
/// Accuracy: |sum of the outer products + residual - g| at an entry is at most (rank + 2) 2^-24
/// times the norm of the row, plus 2^-150, the rounding of a subnormal residual.
Status residual_rows(const float* g, const MatrixShape& shape, const SingularPairs& pairs,
                     std::span<const std::uint64_t> marks, float* residual, Executor* executor,
                     Bytes workspace) noexcept;

}  // namespace atomo::cpu
