// SPDX-License-Identifier: Apache-2.0
/// Sketches of matrices: pairs of low rank that take most of them, and what they leave.
///
/// Mathematics (a randomised decomposition from a sparse start, as cpu/sketch.cpp). The matrix as
/// it lies is scaled by a power of two, T, its rows' norms below 1; Y = T S with S sparse and
/// random; Q = orthonormal vectors of Y; Z = T^T Q; P = orthonormal vectors of Z; K = T P; W = the
/// eigenvectors of K^T K in f64. K is found in f32; products that find a basis, Y of later
/// iterations and Z, are on tensor cores, their vectors rounded to TF32 and T not: T^T Q is among
/// the rows of T whatever Q is, so a rounded Q costs nothing, which a rounded T would. Vectors
/// become orthonormal by their Gram matrix in f64. Pair k is K w_k and P w_k,
/// the shorter one brought to norm 1, its amplitude the norm of the other. The residual is T - sum
/// of u_k v_k^T from these very f32 vectors: pairs and residual sum to T within f32's rounding
/// whatever Q, W and P are, so neither zero nor dependent vectors do harm, nor a rounding of the
/// steps before. Its rows are computed where they are needed (sketch_rows.cu).
///
/// Mapping. All layers go through every step together, so the launches do not depend on their
/// number. Here: a warp 4,096 entries of a vector. The start: sketch_start.cu; products:
/// sketch_products.cu; small matrices: sketch_basis.cu and sketch_eigen.cu.
///
/// Traffic in bytes an entry: 12 read and 4 written, in three passes; of rows that are computed 4
/// read and 4 written more; vectors of both sides on top.
///
/// Shared memory: none here. Determinism: draws are functions of their place, sums of the shape, so
/// a GPU gives the same bits every time, and so do those of its architecture. Alignment: tensors as
/// their entries.

#include "cuda/sketch.cuh"

#include <algorithm>

#include "cuda/sketch_cuts.hpp"
#include "math/residual_rms.hpp"

namespace atomo::cuda {
namespace {

/// What has to be new of a vector's square (sketch_basis.cu): for vectors that span as much, and for a basis that
/// has to be orthonormal.
constexpr double kLeastOfSpan = 0x1p-43, kLeastOfBasis = 0x1p-26;

__device__ double sum_of_warp(double sum) {
  for (unsigned apart = kLanes / 2; apart != 0; apart /= 2)
    sum = sum + __shfl_xor_sync(kAllLanes, sum, static_cast<int>(apart));
  return sum;
}

/// A stretch of one of the vectors of a side.
struct Stretch {
  float* at;  ///< the vector
  std::uint64_t first, end, length;
};
__device__ Stretch stretch_of(float* vectors, std::uint64_t length, std::uint64_t index) {
  const std::uint64_t stretches = divide_up(length, kSquaresUnit);
  const std::uint64_t first = index % stretches * kSquaresUnit;
  return {vectors + index / stretches * length, first,
          length - first < kSquaresUnit ? length : first + kSquaresUnit, length};
}

/// A whole warp multiplies a stretch and sums the squares of what it has then.
__device__ double scale_stretch(const Stretch& stretch, float factor) {
  const Entries vector{stretch.at, DType::f32};
  double sum = 0;
  for (std::uint64_t i = stretch.first + 4 * lane(); i < stretch.end; i += 4 * kLanes) {
    float v[4];
    vector.four(i, stretch.end, v);
    for (float& each : v) {
      each = each * factor;
      sum = sum + (static_cast<double>(each) * each);
    }
    if (factor != 1) put_four(stretch.at, i, stretch.end, v, {});
  }
  return sum_of_warp(sum);
}

/// By a whole warp: the norm of a vector from the squares of its stretches.
__device__ double norm_of(const double* squares, std::uint64_t stretches) {
  double sum = 0;
  for (std::uint64_t i = lane(); i < stretches; i += kLanes) sum = sum + squares[i];
  return sqrt(sum_of_warp(sum));
}

/// Of the first vectors.
__global__ void sum_squares(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.first_squares);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t m = job.shape().shorter();
  if (at.index >= divide_up(m, kSquaresUnit) * sketch_rank(frame, job)) return;
  const Stretch stretch = stretch_of(frame(job.shorter), m, at.index);
  const double sum = scale_stretch(stretch, 1);
  if (lane() == 0) frame(job.first_squares)[at.index] = sum;
}

/// First vectors come to norm 1, second ones take it.
__global__ void move_norms(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.stretches);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t m = job.shape().shorter(), n = job.shape().longer();
  const std::uint64_t of_first = divide_up(m, kSquaresUnit), of_second = divide_up(n, kSquaresUnit);
  const std::uint64_t rank = sketch_rank(frame, job), firsts = rank * of_first;
  if (at.index >= rank * (of_first + of_second)) return;
  const bool first = at.index < firsts;
  const std::uint64_t index = first ? at.index : at.index - firsts;
  const std::uint64_t k = index / (first ? of_first : of_second);
  const auto norm = static_cast<float>(norm_of(frame(job.first_squares) + k * of_first, of_first));
  if (first) {
    scale_stretch(stretch_of(frame(job.shorter), m, index), norm > 0 ? 1 / norm : 0.0f);
  } else {
    const double sum = scale_stretch(stretch_of(frame(job.longer), n, index), norm);
    if (lane() == 0) frame(job.squares)[index] = sum;
  }
}

