// SPDX-License-Identifier: Apache-2.0
/// The start of sketches: the scaled matrix, and its product with a sparse random one.
///
/// Mathematics (math/sparse_start.hpp). Y = T S, S of one weight a column of T: Y[i][k] is the sum
/// of t[i][c] * weight[c], one fma a term, over the columns c with (c + shift) mod rank = k, the
/// shift being that of c's group.
///
/// Mapping.
///   draw   a warp 1,024 words: weights and shifts; the first one what the start needs of a job
///   start  a thread two values of Y, of neighbouring rows, or a stretch of some 1,024 columns of
///          them: neighbouring lanes have neighbouring vectors, so they read neighbouring columns,
///          every entry once, eight of them under way together. It leaves entries scaled on its
///          way. A second launch adds stretches up in order.
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
  const SketchScale scale = sketch_scale(frame, plan, at.job);
  if (at.index == 0 && lane() == 0) {
    SketchState& state = frame(plan.states)[at.job];
    state.start = cut_of_start(job.columns, rank);
    state.exponent = -scale.exponent;
  }
  const std::uint64_t first = at.index * kDrawnUnit;
  for (std::uint64_t i = first + 4 * lane(); i < first + kDrawnUnit && i < count; i += 4 * kLanes) {
    const PhiloxWords words = draws(i / 4);
    for (std::uint64_t k = 0; k < 4 && i + k < count; ++k) {
      if (i + k < job.columns)
        frame(job.weights)[i + k] = scale.sketches ? math::start_weight(words[k]) : 0.0f;
      if (i >= of_columns)
        frame(job.shifts)[i + k - of_columns] = math::start_shift(words[k], rank) % rank;
    }
  }
}

/// 2^exponent, which is at least 2^-126, as two factors, since f32 has none above 2^127. The second is 1 where the
/// first makes entries smaller, so that an entry times both is rounded once.
struct StartFactors {
  float first, second;
  __device__ explicit StartFactors(std::int32_t exponent)
      : first(unit(exponent < 127 ? exponent : 127)),
        second(unit(exponent < 127 ? 0 : exponent - 127)) {}

 private:
  __device__ static float unit(std::int32_t exponent) {
    return __uint_as_float(static_cast<std::uint32_t>(127 + exponent) << 23);
  }
};

/// What a lane has of the stretch of its rows: the columns of one vector.
struct StartColumns {
  const float* weights;
  const std::uint32_t* shifts;
  std::uint32_t length, rank, vector;
};

/// Leaves kStartRows rows scaled at `to`, and their products with the weights in `sums`. `value` makes an entry of
/// what is read at `from`, f32 or the bits of a half.
template <typename Read, typename Value>
__device__ __forceinline__ void scale_rows(const Read* const (&from)[kStartRows],
                                           float* const (&to)[kStartRows], const StartColumns& own,
                                           StartFactors scale, Value value,
                                           float (&sums)[kStartRows]) {
  constexpr unsigned kTogether = 4;  // columns whose loads are under way together
  const auto turns = static_cast<std::uint32_t>(math::start_width(own.rank)) / own.rank;
  const std::uint32_t* shift = own.shifts;
  for (std::uint32_t turn = 0, place = 0; place < own.length;) {
    std::uint32_t column[kTogether], shifts[kTogether];
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k, place += own.rank) {
      column[k] = place;
      shifts[k] = place < own.length ? *shift : 0;
      if (++turn == turns) turn = 0, ++shift;
    }
    Read read[kTogether][kStartRows] = {};
    float weight[kTogether] = {};
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      column[k] += own.vector - shifts[k] + (own.vector < shifts[k] ? own.rank : 0);
      if (column[k] >= own.length) continue;
#pragma unroll
      for (unsigned r = 0; r < kStartRows; ++r) read[k][r] = from[r][column[k]];
      weight[k] = own.weights[column[k]];
    }
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      if (column[k] >= own.length) continue;
#pragma unroll
      for (unsigned r = 0; r < kStartRows; ++r) {
        const float scaled = value(read[k][r]) * scale.first * scale.second;
        to[r][column[k]] = scaled;
        sums[r] = __fmaf_rn(scaled, weight[k], sums[r]);
      }
    }
  }
}

