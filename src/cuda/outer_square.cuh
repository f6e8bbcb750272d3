// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A warp's square of a sum of outer products: what outer_products.cu, low_rank.cu and forms_add.cu
/// share. A lane owns kOwnRows x kOwnColumns neighbouring entries.

#include "cuda/outer.cuh"

namespace atomo::cuda {

inline constexpr std::uint64_t kSide = kVectorStride;     // of a warp's square
inline constexpr unsigned kOwnRows = 8, kOwnColumns = 4;  // of a lane
inline constexpr unsigned kAcross = kSide / kOwnColumns;  // lanes beside one another

__device__ inline float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }

/// The first of a lane's entries.
struct LanePlace {
  std::uint64_t row, column;
};
/// Of square `number` of a matrix of so many columns.
__device__ inline LanePlace place_of_lane(std::uint64_t number, std::uint64_t columns) {
  const std::uint64_t squares = divide_up(columns, kSide);
  return {number / squares * kSide + kOwnRows * (lane() / kAcross),
          number % squares * kSide + kOwnColumns * (lane() % kAcross)};
}

/// The lane's part of the first vectors of a job's pairs, and how far it is to the next ones.
struct LaneVectors {
  const float *left, *right;
  std::uint64_t left_stride, right_stride;

  /// Of message `slot` of a turn.
  __device__ LaneVectors(const Frame& frame, const OuterJob& job, const LanePlace& place,
                         std::uint32_t slot)
      : left_stride(vector_stride(job.rows)), right_stride(vector_stride(job.columns)) {
    const bool wide = job.rows <= job.columns;
    const std::uint64_t before = slot * job.pairs;
    left = frame(wide ? job.shorter : job.longer) + before * left_stride + place.row;
    right = frame(wide ? job.longer : job.shorter) + before * right_stride + place.column;
  }
};

/// Adds up the lane's entries: sum = add(sum, left, right) for each of `count` pairs in order.
template <typename Real, typename Add>
__device__ void sum_square(const LaneVectors& vectors, std::uint64_t count,
                           Real (&sum)[kOwnRows][kOwnColumns], Add add) {
  const float *left = vectors.left, *right = vectors.right;
  for (std::uint64_t k = 0; k < count; ++k) {
    const float4 low = load_four(left), high = load_four(left + 4), row = load_four(right);
    const Real down[kOwnRows] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const Real across[kOwnColumns] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (unsigned r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kOwnColumns; ++c) sum[r][c] = add(sum[r][c], down[r], across[c]);
    }
    left += vectors.left_stride;
    right += vectors.right_stride;
  }
}

}  // namespace atomo::cuda
