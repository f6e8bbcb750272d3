// SPDX-License-Identifier: Apache-2.0
/// The start of sketches: the scaled matrix, and its product with a sparse random one.
///
/// Mathematics (math/sparse_start.hpp). Y = T S, S of one weight a column of T: Y[i][k] is the sum
/// of t[i][c] * weight[c], one fma a term, over the columns c with (c + shift) mod rank = k, the
/// shift being that of c's group.
///
/// Mapping.
///   draw   a warp 1,024 words: weights and shifts
///   start  a thread a value of Y, or a stretch of some 1,024 columns of it: neighbouring lanes
///          have neighbouring vectors, so they read neighbouring columns, every entry once. It
///          leaves the entry scaled on its way. A second launch adds stretches up in order.
///
/// Traffic in bytes an entry: 4 read (2 of a half) and 4 written; the start, 8 bytes a column and
/// row, comes from the caches. A copy that is aligned pays: every later read is of 16 bytes, and of
/// f32.
///
/// Shared memory: none. Determinism: draws are functions of their place, sums of the shape.
/// Alignment: tensors as their entries.

#include "core/philox.hpp"
#include "cuda/sketch.cuh"
#include "cuda/sketch_sums.cuh"
#include "math/sparse_start.hpp"

namespace atomo::cuda {
namespace {

/// Zero weights, from which come zero pairs, where nothing is to be sketched.
__global__ void draw_start(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.drawn);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t of_columns = 4 * math::first_shift_block(job.columns);
  const std::uint32_t rank = sketch_rank(frame, job);
  if (rank == 0) return;
  const std::uint64_t count = of_columns + math::start_groups(job.columns, rank);
  const Philox draws(frame.key(job.layer), Purpose::sketch_omega);
  const bool sketches = sketch_scale(frame, plan, at.job).sketches;
  const std::uint64_t first = at.index * kDrawnUnit;
  for (std::uint64_t i = first + 4 * lane(); i < first + kDrawnUnit && i < count; i += 4 * kLanes) {
    const PhiloxWords words = draws(i / 4);
    for (std::uint64_t k = 0; k < 4 && i + k < count; ++k) {
      if (i + k < job.columns)
        frame(job.weights)[i + k] = sketches ? math::start_weight(words[k]) : 0.0f;
      if (i >= of_columns)
        frame(job.shifts)[i + k - of_columns] = math::start_shift(words[k], rank);
    }
  }
}

__global__ void scale_and_start(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.start.units);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint32_t rank = sketch_rank(frame, job);
  if (rank == 0) return;
  const std::uint64_t columns = job.columns, width = math::start_width(rank);
  const Cut cut = cut_of_start(columns, rank);
  const std::uint64_t stretch = at.index % cut.count;
  const std::uint64_t value = at.index / cut.count * kLanes + lane();
  const std::uint64_t row = value / rank;
  const auto vector = static_cast<std::uint32_t>(value % rank);
  if (row >= job.rows) return;
  const bool finite = !was_non_finite(frame, job.layer);
  const double scale = sketch_unit(-sketch_scale(frame, plan, at.job).exponent);
  const Entries x = frame.entries(job.layer);
  const float* const weights = frame(job.weights);
  float* const entries = frame(job.entries) + row * columns;
  const std::uint64_t begin = stretch * cut.depth;
  const std::uint64_t end = columns - begin < cut.depth ? columns : begin + cut.depth;
  const std::uint32_t* shift = frame(job.shifts) + begin / width;
  const auto turns = static_cast<std::uint32_t>(width / rank);
  float sum = 0;
  // Four columns of the lane, in one group or in several, whose loads are under way together.
  constexpr unsigned kTogether = 4;
  std::uint64_t group = begin;
  for (std::uint32_t turn = 0, first = 0; group < end;) {
    std::uint64_t column[kTogether];
    for (std::uint64_t& c : column) {
      if (turn == 0 && group < end) {
        const std::uint32_t own = turns == 1 ? *shift : *shift % rank;
        first = vector < own ? vector + rank - own : vector - own;
      }
      c = group + std::uint64_t{turn} * rank + first;
      if (++turn == turns) turn = 0, group += width, ++shift;
    }
    float v[kTogether] = {}, weight[kTogether] = {};
    for (unsigned k = 0; k < kTogether; ++k) {
      if (column[k] >= end) continue;
      v[k] = finite ? x(row * columns + column[k]) : 0.0f;
      weight[k] = weights[column[k]];
    }
    for (unsigned k = 0; k < kTogether; ++k) {
      if (column[k] >= end) continue;
      const auto scaled = static_cast<float>(static_cast<double>(v[k]) * scale);
      entries[column[k]] = scaled;
      sum = __fmaf_rn(scaled, weight[k], sum);
    }
  }
  float* const to = cut.count == 1
                        ? frame(job.draft_rows)
                        : reinterpret_cast<float*>(frame(job.partials)) + stretch * rank * job.rows;
  to[std::uint64_t{vector} * job.rows + row] = sum;
}

__global__ void fold_start(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.start.folds);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint32_t rank = sketch_rank(frame, job);
  if (rank == 0) return;
  add_stretches(reinterpret_cast<const float*>(frame(job.partials)), frame(job.draft_rows),
                cut_of_start(job.columns, rank).count, rank * job.rows, at.index);
}

}  // namespace

void multiply_start(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_warps(draw_start, plan.drawn.units, frame, plan);
  queue.launch_warps(scale_and_start, plan.start.units.units, frame, plan);
  queue.launch_warps(fold_start, plan.start.folds.units, frame, plan);
}

}  // namespace atomo::cuda