/// A warp a pair.
__global__ void find_amplitudes(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.pairs);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t stretches = divide_up(job.shape().longer(), kSquaresUnit);
  const bool there = at.index < sketch_rank(frame, job);
  const double norm = there ? norm_of(frame(job.squares) + at.index * stretches, stretches) : 0.0;
  if (lane() != 0) return;
  const double sigma = norm * sketch_unit(sketch_scale(frame, plan, at.job).exponent);
  frame(job.places.sigma)[at.index] = sigma * job.places.unit;
}

/// Values of f64 that hold the partial sums of any step, one step at a time.
std::uint64_t partial_values(const MatrixShape& shape, std::uint32_t rank) {
  const std::uint64_t rows = shape.rows, columns = shape.columns;
  const auto floats = [&](std::uint64_t stretches, std::uint64_t length) {
    return stretches == 1 ? 0 : divide_up(stretches * rank * length, 2);
  };
  // Of the two sides the longer one may have fewer stretches.
  const std::uint64_t stretches =
      std::max(cut_of(rows, kGramStretch).count, cut_of(columns, kGramStretch).count);
  const std::uint64_t gram = stretches == 1 ? 0 : stretches * rank * rank;
  return std::max({floats(most_starts(columns), rows),
                   floats(cut_of(columns, kProductStretch).count, rows),
                   floats(cut_of(rows, kProductStretch).count, columns), gram, eigen_values(rank)});
}

}  // namespace

SketchPlanner::SketchPlanner(Layout& layout, std::size_t jobs) noexcept
    : layout_(layout),
      jobs_(layout, jobs),
      drawn_(layout, jobs),
      start_(layout, jobs),
      to_rows_(layout, jobs),
      to_columns_(layout, jobs),
      gram_rows_(layout, jobs),
      gram_columns_(layout, jobs),
      turned_rows_(layout, jobs),
      turned_columns_(layout, jobs),
      turned_both_(layout, jobs),
      eigen_(layout, jobs),
      roots_(layout, jobs),
      joined_(layout, jobs),
      first_squares_(layout, jobs),
      stretches_(layout, jobs),
      pairs_(layout, jobs),
      measured_(layout, jobs),
      residual_(layout, jobs) {}

SketchJob SketchPlanner::add(const MatrixShape& shape, const SketchOptions& options,
                             std::uint32_t layer, const SketchPlaces& places) noexcept {
  const auto rank = static_cast<std::uint32_t>(options.rank);
  const std::uint64_t m = shape.shorter(), n = shape.longer();
  SketchJob job;
  job.entries = layout_.scratch<float>(m * n);
  job.shorter = layout_.scratch<float>(m * rank);
  job.longer = layout_.scratch<float>(n * rank);
  job.places = places;
  job.square_error = math::square_error(shape.columns);
  job.weights = layout_.scratch<float>(shape.columns);
  job.shifts = layout_.scratch<std::uint32_t>(most_groups(shape.columns));
  job.draft_rows = layout_.scratch<float>(shape.rows * rank);
  job.draft_columns = layout_.scratch<float>(shape.columns * rank);
  job.gram = layout_.scratch<double>(std::uint64_t{rank} * rank);
  job.turn = layout_.scratch<double>(std::uint64_t{rank} * rank);
  job.turns =
      layout_.scratch<SketchTurn>(most_leaves(rank) * most_turns(std::min(rank, kSharedRank)));
  job.order = layout_.scratch<std::uint32_t>(rank);
  if (rank > kSharedRank) {
    job.support = layout_.scratch<std::uint32_t>(rank);
    job.diagonal = layout_.scratch<float>(rank);
    job.beside = layout_.scratch<float>(rank);
    job.reflected = layout_.scratch<float>(rank);
    job.values = layout_.scratch<double>(kJoinLevels * rank + rank);
    job.offsets = layout_.scratch<float>(rank);
    job.origins = layout_.scratch<std::uint32_t>(rank);
  }
  job.partials = layout_.scratch<double>(partial_values(shape, rank));
  job.squares = layout_.scratch<double>(divide_up(n, kSquaresUnit) * rank);
  job.first_squares = layout_.scratch<double>(divide_up(m, kSquaresUnit) * rank);
  job.picked = layout_.scratch<std::uint32_t>(shape.rows);
  job.measured = layout_.scratch<std::uint32_t>(shape.rows);
  job.rows = shape.rows;
  job.columns = shape.columns;
  job.rank = rank;
  job.least_rank = places.optional ? 0 : 1;
  job.iterations = options.iterations;
  job.layer = layer;
  jobs_.add(job);
  add_units(job);
  return job;
}

