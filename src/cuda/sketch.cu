// SPDX-License-Identifier: Apache-2.0
/// Sketches of matrices: pairs of low rank that take most of them, and what they leave.
///
/// Mathematics (a randomised decomposition after a power iteration). The m x n matrix A (m <= n,
/// the tensor or its transpose) is scaled by a power of two to below 1; Omega, m x r, is uniform in
/// (-1, 1) from the layer's key. Y = A (A^T Omega), products in f32; Q = orthonormal vectors of Y
/// by its Gram matrix in f64, twice; B = Q^T A in f32; W = the eigenvectors of B B^T in f64. Pair k
/// is u_k = Q w_k, v_k = B^T w_k, its amplitude |v_k|. The residual is A - sum of u_k v_k^T from
/// these very f32 vectors: pairs and residual sum to A within f32's rounding whatever Q, W and B
/// are, so neither zero nor dependent vectors do harm, nor a rounding of the steps before.
///
/// Mapping. All layers go through every step together, so the launches do not depend on their
/// number. Here: a warp 4,096 entries to scale, 1,024 draws of Omega, 4,096 entries of a second
/// vector to square. Products: sketch_products.cu; small matrices: sketch_basis.cu.
///
/// Traffic in bytes an entry: 4 read for the largest, 4 read and 4 written scaled, 12 read by the
/// products, 8 by the residual, which takes the scaled entries' place; vectors of m and n values on
/// top. A copy that is aligned pays: every later read is of 16 bytes, and of f32.
///
/// Shared memory: none here. Determinism: draws are functions of their place, sums of the shape, so
/// a GPU gives the same bits every time. Alignment: tensors as their entries.

#include "cuda/sketch.cuh"

#include <algorithm>

#include "core/philox.hpp"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"
#include "cuda/sketch_cuts.hpp"

namespace atomo::cuda {
namespace {

/// Entries of at least 2 to this are left to the residual, so that no sum leaves the range of f32.
constexpr std::int32_t kLargestExponent = 120;

__global__ void scale_entries(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.scaled);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const bool finite = !was_non_finite(frame, job.layer);
  const double scale = sketch_unit(-sketch_exponent(frame, plan, at.job));
  const Entries x = frame.entries(job.layer);
  const std::uint64_t n = job.rows * job.columns, first = at.index * kScaledUnit;
  const std::uint64_t end = n - first < kScaledUnit ? n : first + kScaledUnit;
  float* const to = frame(job.entries);
  for (std::uint64_t i = first + 4 * lane(); i < end; i += 4 * kLanes) {
    float v[4];
    x.four(i, end, v);
    for (float& each : v)
      each = finite ? static_cast<float>(static_cast<double>(each) * scale) : 0.0f;
    put_four(to, i, end, v, {});
  }
}

/// Omega, vector by vector. Entry (i, k) is value i * rank + k of the layer's draws. Zeros, from
/// which come zero pairs, where entries are too large.
__global__ void draw_vectors(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.drawn);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t m = job.shape().shorter(), count = m * job.rank;
  const Philox draws(frame.key(job.layer), Purpose::sketch_omega);
  float* const to = frame(job.draft_shorter);
  const bool sketches = sketch_exponent(frame, plan, at.job) <= kLargestExponent;
  const std::uint64_t first = at.index * kDrawnUnit;
  for (std::uint64_t i = first + 4 * lane(); i < first + kDrawnUnit && i < count; i += 4 * kLanes) {
    const PhiloxWords words = draws(i / 4);
    for (std::uint64_t k = 0; k < 4 && i + k < count; ++k) {
      const auto value = static_cast<float>(static_cast<std::int32_t>(words[k]));
      to[(i + k) % job.rank * m + (i + k) / job.rank] = sketches ? value * 0x1p-31f : 0.0f;
    }
  }
}

__device__ double sum_of_warp(double sum) {
  for (unsigned apart = kLanes / 2; apart != 0; apart /= 2)
    sum = sum + __shfl_xor_sync(kAllLanes, sum, static_cast<int>(apart));
  return sum;
}

/// Every warp sums the squares of one stretch of second vectors.
__global__ void sum_squares(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.squares);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t n = job.shape().longer(), stretches = divide_up(n, kSquaresUnit);
  const std::uint64_t k = at.index / stretches, first = at.index % stretches * kSquaresUnit;
  const std::uint64_t end = n - first < kSquaresUnit ? n : first + kSquaresUnit;
  const Entries vector{frame(job.longer) + k * n, DType::f32};
  double sum = 0;
  for (std::uint64_t i = first + 4 * lane(); i < end; i += 4 * kLanes) {
    float v[4];
    vector.four(i, end, v);
    for (const float each : v) sum = sum + (static_cast<double>(each) * each);
  }
  sum = sum_of_warp(sum);
  if (lane() == 0) frame(job.squares)[at.index] = sum;
}

/// A warp a pair.
__global__ void find_amplitudes(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.pairs);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t stretches = divide_up(job.shape().longer(), kSquaresUnit);
  const double* const squares = frame(job.squares) + at.index * stretches;
  double sum = 0;
  for (std::uint64_t i = lane(); i < stretches; i += kLanes) sum = sum + squares[i];
  sum = sum_of_warp(sum);
  if (lane() != 0) return;
  const double unscaled = sqrt(sum) * sketch_unit(sketch_exponent(frame, plan, at.job));
  frame(job.sigma)[at.index] = unscaled * job.unit;
}