/// Of a tensor of Read, likewise.
template <typename Read, typename Value>
__device__ __forceinline__ void scale_rows_of(const Entries& x,
                                              const std::uint64_t (&first)[kStartRows],
                                              float* entries, const StartColumns& own,
                                              StartFactors scale, Value value,
                                              float (&sums)[kStartRows]) {
  const Read* from[kStartRows];
  float* to[kStartRows];
#pragma unroll
  for (unsigned r = 0; r < kStartRows; ++r) {
    from[r] = in_one(static_cast<const Read*>(x.x) + first[r]);
    to[r] = in_one(entries + first[r]);
  }
  scale_rows<Read>(from, to, own, scale, value, sums);
}

__global__ void scale_and_start(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.start.units);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint32_t rank = sketch_rank(frame, job);
  if (rank == 0) return;
  const SketchState& state = frame(plan.states)[at.job];
  const Cut cut = state.start;
  const std::uint64_t columns = job.columns, stretch = at.index % cut.count;
  const std::uint64_t value = at.index / cut.count * kLanes + lane();
  const std::uint64_t row = value / rank * kStartRows, begin = stretch * cut.depth;
  const auto vector = static_cast<std::uint32_t>(value % rank);
  if (row >= job.rows) return;
  const std::uint64_t left = columns - begin;
  const StartColumns own{in_one(frame(job.weights) + begin),
                         in_one(frame(job.shifts) + begin / math::start_width(rank)),
                         // At most 1/128 of the columns, or some 1,024.
                         static_cast<std::uint32_t>(left < cut.depth ? left : cut.depth), rank,
                         vector};
  // Behind the last row it is once more.
  std::uint64_t first[kStartRows];
#pragma unroll
  for (unsigned r = 0; r < kStartRows; ++r)
    first[r] = (row + r < job.rows ? row + r : job.rows - 1) * columns + begin;
  const bool finite = !was_non_finite(frame, job.layer);
  const StartFactors scale(state.exponent);
  const Entries x = frame.entries(job.layer);
  float* const entries = frame(job.entries);
  float sums[kStartRows] = {};
  if (x.dtype == DType::f32) {
    scale_rows_of<float>(
        x, first, entries, own, scale, [=](float v) { return finite ? v : 0.0f; }, sums);
  } else {
    const bool f16 = x.dtype == DType::f16;
    scale_rows_of<std::uint16_t>(
        x, first, entries, own, scale,
        [=](std::uint16_t v) { return finite ? wide_half(v, f16) : 0.0f; }, sums);
  }
  float* const to = cut.count == 1
                        ? frame(job.draft_rows)
                        : reinterpret_cast<float*>(frame(job.partials)) + stretch * rank * job.rows;
#pragma unroll
  for (unsigned r = 0; r < kStartRows; ++r) {
    if (row + r < job.rows) to[std::uint64_t{vector} * job.rows + row + r] = sums[r];
  }
}

__global__ void fold_start(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.start.folds);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint32_t rank = sketch_rank(frame, job);
  if (rank == 0) return;
  add_stretches(reinterpret_cast<const float*>(frame(job.partials)), frame(job.draft_rows),
                frame(plan.states)[at.job].start.count, rank * job.rows, at.index);
}

}  // namespace

void multiply_start(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_warps(draw_start, plan.drawn.units, frame, plan);
  queue.launch_warps(scale_and_start, plan.start.units.units, frame, plan);
  queue.launch_warps(fold_start, plan.start.folds.units, frame, plan);
}

}  // namespace atomo::cuda
