// SPDX-License-Identifier: Apache-2.0
/// A sketch's pairs on top of its rows, where y becomes what the message says; forms_add.cu adds it to y.
///
/// The mathematics. Entry (i, j) is v = f32(s * scale) + rest[i][j], one f32 sum; s is the sum over
/// the kept pairs, in order of k, of left[k][i] * right[k][j], each step one fused multiply-add of
/// f32 from 0. An entry beyond f32 is infinite, and the call says so.
///
/// Mapping. A warp makes a square of 32 x 32 entries, a lane 8 rows of 4 columns in registers, as
/// outer_products.cu. Rows that are sent have been decoded before, into y, whose entries are replaced where
/// they stand; a lane reads all of its own before it writes one. The other rows hold nothing yet.
///
/// Traffic in bytes an entry: 4 written, and 4 read of rows that are sent; vectors come from the caches, 1/4
/// byte an entry and pair. 2 floating-point operations an entry and pair: with some 20 pairs or fewer the
/// memory is what it waits for.
///
/// Shared memory: none. Determinism: every entry is summed by one lane in order of k. Alignment:
/// vectors stand in the workspace at multiples of 128 bytes and are filled up with zeros; y is
/// aligned to its entries.

#include "cuda/atoms_decode.cuh"
#include "cuda/lane_square.cuh"

namespace atomo::cuda {
namespace {

__global__ void put_pairs_on_rows(Frame frame, OuterPlan plan, atoms::BodyPlan bodies) {
  const UnitOf at = unit_of_warp(frame, plan.sketch_squares);
  if (!at) return;
  const OuterJob& job = frame(plan.jobs)[at.job];
  const LayerState& layer = frame.layer(job.layer);
  const OuterState& state = frame(plan.states)[at.job];
  // An empty body is done: zeros are there, and nothing is added.
  if (layer.decodes == 0 || layer.bytes == 0 || form_of(layer) != job.form) return;
  const LanePlace place = place_of_lane(at.index, job.columns);
  float* const y = layer.y;
  const atoms::LaneSquare square(place, job.columns, job.rows * job.columns, y);
  const std::uint32_t kept =
      atoms::KeptAtoms(frame, bodies, job.rows_body, job.columns).rows(place.row, square.whole());
  const auto scale = static_cast<float>(state.scale);
  float sum[kOwnRows][kOwnColumns] = {};
  sum_square(LaneVectors(frame, job, place, 0), state.count, sum,
             [](float s, float l, float r) { return fmaf(l, r, s); });
  if (square.put_sketch<false>(sum, scale, y, kept, y, 1)) frame.notice(Status::overflow);
}

}  // namespace

void atoms::put_low_rank(const Frame& frame, const DecodePlan& plan, Queue& queue) {
  queue.launch_warps(put_pairs_on_rows, plan.outer.sketch_squares.units, frame, plan.outer,
                     plan.bodies);
}

}  // namespace atomo::cuda