void SketchPlanner::add_units(const SketchJob& job) noexcept {
  const std::uint64_t rank = job.rank, rows = job.rows, columns = job.columns;
  const std::uint64_t m = job.shape().shorter(), n = job.shape().longer();
  const std::uint64_t strips = strips_of(rank);
  const auto add_product = [&](NewProduct& product, std::uint64_t lines, std::uint64_t values,
                               const Cut& cut) {
    product.units.add(divide_up(lines, 64) * strips * cut.count);
    product.folds.add(fold_units(cut.count, values));
  };
  const std::uint64_t starts = most_starts(columns);
  drawn_.add(divide_up(4 * math::first_shift_block(columns) + most_groups(columns), kDrawnUnit));
  start_.units.add(divide_up(divide_up(rows, kStartRows) * rank, 32) * starts);
  start_.folds.add(fold_units(starts, rows * rank));
  add_product(to_rows_, rows, rows * rank, cut_of(columns, kProductStretch));
  add_product(to_columns_, columns, columns * rank, cut_of(rows, kProductStretch));
  const auto add_gram = [&](NewProduct& product, std::uint64_t terms) {
    const Cut cut = cut_of(terms, kGramStretch);
    product.units.add(gram_tiles(rank) * cut.count);
    product.folds.add(fold_units(cut.count, rank * rank));
  };
  add_gram(gram_rows_, rows);
  add_gram(gram_columns_, columns);
  turned_rows_.add(turned_tiles(rows, rank));
  turned_columns_.add(turned_tiles(columns, rank));
  turned_both_.add(turned_tiles(rows, rank) + turned_tiles(columns, rank));
  const std::uint32_t leaves = most_leaves(job.rank);
  leaves_ = std::max(leaves_, leaves);
  eigen_.add(leaves == 1 ? divide_up(rank, kEigenEntries) : leaves * kSharedRank / kEigenEntries);
  roots_.add(leaves == 1 ? 0 : root_units(job.rank));
  joined_.add(leaves == 1 ? 0 : join_tiles(job.rank));
  first_squares_.add(divide_up(m, kSquaresUnit) * rank);
  stretches_.add((divide_up(m, kSquaresUnit) + divide_up(n, kSquaresUnit)) * rank);
  pairs_.add(rank);
  measured_.add(divide_up(rows, 32));
  residual_.add(divide_up(rows, 64) * divide_up(columns, 64));
  iterations_ = std::max(iterations_, job.iterations);
}

SketchPlan SketchPlanner::finish() noexcept {
  SketchPlan plan;
  plan.jobs = jobs_.table();
  plan.states = layout_.zeroed<SketchState>(jobs_.count());
  plan.drawn = drawn_.split();
  plan.start = start_.product();
  plan.to_rows = to_rows_.product();
  plan.to_columns = to_columns_.product();
  plan.gram_rows = gram_rows_.product();
  plan.gram_columns = gram_columns_.product();
  plan.turned_rows = turned_rows_.split();
  plan.turned_columns = turned_columns_.split();
  plan.turned_both = turned_both_.split();
  plan.eigen = eigen_.split();
  plan.roots = roots_.split();
  plan.joined = joined_.split();
  plan.leaves = leaves_;
  plan.first_squares = first_squares_.split();
  plan.stretches = stretches_.split();
  plan.pairs = pairs_.split();
  plan.measured = measured_.split();
  plan.residual = residual_.split();
  plan.iterations = iterations_;
  return plan;
}

void decompose(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  if (plan.empty()) return;
  const auto orthonormalise = [&](SketchVectors of, std::uint32_t iteration, double least_pivot) {
    find_gram(frame, plan, of, iteration, queue);
    find_orthonormal(frame, plan, iteration, least_pivot, queue);
    turn_side(frame, plan, of, iteration, queue);
  };
  multiply_start(frame, plan, queue);
  for (std::uint32_t i = 0; i < plan.iterations; ++i) {
    if (i > 0) multiply_to(frame, plan, SketchSide::rows, i, basis_vectors, queue);
    orthonormalise({SketchSide::rows, true}, i, kLeastOfSpan);
    multiply_to(frame, plan, SketchSide::columns, i, basis_vectors, queue);
    orthonormalise({SketchSide::columns, false}, i, kLeastOfBasis);
  }
  // The norms of what is left of rows follow from these coordinates (math/residual_rms.hpp): |t|^2 -
  // |k|^2 has no digits of a residual that is smaller than the rounding of k.
  multiply_to(frame, plan, SketchSide::rows, 0, TensorVectors::whole, queue);
  find_gram(frame, plan, {SketchSide::rows, true}, 0, queue);
  find_eigenvectors(frame, plan, queue);
  turn_both(frame, plan, queue);
  queue.launch_warps(sum_squares, plan.first_squares.units, frame, plan);
  queue.launch_warps(move_norms, plan.stretches.units, frame, plan);
  queue.launch_warps(find_amplitudes, plan.pairs.units, frame, plan);
  measure_residual(frame, plan, queue);
}

}  // namespace atomo::cuda
