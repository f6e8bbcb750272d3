// SPDX-License-Identifier: Apache-2.0
/// Products of sketches: of matrices with vectors, of vectors with each other and with small
/// matrices.
///
/// Mathematics. With the matrix T and r vectors X of the rows' and Z of the columns' side: T^T X
/// and T Z on tensor cores, for a basis with vectors that are rounded, else with whole ones
/// (tf32_product.cuh); the Gram matrix X^T X or Z^T Z and the turned vectors X W^T in f64, on tensor
/// cores too (f64_product.cuh).
///
/// Mapping. A block a tile of 64 values of r vectors (64 vectors at a time), over a stretch of the
/// sum: some 384 of its terms, 128 of a Gram matrix, more where there would be over 128 stretches;
/// up to 16 whole vectors are multiplied in f32 as narrow_product.cuh has it. All
/// blocks of a launch do about the same work, whatever the matrices are. Stretches leave their sums
/// in the workspace; a second launch adds them up in order, a warp some 4,096 of them. Of a Gram
/// matrix tiles on and below the diagonal are made, and of the triangle that makes vectors orthonormal
/// nothing above the diagonal is read.
///
/// Traffic in bytes an entry of the matrix: 4 read by each of the two products (the least: the
/// second needs the first) for every 64 vectors. Stretches write and read 4 r / 384 twice over. 2 r
/// operations a product: memory bounds the time of up to 32 vectors; with 64 the instructions that
/// feed the tensor cores do, a third of f32's with rounded vectors, half of them with whole ones.
///
/// Shared memory: 18,432 bytes in TF32, 11,520 of narrow products beside them, 20,480 in f64.
/// Determinism: sums go in ascending order over stretches, and within them in an order of the
/// architecture's, both functions of the shape. Alignment: all operands begin at a multiple of 16 bytes,
/// which are read at once where lines are multiples of four.

#include "cuda/f64_product.cuh"
#include "cuda/narrow_product.cuh"
#include "cuda/sketch.cuh"
#include "cuda/sketch_sums.cuh"
#include "cuda/tf32_product.cuh"
#include "cuda/tile_product.cuh"

