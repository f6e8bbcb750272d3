// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sums that several units have a stretch of: what sketch_start.cu and sketch_products.cu share.

#include "cuda/gpu.cuh"
#include "cuda/sketch_cuts.hpp"

namespace atomo::cuda {

/// By a whole warp: adds the sums of `count` stretches of `values` values, those of a unit; of one
/// stretch, and beyond the values, nothing.
template <typename Real>
__device__ inline void add_stretches(const Real* partials, Real* whole, std::uint64_t count,
                                     std::uint64_t values, std::uint64_t unit) {
  const std::uint64_t each = fold_values(count), first = unit * each;
  if (count == 1 || first >= values) return;
  const std::uint64_t end = values - first < each ? values : first + each;
  for (std::uint64_t i = first + lane(); i < end; i += kLanes) {
    Real sum = partials[i];
#pragma unroll 16
    for (std::uint64_t k = 1; k < count; ++k) sum = sum + partials[k * values + i];
    whole[i] = sum;
  }
}

}  // namespace atomo::cuda
