// SPDX-License-Identifier: Apache-2.0
/// Products of sketches: of matrices with vectors, of vectors with each other, of vectors with
/// small matrices, and of pairs.
///
/// Mathematics. With the m x n matrix A (m <= n, the tensor or its transpose), vectors X of the
/// shorter and Z of the longer side, r of either: A^T X and A Z in f32; the Gram matrix X^T X or
/// Z^T Z and the turned vectors X W^T in f64; A - sum of x_k z_k^T in f32, the sum in ascending
/// order of k as a decoder takes it.
///
/// Mapping. A block a tile of 64 values of r vectors (64 vectors at a time), over a stretch of the
/// sum: some 512 of its terms, 1,024 of a Gram matrix, more where there would be over 128
/// stretches. All blocks of a launch do about the same work, whatever the matrices are. Stretches
/// leave their sums in the workspace; a second launch adds them up in order, a warp some 4,096 of
/// them.
///
/// Traffic in bytes an entry of the matrix: 4 read by each of the three products (the least: what
/// follows needs the one before) for every 64 vectors; the residual reads and writes 4. Stretches
/// write and read 4 r / 512 twice over. 2 r operations a product: with r of 16 and fewer memory
/// bounds the time, with 64 arithmetic.
///
/// Shared memory: 8,704 bytes, 17,408 in f64. Determinism: sums go in ascending order within
/// stretches and over them, both functions of the shape. Alignment: all operands stand in the
/// workspace, so that 16 bytes are read at once where lines are multiples of four.

#include <algorithm>

#include "cuda/sketch.cuh"
#include "cuda/sketch_cuts.hpp"
#include "cuda/tile_product.cuh"

