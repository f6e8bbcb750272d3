// SPDX-License-Identifier: Apache-2.0
/// What the pairs of sketches leave of rows: their norms, and the rows that are needed.
///
/// Mathematics. The pairs are K P^T with P an orthonormal basis, so by Pythagoras |r|^2 =
/// |t|^2 - |k|^2 for a row t of the matrix and k of K, with something added for rounding
/// (math/residual_rms.hpp). A row of which too little is left for that is computed, and so is a row
/// that is kept: t - sum of u_k v_k in f32 from the very vectors that are dithered, the sum in
/// ascending order of the pairs as a decoder takes it.
///
/// Mapping.
///   measure   a lane a row
///   subtract  a block a tile of 64 picked rows by 64 columns; blocks beyond the picked rows end at
///             once. Once for the rows that are to be measured, once for those that are kept.
///
/// Traffic: 4 r bytes a row; of picked rows 4 bytes read and written an entry, 2 r operations.
///
/// Shared memory: 8,704 bytes. Determinism: rows are picked in any order, and none depends on where
/// it stands in a tile. Alignment: all operands stand in the workspace.

#include "cuda/sketch.cuh"
#include "cuda/tile_product.cuh"
#include "math/residual_rms.hpp"

namespace atomo::cuda {
namespace {

__global__ void measure_rows(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.measured);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const SketchScale scale = sketch_scale(frame, plan, at.job);
  const std::uint64_t row = at.index * kLanes + lane();
  bool measured = false;
  if (row < job.rows) {
    const std::uint32_t rank = sketch_rank(frame, job);
    math::ResidualRms found{rank > 0 ? frame(job.places.row_rms)[row] : 0.0, true};
    if (scale.sketches && rank > 0) {
      const float* const coordinates = frame(job.draft_rows) + row;
      double square = 0;
      for (std::uint64_t k = 0; k < rank; ++k) {
        const auto own = static_cast<double>(coordinates[k * job.rows]);
        square = square + (own * own);
      }
      const double taken = square * sketch_unit(2 * scale.exponent);
      found = math::residual_rms(found.rms, taken, job.columns, job.square_error);
    }
    measured = !found.has_digits;
    frame(job.places.residual_rms)[row] = found.rms;
    frame(job.measured)[row] = measured ? 1 : 0;
  }
  pick_rows(frame, plan, at.job, false, measured, row);
}

__global__ void __launch_bounds__(kTileThreads, 4)
    subtract(Frame frame, SketchPlan plan, bool kept) {
  const UnitOf at = find_unit(frame, plan.residual, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  const SketchState& state = frame(plan.states)[at.job];
  const std::uint32_t* const picked = frame(job.picked) + (kept ? state.measured : 0);
  const std::uint64_t count = kept ? state.kept : state.measured;
  const std::uint64_t columns = job.columns, tiles = divide_up(columns, kTileLines);
  const TilePlace place{at.index % tiles * kTileLines, at.index / tiles * kTileLines, 0,
                        sketch_rank(frame, job)};
  if (place.second_line >= count || place.end == 0) return;
  const bool wide = job.is_wide();
  const Operand<float> right{frame(wide ? job.longer : job.shorter), columns, columns, false};
  const PickedLines left{frame(wide ? job.shorter : job.longer), job.rows, count, picked};
  const float* const matrix = state.matrix;
  float* const entries = frame(job.entries);
  // At least 2^-148, which f32 has.
  const auto unit = static_cast<float>(sketch_unit(sketch_scale(frame, plan, at.job).exponent));
  multiply_tile(right, left, place, [=](const auto& sums) {
    subtract_sums(matrix, entries, columns, picked, unit, sums);
  });
}

}  // namespace

void measure_residual(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_warps(measure_rows, plan.measured.units, frame, plan);
  queue.launch_blocks(subtract, plan.residual.units, kTileThreads, 0, frame, plan, false);
}

void subtract_from_kept(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_blocks(subtract, plan.residual.units, kTileThreads, 0, frame, plan, true);
}

}  // namespace atomo::cuda
