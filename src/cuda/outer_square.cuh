// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A warp's square of a sum of outer products: what outer_products.cu and low_rank.cu share. A lane
/// owns kOwnRows x kOwnColumns neighbouring entries.

#include "cuda/outer.cuh"

namespace atomo::cuda {

inline constexpr std::uint64_t kSide = kVectorStride;     // of a warp's square
inline constexpr unsigned kOwnRows = 8, kOwnColumns = 4;  // of a lane
inline constexpr unsigned kAcross = kSide / kOwnColumns;  // lanes beside one another

__device__ inline float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }

/// Adds up the lane's entries from its first row and column on: sum = add(sum, left, right) for
/// each of `count` pairs in order.
template <typename Real, typename Add>
__device__ void sum_square(const float* left, std::uint64_t left_stride, const float* right,
                           std::uint64_t right_stride, std::uint64_t count,
                           Real (&sum)[kOwnRows][kOwnColumns], Add add) {
  for (std::uint64_t k = 0; k < count; ++k) {
    const float4 low = load_four(left), high = load_four(left + 4), row = load_four(right);
    const Real down[kOwnRows] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const Real across[kOwnColumns] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (unsigned r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kOwnColumns; ++c) sum[r][c] = add(sum[r][c], down[r], across[c]);
    }
    left += left_stride;
    right += right_stride;
  }
}

}  // namespace atomo::cuda
