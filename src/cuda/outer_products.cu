// SPDX-License-Identifier: Apache-2.0
/// Sums of the outer products of a layer's kept pairs.
///
/// The mathematics. Entry (i, j) = f32(scale * sum over k of left[k][i] * right[k][j]): products
/// and sums in f64, each rounded by itself, in order of k; y becomes it, or y + (alpha * it). An
/// entry beyond f32 is infinite, and the call says so.
///
/// Mapping. A warp makes a square of 32 x 32 entries, a lane 8 rows of 4 columns in registers: for
/// each k it reads 8 values of the left vector, which 8 lanes share, and 4 of the right one, which
/// 4 lanes share, for 32 products. Where several messages are added it makes the same square of one
/// after the other.
///
/// Traffic in bytes an entry: 4 written (8 more for adding, from the second message of a turn on from
/// the L2 cache), the least possible; the vectors are
/// read from the caches, 1/4 byte an entry and pair. The time is that of the f64 units: a product
/// and a sum for each entry and pair, and 3/8 conversion.
///
/// Shared memory: none. Determinism: every entry is summed by one lane in order of k. Alignment:
/// vectors stand in the workspace at multiples of 128 bytes and are filled up with zeros; y is
/// aligned to its entries.

#include "cuda/entries.cuh"
#include "cuda/outer.cuh"

namespace atomo::cuda {
namespace {

constexpr std::uint64_t kSide = kVectorStride;     // of a warp's square
constexpr unsigned kOwnRows = 8, kOwnColumns = 4;  // of a lane
constexpr unsigned kAcross = kSide / kOwnColumns;  // lanes beside one another

__device__ float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }

/// The first of a lane's entries.
struct LanePlace {
  std::uint64_t row, column;
};
/// Of square `number` of a matrix of so many columns.
__device__ LanePlace place_of_lane(std::uint64_t number, std::uint64_t columns) {
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

/// By a whole warp: a square of a message, `slot` of its turn.
__device__ void put_square(const Frame& frame, const OuterPlan& plan, const UnitOf& at,
                           std::uint32_t slot, DecodeInto into) {
  const OuterJob& job = frame(plan.jobs)[at.job];
  const LayerState& layer = frame.layer(job.layer);
  const OuterState& state = frame(plan.states)[at.job];
  if (layer.decodes == 0) return;
  if (state.count == 0 && job.dithered != 0 && into.add) return;
  const LanePlace place = place_of_lane(at.index, job.columns);
  const std::uint64_t row = place.row, column = place.column;
  const LaneVectors vectors(frame, job, place, slot);
  double sum[kOwnRows][kOwnColumns] = {};
  sum_square(vectors, state.count, sum, [](double s, double l, double r) { return s + (l * r); });
  bool infinite = false;
#pragma unroll
  for (unsigned r = 0; r < kOwnRows; ++r) {
    float v[kOwnColumns];
#pragma unroll
    for (unsigned c = 0; c < kOwnColumns; ++c) v[c] = static_cast<float>(sum[r][c] * state.scale);
    if (row + r >= job.rows || column >= job.columns) continue;
    for (unsigned c = 0; c < kOwnColumns; ++c)
      infinite = infinite || (column + c < job.columns && !is_finite(v[c]));
    const std::uint64_t first = (row + r) * job.columns;
    put_four(layer.y, first + column, first + job.columns, v, into);
  }
  if (infinite) frame.notice(Status::overflow);
}

__global__ void sum_products(const Frames frames, const MessageRange turn, const OuterPlan plan,
                             const DecodeInto into) {
  const UnitOf at = unit_of_warp(frames.first, plan.tiles);
  if (!at) return;
#pragma unroll 1
  for (std::uint32_t slot = 0; slot < turn.count; ++slot)
    put_square(frames[turn.first + slot], plan, at, slot, into);
}

}  // namespace

std::uint64_t outer_tiles(const MatrixShape& shape) {
  return divide_up(shape.rows, kSide) * divide_up(shape.columns, kSide);
}

void sum_outer_products(const Frames& frames, const MessageRange& turn, const OuterPlan& plan,
                        DecodeInto into, Queue& queue) {
  queue.launch_warps(sum_products, plan.tiles.units, frames, turn, plan, into);
}

}  // namespace atomo::cuda
