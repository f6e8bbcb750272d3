// SPDX-License-Identifier: Apache-2.0
/// A sketch's pairs on top of its rows, where y becomes what the message says; forms_add.cu adds it to y.
///
/// The mathematics. Entry (i, j) is v = f32(s * scale) + rest[i][j], one f32 sum; s is the sum over
/// the kept pairs, in order of k, of left[k][i] * right[k][j], each step one fused multiply-add of
/// f32 from 0. An entry beyond f32 is infinite, and the call says so.
///
/// Mapping. A warp makes a square of 32 x 32 entries, a lane 8 rows of 4 columns in registers, as
/// outer_products.cu. The rows have been decoded before, into y, whose entries are replaced where
/// they stand.
///
/// Traffic in bytes an entry: 4 read and 4 written; vectors come from the caches, 1/4 byte an entry and pair. 2 floating-point operations an entry and pair: with some 20
/// pairs or fewer the memory is what it waits for.
///
/// Shared memory: none. Determinism: every entry is summed by one lane in order of k. Alignment:
/// vectors stand in the workspace at multiples of 128 bytes and are filled up with zeros; y is
/// aligned to its entries.

#include "cuda/entries.cuh"
#include "cuda/outer_square.cuh"

namespace atomo::cuda {
namespace {

__global__ void put_pairs_on_rows(Frame frame, OuterPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.sketch_squares);
  if (!at) return;
  const OuterJob& job = frame(plan.jobs)[at.job];
  const LayerState& layer = frame.layer(job.layer);
  const OuterState& state = frame(plan.states)[at.job];
  // An empty body is done: zeros are there, and nothing is added.
  if (layer.decodes == 0 || layer.bytes == 0 || form_of(layer) != job.form) return;
  const LanePlace place = place_of_lane(at.index, job.columns);
  const std::uint64_t row = place.row, column = place.column;
  float sum[kOwnRows][kOwnColumns] = {};
  sum_square(LaneVectors(frame, job, place, 0), state.count, sum,
             [](float s, float l, float r) { return fmaf(l, r, s); });
  if (column >= job.columns) return;
  const auto scale = static_cast<float>(state.scale);
  const Entries rest{layer.y, DType::f32};
  bool infinite = false;
#pragma unroll
  for (unsigned r = 0; r < kOwnRows; ++r) {
    if (row + r >= job.rows) continue;
    const std::uint64_t first = (row + r) * job.columns, end = first + job.columns;
    float v[kOwnColumns];
    rest.four(first + column, end, v);
#pragma unroll
    for (unsigned c = 0; c < kOwnColumns; ++c) {
      v[c] = sum[r][c] * scale + v[c];
      infinite = infinite || (column + c < job.columns && is_infinite(v[c]));
    }
    put_four(layer.y, first + column, end, v, {});
  }
  if (infinite) frame.notice(Status::overflow);
}

}  // namespace

void put_low_rank(const Frame& frame, const OuterPlan& plan, Queue& queue) {
  queue.launch_warps(put_pairs_on_rows, plan.sketch_squares.units, frame, plan);
}

}  // namespace atomo::cuda