namespace atomo::cuda {
namespace {

/// Vectors of a job, one behind another.
struct Vectors {
  float* at;
  std::uint64_t length;
};
__device__ Vectors vectors_of(const Frame& frame, const SketchJob& job, SketchVectors of) {
  if (of == SketchVectors::draft_longer) return {frame(job.draft_longer), job.shape().longer()};
  const bool draft = of == SketchVectors::draft_shorter;
  return {frame(draft ? job.draft_shorter : job.shorter), job.shape().shorter()};
}

/// Which tile and stretch a unit is.
__device__ TilePlace place_of(std::uint64_t unit, std::uint64_t strips, const Cut& cut,
                              std::uint64_t depth) {
  const std::uint64_t stretch = unit / strips % cut.count, begin = stretch * cut.depth;
  return {unit / strips / cut.count * kTileLines, unit % strips * kTileLines, begin,
          depth - begin < cut.depth ? depth : begin + cut.depth};
}

/// Stores a tile of sums, line by line of `length` values: into `whole`, or, of one stretch of
/// several, into the job's partial sums.
template <typename Real>
struct PutSums {
  Real* to;
  std::uint64_t length;
  __device__ PutSums(Real* whole, Real* partials, const Cut& cut, const TilePlace& place,
                     std::uint64_t vectors, std::uint64_t values)
      : to(cut.count == 1 ? whole : partials + place.begin / cut.depth * vectors * values),
        length(values) {}
  __device__ void operator()(std::uint64_t vector, std::uint64_t first,
                             const Real (&sums)[8]) const {
    put_eight(to + vector * length + first, length - first, length, sums);
  }
};

/// `longer`: draft_longer is the result.
__global__ void __launch_bounds__(kTileThreads)
    multiply(Frame frame, SketchPlan plan, bool longer, std::uint32_t iteration) {
  const UnitOf at = find_unit(frame, (longer ? plan.to_longer : plan.to_shorter).units, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const std::uint64_t m = job.shape().shorter(), n = job.shape().longer();
  const std::uint64_t length = longer ? n : m, depth = longer ? m : n;
  const bool wide = job.rows <= job.columns;
  const Operand<float> matrix{frame(job.entries), job.columns, length, wide != longer};
  const Operand<float> vectors{frame(longer ? job.draft_shorter : job.draft_longer), depth,
                               job.rank, true};
  const Cut cut = cut_of(depth, kProductStretch);
  const TilePlace place = place_of(at.index, strips_of(job.rank), cut, depth);
  float* const result = frame(longer ? job.draft_longer : job.draft_shorter);
  auto* const partials = reinterpret_cast<float*>(frame(job.partials));
  multiply_tile<float>(matrix, vectors, place,
                       PutSums<float>(result, partials, cut, place, job.rank, length));
}

/// Adds the sums of `count` stretches of `values` values: those of a unit.
template <typename Real>
__device__ void add_stretches(const Real* partials, Real* whole, std::uint64_t count,
                              std::uint64_t values, std::uint64_t unit) {
  const std::uint64_t each = fold_values(count), first = unit * each;
  const std::uint64_t end = values - first < each ? values : first + each;
  for (std::uint64_t i = first + lane(); i < end; i += kLanes) {
    Real sum = partials[i];
#pragma unroll 4
    for (std::uint64_t k = 1; k < count; ++k) sum = sum + partials[k * values + i];
    whole[i] = sum;
  }
}

__global__ void fold_product(Frame frame, SketchPlan plan, bool longer, std::uint32_t iteration) {
  const Split& folds = (longer ? plan.to_longer : plan.to_shorter).folds;
  if (warp_in_grid() >= folds.units) return;
  const UnitOf at = find_unit(frame, folds, warp_in_grid());
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const std::uint64_t m = job.shape().shorter(), n = job.shape().longer();
  add_stretches(reinterpret_cast<const float*>(frame(job.partials)),
                frame(longer ? job.draft_longer : job.draft_shorter),
                cut_of(longer ? m : n, kProductStretch).count, job.rank * (longer ? n : m),
                at.index);
}

__global__ void __launch_bounds__(kTileThreads)
    multiply_vectors(Frame frame, SketchPlan plan, SketchVectors of, std::uint32_t iteration) {
  const bool longer = of == SketchVectors::draft_longer;
  const Split& units = (longer ? plan.gram_longer : plan.gram_shorter).units;
  const UnitOf at = find_unit(frame, units, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const Vectors vectors = vectors_of(frame, job, of);
  const Operand<float> operand{vectors.at, vectors.length, job.rank, true};
  const Cut cut = cut_of(vectors.length, kGramStretch);
  const TilePlace place = place_of(at.index, strips_of(job.rank), cut, vectors.length);
  multiply_tile<double>(
      operand, operand, place,
      PutSums<double>(frame(job.gram), frame(job.partials), cut, place, job.rank, job.rank));
}

__global__ void fold_gram(Frame frame, SketchPlan plan, bool longer, std::uint32_t iteration) {
  const Split& folds = (longer ? plan.gram_longer : plan.gram_shorter).folds;
  if (warp_in_grid() >= folds.units) return;
  const UnitOf at = find_unit(frame, folds, warp_in_grid());
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const std::uint64_t length = longer ? job.shape().longer() : job.shape().shorter();
  add_stretches<double>(frame(job.partials), frame(job.gram), cut_of(length, kGramStretch).count,
                        std::uint64_t{job.rank} * job.rank, at.index);
}

/// A tile of turned vectors.
__device__ void turn_tile(const Frame& frame, const SketchJob& job, const float* from, float* to,
                          std::uint64_t length, std::uint64_t unit) {
  const std::uint64_t rank = job.rank, strips = strips_of(job.rank);
  const Operand<float> vectors{from, length, length, false};
  const Operand<double> turn{frame(job.turn), rank, rank, true};
  const TilePlace place{unit / strips * kTileLines, unit % strips * kTileLines, 0, rank};
  multiply_tile<double>(vectors, turn, place,
                        [=](std::uint64_t vector, std::uint64_t first, const double(&sums)[8]) {
                          put_eight(to + vector * length + first, length - first, length, sums);
                        });
}

__global__ void __launch_bounds__(kTileThreads)
    turn_one_side(Frame frame, SketchPlan plan, SketchVectors from, std::uint32_t iteration) {
  const UnitOf at = find_unit(frame, plan.turned_shorter, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const auto to =
      from == SketchVectors::shorter ? SketchVectors::draft_shorter : SketchVectors::shorter;
  const Vectors vectors = vectors_of(frame, job, from);
  turn_tile(frame, job, vectors.at, vectors_of(frame, job, to).at, vectors.length, at.index);
}

__global__ void __launch_bounds__(kTileThreads) turn_two_sides(Frame frame, SketchPlan plan) {
  const UnitOf at = find_unit(frame, plan.turned_both, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t of_shorter = turned_tiles(job.shape().shorter(), job.rank);
  const bool shorter = at.index < of_shorter;
  turn_tile(frame, job, frame(shorter ? job.draft_shorter : job.draft_longer),
            frame(shorter ? job.shorter : job.longer),
            shorter ? job.shape().shorter() : job.shape().longer(),
            shorter ? at.index : at.index - of_shorter);
}

__global__ void __launch_bounds__(kTileThreads) subtract(Frame frame, SketchPlan plan) {
  const UnitOf at = find_unit(frame, plan.residual, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  const bool wide = job.rows <= job.columns;
  const Operand<float> right{frame(wide ? job.longer : job.shorter), job.columns, job.columns,
                             false};
  const Operand<float> left{frame(wide ? job.shorter : job.longer), job.rows, job.rows, false};
  const std::uint64_t tiles = divide_up(job.columns, kTileLines), columns = job.columns;
  const TilePlace place{at.index % tiles * kTileLines, at.index / tiles * kTileLines, 0, job.rank};
  float* const entries = frame(job.entries);
  const double unit = sketch_unit(sketch_exponent(frame, plan, at.job));
  multiply_tile<float>(
      right, left, place, [=](std::uint64_t row, std::uint64_t first, const float(&sums)[8]) {
        subtract_eight(entries + row * columns + first, columns - first, columns, sums, unit);
      });
}

}  // namespace

void multiply_to_longer(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                        Queue& queue) {
  queue.launch_blocks(multiply, plan.to_longer.units.units, kTileThreads, 0, frame, plan, true,
                      iteration);
  queue.launch_warps(fold_product, plan.to_longer.folds.units, frame, plan, true, iteration);
}

void multiply_to_shorter(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                         Queue& queue) {
  queue.launch_blocks(multiply, plan.to_shorter.units.units, kTileThreads, 0, frame, plan, false,
                      iteration);
  queue.launch_warps(fold_product, plan.to_shorter.folds.units, frame, plan, false, iteration);
}

void find_gram(const Frame& frame, const SketchPlan& plan, SketchVectors of,
               std::uint32_t iteration, Queue& queue) {
  const bool longer = of == SketchVectors::draft_longer;
  const SketchProduct& product = longer ? plan.gram_longer : plan.gram_shorter;
  queue.launch_blocks(multiply_vectors, product.units.units, kTileThreads, 0, frame, plan, of,
                      iteration);
  queue.launch_warps(fold_gram, product.folds.units, frame, plan, longer, iteration);
}

void turn_shorter(const Frame& frame, const SketchPlan& plan, SketchVectors from,
                  std::uint32_t iteration, Queue& queue) {
  queue.launch_blocks(turn_one_side, plan.turned_shorter.units, kTileThreads, 0, frame, plan, from,
                      iteration);
}

void turn_both(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_blocks(turn_two_sides, plan.turned_both.units, kTileThreads, 0, frame, plan);
}

void subtract_pairs(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_blocks(subtract, plan.residual.units, kTileThreads, 0, frame, plan);
}

}  // namespace atomo::cuda