namespace atomo::cuda {
namespace {

/// Vectors of a job, one behind another.
struct Vectors {
  float* at;
  std::uint64_t length;
};
__device__ Vectors vectors_of(const Frame& frame, const SketchJob& job, SketchVectors of) {
  const bool rows = of.side == SketchSide::rows;
  if (of.draft)
    return {frame(rows ? job.draft_rows : job.draft_columns), rows ? job.rows : job.columns};
  return {frame(rows == job.is_wide() ? job.shorter : job.longer), rows ? job.rows : job.columns};
}

/// Which tile and stretch of `rank` vectors a unit is: one beyond them where a job looks for fewer
/// than it has units for.
__device__ TilePlace place_of(std::uint64_t unit, std::uint64_t rank, const Cut& cut,
                              std::uint64_t depth) {
  const std::uint64_t strips = rank == 0 ? 1 : strips_of(rank);
  const std::uint64_t stretch = unit / strips % cut.count, begin = stretch * cut.depth;
  return {unit / strips / cut.count * kTileLines, unit % strips * kTileLines, begin,
          depth - begin < cut.depth ? depth : begin + cut.depth};
}

/// The same of a Gram matrix, of which tiles on and below the diagonal are made.
__device__ TilePlace gram_place(std::uint64_t unit, std::uint64_t rank, const Cut& cut,
                                std::uint64_t depth) {
  const std::uint64_t tiles = gram_tiles(rank == 0 ? 1 : rank), begin = unit / tiles * cut.depth;
  if (unit / tiles >= cut.count) return {rank, rank, 0, 0};
  std::uint64_t row = 0, column = unit % tiles;
  while (column > row) column -= ++row;
  return {column * kTileLines, row * kTileLines, begin,
          depth - begin < cut.depth ? depth : begin + cut.depth};
}

/// Where the sums of a tile belong, of which the whole product has so many `values`: into it, or, of one stretch of several,
/// into the job's partial sums.
template <typename Real>
__device__ Real* sums_of(Real* whole, Real* partials, const Cut& cut, const TilePlace& place,
                         std::uint64_t values) {
  return cut.count == 1 ? whole : partials + place.begin / cut.depth * values;
}

/// Sums of a Gram matrix on and below the diagonal, and their mirror images.
struct PutGram {
  double* to;
  std::uint64_t rank;
  __device__ void operator()(std::uint64_t row, std::uint64_t column,
                             const double (&sums)[2]) const {
    if (row >= rank) return;
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      if (column + i > row) continue;
      to[row * rank + column + i] = sums[i];
      if (column + i < row) to[(column + i) * rank + row] = sums[i];
    }
  }
};

/// A product of the matrix: from the turned vectors of rows to columns, or from drafts of columns, which
/// are turned ones, to drafts of rows.
struct MatrixProduct {
  Vectors from, to;
  Cut cut;
};
__device__ MatrixProduct product_of(const Frame& frame, const SketchJob& job, SketchSide side) {
  const bool rows = side == SketchSide::rows;
  const auto from = vectors_of(frame, job, {rows ? SketchSide::columns : SketchSide::rows, rows});
  return {from, vectors_of(frame, job, {side, rows}), cut_of(from.length, kProductStretch)};
}

__host__ __device__ const SketchProduct& units_of(const SketchPlan& plan, SketchSide to) {
  return to == SketchSide::rows ? plan.to_rows : plan.to_columns;
}
__host__ __device__ const SketchProduct& gram_of(const SketchPlan& plan, SketchSide side) {
  return side == SketchSide::rows ? plan.gram_rows : plan.gram_columns;
}
__host__ __device__ const Split& turned_of(const SketchPlan& plan, SketchSide side) {
  return side == SketchSide::rows ? plan.turned_rows : plan.turned_columns;
}

/// A tile of a product of the matrix.
template <TensorVectors kind>
__device__ void multiply_unit(const Frame& frame, const SketchPlan& plan, SketchSide side,
                              std::uint32_t iteration) {
  const UnitOf at = find_unit(frame, units_of(plan, side).units, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const MatrixProduct product = product_of(frame, job, side);
  const std::uint64_t length = product.to.length, depth = product.from.length;
  const Operand<float> matrix{frame(plan.states)[at.job].matrix, job.columns, length,
                              side == SketchSide::rows};
  const std::uint32_t rank = sketch_rank(frame, job);
  const Operand<float> vectors{product.from.at, depth, rank, true};
  const TilePlace place = place_of(at.index, rank, product.cut, depth);
  if (rank == 0 || place.first_line >= length) return;
  float* const to = sums_of(product.to.at, reinterpret_cast<float*>(frame(job.partials)),
                            product.cut, place, rank * length);
  if (kind == TensorVectors::whole && rank <= kNarrowVectors) {
    multiply_narrow(matrix, vectors, place, to, length);
  } else {
    multiply_tile_tf32<kind>(matrix, vectors, place, to, length);
  }
}

__global__ void __launch_bounds__(kTileThreads, 3)
    multiply(Frame frame, SketchPlan plan, SketchSide side, std::uint32_t iteration) {
  multiply_unit<TensorVectors::whole>(frame, plan, side, iteration);
}

__global__ void __launch_bounds__(kTileThreads, 4)
    multiply_tf32(Frame frame, SketchPlan plan, SketchSide side, std::uint32_t iteration) {
  multiply_unit<TensorVectors::rounded>(frame, plan, side, iteration);
}

__global__ void fold_product(Frame frame, SketchPlan plan, SketchSide side,
                             std::uint32_t iteration) {
  const UnitOf at = unit_of_warp(frame, units_of(plan, side).folds);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const MatrixProduct product = product_of(frame, job, side);
  add_stretches(reinterpret_cast<const float*>(frame(job.partials)), product.to.at,
                product.cut.count, sketch_rank(frame, job) * product.to.length, at.index);
}

__global__ void __launch_bounds__(kTileThreads)
    multiply_vectors(Frame frame, SketchPlan plan, SketchVectors of, std::uint32_t iteration) {
  const UnitOf at = find_unit(frame, gram_of(plan, of.side).units, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const Vectors vectors = vectors_of(frame, job, of);
  const std::uint32_t rank = sketch_rank(frame, job);
  const Operand<float> operand{vectors.at, vectors.length, rank, true};
  const Cut cut = cut_of(vectors.length, kGramStretch);
  const TilePlace place = gram_place(at.index, rank, cut, vectors.length);
  if (place.first_line >= rank) return;
  const PutGram put{
      sums_of(frame(job.gram), frame(job.partials), cut, place, std::uint64_t{rank} * rank), rank};
  if (place.first_line == place.second_line) {
    multiply_triangle_f64(operand, place, put);
  } else {
    multiply_tile_f64<true>(operand, operand, place, put);
  }
}

__global__ void fold_gram(Frame frame, SketchPlan plan, SketchVectors of, std::uint32_t iteration) {
  const UnitOf at = unit_of_warp(frame, gram_of(plan, of.side).folds);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration >= job.iterations) return;
  const std::uint64_t length = vectors_of(frame, job, of).length, rank = sketch_rank(frame, job);
  add_stretches<double>(frame(job.partials), frame(job.gram), cut_of(length, kGramStretch).count,
                        rank * rank, at.index);
}

/// A tile of turned vectors. `lower`: `turn` is a lower triangle.
__device__ void turn_tile(const Frame& frame, const SketchJob& job, SketchVectors from, bool lower,
                          std::uint64_t unit) {
  const std::uint64_t rank = sketch_rank(frame, job), strips = strips_of(rank);
  const Vectors vectors = vectors_of(frame, job, from);
  const std::uint64_t length = vectors.length;
  if (unit >= turned_tiles(length, rank)) return;
  float* const to = vectors_of(frame, job, {from.side, !from.draft}).at;
  const Operand<float> operand{vectors.at, length, length, false};
  const bool straight = !lower && rank > kSharedRank;
  const Operand<double> turn{straight ? straight_turn(frame, job) : frame(job.turn), rank, rank,
                             true};
  const std::uint64_t vector = unit % strips * kTileLines, within = vector + kTileLines;
  const TilePlace place{unit / strips * kTileLines, vector, 0,
                        lower && within < rank ? within : rank};
  multiply_tile_f64<false>(operand, turn, place, PutLines<float>{to, rank, length});
}

__global__ void __launch_bounds__(kTileThreads)
    turn_one_side(Frame frame, SketchPlan plan, SketchVectors from, std::uint32_t iteration) {
  const UnitOf at = find_unit(frame, turned_of(plan, from.side), blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (iteration < job.iterations) turn_tile(frame, job, from, true, at.index);
}

__global__ void __launch_bounds__(kTileThreads) turn_two_sides(Frame frame, SketchPlan plan) {
  const UnitOf at = find_unit(frame, plan.turned_both, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t of_rows = turned_tiles(job.rows, sketch_rank(frame, job));
  const bool rows = at.index < of_rows;
  turn_tile(frame, job, {rows ? SketchSide::rows : SketchSide::columns, true}, false,
            rows ? at.index : at.index - of_rows);
}

}  // namespace

void multiply_to(const Frame& frame, const SketchPlan& plan, SketchSide side,
                 std::uint32_t iteration, TensorVectors taken, Queue& queue) {
  const SketchProduct& product = units_of(plan, side);
  queue.launch_blocks(taken == TensorVectors::rounded ? multiply_tf32 : multiply,
                      product.units.units, kTileThreads, 0, frame, plan, side, iteration);
  queue.launch_warps(fold_product, product.folds.units, frame, plan, side, iteration);
}

void find_gram(const Frame& frame, const SketchPlan& plan, SketchVectors of,
               std::uint32_t iteration, Queue& queue) {
  const SketchProduct& product = gram_of(plan, of.side);
  queue.launch_blocks(multiply_vectors, product.units.units, kTileThreads, 0, frame, plan, of,
                      iteration);
  queue.launch_warps(fold_gram, product.folds.units, frame, plan, of, iteration);
}

void turn_side(const Frame& frame, const SketchPlan& plan, SketchVectors from,
               std::uint32_t iteration, Queue& queue) {
  queue.launch_blocks(turn_one_side, turned_of(plan, from.side).units, kTileThreads, 0, frame, plan,
                      from, iteration);
}

void turn_both(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_blocks(turn_two_sides, plan.turned_both.units, kTileThreads, 0, frame, plan);
}

}  // namespace atomo::cuda
