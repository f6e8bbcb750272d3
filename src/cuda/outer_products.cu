// SPDX-License-Identifier: Apache-2.0
/// Sums of the outer products of a layer's kept pairs.
///
/// The mathematics. Entry (i, j) = f32(scale * sum over k of left[k][i] * right[k][j]): products
/// and sums in f64, each rounded by itself, in order of k; y becomes it, or y + (alpha * it). An
/// entry beyond f32 is infinite, and the call says so.
///
/// Mapping. A warp makes a square of 32 x 32 entries, a lane 8 rows of 4 columns in registers: for
/// each k it reads 8 values of the left vector, which 8 lanes share, and 4 of the right one, which
/// 4 lanes share, for 32 products.
///
/// Traffic in bytes an entry: 4 written (8 more for adding), the least possible; the vectors are
/// read from the caches, 1/4 byte an entry and pair. The time is that of the f64 units: a product
/// and a sum for each entry and pair, and 3/8 conversion.
///
/// Shared memory: none. Determinism: every entry is summed by one lane in order of k. Alignment:
/// vectors stand in the workspace at multiples of 128 bytes and are filled up with zeros; y is
/// aligned to its entries.

#include "cuda/entries.cuh"
#include "cuda/outer_square.cuh"

namespace atomo::cuda {
namespace {

__global__ void sum_products(Frame frame, OuterPlan plan, DecodeInto into) {
  const UnitOf at = unit_of_warp(frame, plan.tiles);
  if (!at) return;
  const OuterJob& job = frame(plan.jobs)[at.job];
  const LayerState& layer = frame.layer(job.layer);
  const OuterState& state = frame(plan.states)[at.job];
  if (layer.decodes == 0) return;
  if (state.count == 0 && job.dithered != 0 && into.add) return;
  const std::uint64_t squares = divide_up(job.columns, kSide);
  const std::uint64_t row = at.index / squares * kSide + kOwnRows * (lane() / kAcross);
  const std::uint64_t column = at.index % squares * kSide + kOwnColumns * (lane() % kAcross);
  const bool wide = job.rows <= job.columns;
  const float* const left = frame(wide ? job.shorter : job.longer);
  const float* const right = frame(wide ? job.longer : job.shorter);
  double sum[kOwnRows][kOwnColumns] = {};
  sum_square(left + row, vector_stride(job.rows), right + column, vector_stride(job.columns),
             state.count, sum, [](double s, double l, double r) { return s + (l * r); });
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

}  // namespace

std::uint64_t outer_tiles(const MatrixShape& shape) {
  return divide_up(shape.rows, kSide) * divide_up(shape.columns, kSide);
}

void sum_outer_products(const Frame& frame, const OuterPlan& plan, DecodeInto into, Queue& queue) {
  queue.launch_warps(sum_products, plan.tiles.units, frame, plan, into);
}

}  // namespace atomo::cuda
