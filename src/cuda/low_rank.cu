// SPDX-License-Identifier: Apache-2.0
/// A sketch's pairs on top of its rows.
///
/// The mathematics. Entry (i, j) is v = f32(s * scale) + rest[i][j], one f32 sum; s is the sum over
/// the kept pairs, in order of k, of left[k][i] * right[k][j], each step one fused multiply-add of
/// f32 from 0. y becomes v, or y + (alpha * v). An entry beyond f32 is infinite, and the call says
/// so.
///
/// Mapping. A warp makes a square of 32 x 32 entries, a lane 8 rows of 4 columns in registers, as
/// outer_products.cu. The rows have been decoded before: into y, whose entries are replaced where
/// they stand, or, where values are added to y, into the workspace.
///
/// Traffic in bytes an entry: 4 read and 4 written (12 and 4 when adding); vectors come from the
/// caches, 1/4 byte an entry and pair. 2 floating-point operations an entry and pair: with some 20
/// pairs or fewer the memory is what it waits for.
///
/// Shared memory: none. Determinism: every entry is summed by one lane in order of k. Alignment:
/// vectors stand in the workspace at multiples of 128 bytes and are filled up with zeros; y is
/// aligned to its entries.

#include "cuda/entries.cuh"
#include "cuda/outer_square.cuh"

namespace atomo::cuda {
namespace {

__device__ bool is_infinite(float x) { return (__float_as_uint(x) & 0x7FFFFFFFu) == 0x7F800000u; }

__global__ void put_pairs_on_rows(Frame frame, OuterPlan plan, DecodeInto into) {
  const UnitOf at = unit_of_warp(frame, plan.sketch_squares);
  if (!at) return;
  const OuterJob& job = frame(plan.jobs)[at.job];
  const LayerState& layer = frame.layer(job.layer);
  const OuterState& state = frame(plan.states)[at.job];
  // An empty body is done: zeros are there, and nothing is added.
  if (layer.decodes == 0 || layer.bytes == 0 || form_of(layer) != job.form) return;
  const std::uint64_t squares = divide_up(job.columns, kSide);
  const std::uint64_t row = at.index / squares * kSide + kOwnRows * (lane() / kAcross);
  const std::uint64_t column = at.index % squares * kSide + kOwnColumns * (lane() % kAcross);
  const bool wide = job.rows <= job.columns;
  const float* const left = frame(wide ? job.shorter : job.longer);
  const float* const right = frame(wide ? job.longer : job.shorter);
  float sum[kOwnRows][kOwnColumns] = {};
  sum_square(left + row, vector_stride(job.rows), right + column, vector_stride(job.columns),
             state.count, sum, [](float s, float l, float r) { return fmaf(l, r, s); });
  if (column >= job.columns) return;
  const auto scale = static_cast<float>(state.scale);
  const Entries rest{into.add ? frame(job.rest) : layer.y, DType::f32};
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
    put_four(layer.y, first + column, end, v, into);
  }
  if (infinite) frame.notice(Status::overflow);
}

}  // namespace

void add_low_rank(const Frame& frame, const OuterPlan& plan, DecodeInto into, Queue& queue) {
  queue.launch_warps(put_pairs_on_rows, plan.sketch_squares.units, frame, plan, into);
}

}  // namespace atomo::cuda
