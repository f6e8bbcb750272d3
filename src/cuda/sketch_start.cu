// SPDX-License-Identifier: Apache-2.0
/// The start of sketches: the matrix, scaled where it has to be, and its product with a sparse random
/// one.
///
/// Mathematics (math/sparse_start.hpp). Y = T S, S of one weight a column of T: Y[i][k] is the sum
/// of t[i][c] * weight[c], one fma a term, over the columns c with (c + shift) mod rank = k, the
/// shift being that of c's group.
///
/// Mapping.
///   draw   a warp 1,024 words: weights and shifts; the first one what the start needs of a job
///   start  a thread two values of Y, of neighbouring rows, or a stretch of some 1,024 columns of
///          them: neighbouring lanes have neighbouring vectors, so they read neighbouring columns,
///          every entry once, eight of them under way together. A second launch adds stretches up in
///          order.
///
/// A tensor of f32 at a multiple of 16 bytes is read where it is by all that follows, unless its norms
/// are so large or small that it has to be scaled. Of any other the start leaves a copy on its way,
/// which pays: every later read is of 16 bytes, and of f32.
///
/// Traffic in bytes an entry: 4 read (2 of a half), and 4 written of a copy; the start, 8 bytes a
/// column and row, comes from the caches.
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
    const Entries x = frame.entries(job.layer);
    const bool as_it_is = scale.sketches && scale.exponent == 0 && x.dtype == DType::f32 &&
                          reinterpret_cast<std::uintptr_t>(x.x) % 16 == 0;
    state.matrix = as_it_is ? static_cast<const float*>(x.x) : frame(job.entries);
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

/// Leaves the products of kStartRows rows with the weights in `sums`. put(r, column, read) makes an entry of what
/// is read at `from`, f32 or the bits of a half.
template <typename Read, typename Put>
__device__ __forceinline__ void start_rows(const Read* const (&from)[kStartRows],
                                           const StartColumns& own, Put put,
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
      for (unsigned r = 0; r < kStartRows; ++r)
        sums[r] = __fmaf_rn(put(r, column[k], read[k][r]), weight[k], sums[r]);
    }
  }
}

/// Where the rows of a tensor of T begin.
template <typename T>
struct StartRows {
  T* of[kStartRows];
  __device__ StartRows(T* tensor, const std::uint64_t (&first)[kStartRows]) {
#pragma unroll
    for (unsigned r = 0; r < kStartRows; ++r) of[r] = in_one(tensor + first[r]);
  }
};

/// Of a tensor of Read, of which a scaled copy is left at `entries`. `value` makes an f32 of what is read.
template <typename Read, typename Value>
__device__ __forceinline__ void scale_rows(const Entries& x,
                                           const std::uint64_t (&first)[kStartRows], float* entries,
                                           const StartColumns& own, StartFactors scale, Value value,
                                           float (&sums)[kStartRows]) {
  const StartRows<const Read> from(static_cast<const Read*>(x.x), first);
  const StartRows<float> to(entries, first);
  start_rows<Read>(
      from.of, own,
      [&](unsigned r, std::uint32_t column, Read read) {
        return to.of[r][column] = value(read) * scale.first * scale.second;
      },
      sums);
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
  if (state.matrix != entries) {
    start_rows<float>(
        StartRows<const float>(state.matrix, first).of, own,
        [](unsigned, std::uint32_t, float read) { return read; }, sums);
  } else if (x.dtype == DType::f32) {
    scale_rows<float>(
        x, first, entries, own, scale, [=](float v) { return finite ? v : 0.0f; }, sums);
  } else {
    const bool f16 = x.dtype == DType::f16;
    scale_rows<std::uint16_t>(
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
