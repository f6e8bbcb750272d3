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
#include "cuda/outer_square.cuh"

namespace atomo::cuda {
namespace {

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