/// Values of f64 that hold the partial sums of any step, one step at a time.
std::uint64_t partial_values(const MatrixShape& shape, std::uint32_t rank) {
  const std::uint64_t m = shape.shorter(), n = shape.longer();
  const auto halves = [&](std::uint64_t terms, std::uint64_t length) {
    const std::uint64_t count = cut_of(terms, kProductStretch).count;
    return count == 1 ? 0 : divide_up(count * rank * length, 2);
  };
  const std::uint64_t stretches = cut_of(n, kGramStretch).count;
  const std::uint64_t gram = stretches == 1 ? 0 : stretches * rank * rank;
  return std::max({halves(m, n), halves(n, m), gram, eigen_values(rank)});
}

}  // namespace

SketchPlanner::SketchPlanner(Layout& layout, std::size_t jobs) noexcept
    : layout_(layout),
      jobs_(layout, jobs),
      maxima_(layout, jobs),
      scaled_(layout, jobs),
      drawn_(layout, jobs),
      to_longer_(layout, jobs),
      to_shorter_(layout, jobs),
      gram_shorter_(layout, jobs),
      gram_longer_(layout, jobs),
      turned_shorter_(layout, jobs),
      turned_both_(layout, jobs),
      residual_(layout, jobs),
      squares_(layout, jobs),
      pairs_(layout, jobs) {}

SketchJob SketchPlanner::add(const MatrixShape& shape, const SketchOptions& options,
                             std::uint32_t layer, Scratch<double> sigma, double unit) noexcept {
  const auto rank = static_cast<std::uint32_t>(options.rank);
  const std::uint64_t m = shape.shorter(), n = shape.longer();
  const std::uint64_t strips = strips_of(rank), stretches = divide_up(n, kSquaresUnit);
  SketchJob job;
  job.entries = layout_.scratch<float>(m * n);
  job.shorter = layout_.scratch<float>(m * rank);
  job.longer = layout_.scratch<float>(n * rank);
  job.sigma = sigma;
  job.unit = unit;
  job.draft_shorter = layout_.scratch<float>(m * rank);
  job.draft_longer = layout_.scratch<float>(n * rank);
  job.gram = layout_.scratch<double>(std::uint64_t{rank} * rank);
  job.turn = layout_.scratch<double>(std::uint64_t{rank} * rank);
  job.partials = layout_.scratch<double>(partial_values(shape, rank));
  job.squares = layout_.scratch<double>(stretches * rank);
  job.rows = shape.rows;
  job.columns = shape.columns;
  job.rank = rank;
  job.iterations = options.iterations;
  job.layer = layer;
  jobs_.add(job);

  ReduceJob maximum;
  maximum.layer = layer;
  maximum.n = maximum.span = m * n;
  maximum.rule = ReduceRule::max_abs;
  maxima_.add(maximum);
  scaled_.add(divide_up(m * n, kScaledUnit));
  drawn_.add(divide_up(m * rank, kDrawnUnit));
  const auto add_product = [&](NewProduct& product, std::uint64_t lines, std::uint64_t values,
                               const Cut& cut) {
    product.units.add(divide_up(lines, 64) * strips * cut.count);
    product.folds.add(fold_units(cut.count, values));
  };
  add_product(to_longer_, n, n * rank, cut_of(m, kProductStretch));
  add_product(to_shorter_, m, m * rank, cut_of(n, kProductStretch));
  add_product(gram_shorter_, rank, std::uint64_t{rank} * rank, cut_of(m, kGramStretch));
  add_product(gram_longer_, rank, std::uint64_t{rank} * rank, cut_of(n, kGramStretch));
  turned_shorter_.add(turned_tiles(m, rank));
  turned_both_.add(turned_tiles(m, rank) + turned_tiles(n, rank));
  residual_.add(divide_up(shape.rows, 64) * divide_up(shape.columns, 64));
  squares_.add(stretches * rank);
  pairs_.add(rank);
  iterations_ = std::max(iterations_, job.iterations);
  shared_bytes_ = std::max(shared_bytes_, eigenvector_bytes(rank));
  return job;
}

SketchPlan SketchPlanner::finish() noexcept {
  SketchPlan plan;
  plan.jobs = jobs_.table();
  plan.maxima = maxima_.finish();
  plan.scaled = scaled_.split();
  plan.drawn = drawn_.split();
  plan.to_longer = to_longer_.product();
  plan.to_shorter = to_shorter_.product();
  plan.gram_shorter = gram_shorter_.product();
  plan.gram_longer = gram_longer_.product();
  plan.turned_shorter = turned_shorter_.split();
  plan.turned_both = turned_both_.split();
  plan.residual = residual_.split();
  plan.squares = squares_.split();
  plan.pairs = pairs_.split();
  plan.iterations = iterations_;
  plan.shared_bytes = shared_bytes_;
  return plan;
}

void decompose(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  if (plan.empty()) return;
  reduce(frame, plan.maxima, queue);
  queue.launch_warps(scale_entries, plan.scaled.units, frame, plan);
  queue.launch_warps(draw_vectors, plan.drawn.units, frame, plan);
  for (std::uint32_t i = 0; i < plan.iterations; ++i) {
    multiply_to_longer(frame, plan, i, queue);
    multiply_to_shorter(frame, plan, i, queue);
    for (const SketchVectors from : {SketchVectors::draft_shorter, SketchVectors::shorter}) {
      find_gram(frame, plan, from, i, queue);
      find_orthonormal(frame, plan, i, queue);
      turn_shorter(frame, plan, from, i, queue);
    }
  }
  multiply_to_longer(frame, plan, 0, queue);
  find_gram(frame, plan, SketchVectors::draft_longer, 0, queue);
  find_eigenvectors(frame, plan, queue);
  turn_both(frame, plan, queue);
  queue.launch_warps(sum_squares, plan.squares.units, frame, plan);
  queue.launch_warps(find_amplitudes, plan.pairs.units, frame, plan);
  subtract_pairs(frame, plan, queue);
}

}  // namespace atomo::cuda
