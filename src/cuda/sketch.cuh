// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The decomposition of layers into the pairs of a sketch of low rank and what they leave (method
/// atoms, family 3): sketch.cu, with its products (sketch_products.cu), its small matrices
/// (sketch_basis.cu, sketch_eigen.cu) and the rows that the pairs leave (sketch_rows.cu). No library is called, so
/// no handles are needed.

#include "cuda/entries.cuh"
#include "cuda/sketch_cuts.hpp"
#include "format/matrix.hpp"
#include "math/sketch_scale.hpp"
#include "price/sketch_rank.hpp"

namespace atomo::cuda {

/// What the caller gives a sketch room for, and what it knows.
struct SketchPlaces {
  Scratch<double> row_rms;       ///< of the tensor's rows, which the caller fills
  Scratch<double> residual_rms;  ///< of what the pairs leave of them; may be the same memory
  Scratch<double> sigma;         ///< of pair k: sigma * unit
  double unit = 1;
  bool optional = false;  ///< it may look for no pairs at all: the layer has other forms
};

/// A rotation of two vectors.
struct alignas(8) SketchTurn {
  float cosine, sine;
};

/// A layer that is a matrix of `rows` x `columns`, and its sketch. Vectors stand one behind
/// another, as in SingularPairs: entry i of vector k of the shorter side at k * shorter() + i.
struct SketchJob {
  /// Row-major: 2^-exponent times the tensor where SketchState::matrix is this; rows that are computed
  /// are the residual's, in the tensor's own unit.
  Scratch<float> entries;
  Scratch<float> shorter;  ///< first vectors, of norm 1 or zero
  Scratch<float> longer;   ///< second vectors: sigma v 2^-exponent
  SketchPlaces places;
  double square_error = 0;                   ///< math::square_error of the columns
  Scratch<float> weights;                    ///< of the start, a column
  Scratch<std::uint32_t> shifts;             ///< of the start, a group of columns, modulo the rank
  Scratch<float> draft_rows, draft_columns;  ///< vectors on their way, by side
  Scratch<double> gram, turn;                ///< rank x rank
  Scratch<SketchTurn> turns;                 ///< that make a Gram matrix diagonal, or leaves
  Scratch<std::uint32_t> order;              ///< of its eigenvalues: places in descending order
  // Of ranks above kSharedRank:
  Scratch<std::uint32_t> support;  ///< rows of the Gram matrix, those that are zero last
  Scratch<float> diagonal, beside,
      reflected;                           ///< its tridiagonal form; what reflections multiply by
  Scratch<double> values;                  ///< eigenvalues of leaves, then of each level's joints
  Scratch<float> offsets;                  ///< of a joint's eigenvalues from poles
  Scratch<std::uint32_t> origins;          ///< which poles
  Scratch<double> partials;                ///< of a product or a Gram matrix
  Scratch<double> squares, first_squares;  ///< of stretches of second and of first vectors
  Scratch<std::uint32_t> picked;           ///< numbers of rows that are computed, in any order
  Scratch<std::uint32_t> measured;         ///< a row: 1 where it was computed to be measured
  std::uint64_t rows = 0, columns = 0;
  std::uint32_t rank = 0, least_rank = 1;  ///< that it may look for; see `sketch_rank`
  std::uint32_t iterations = 1, layer = 0;

  [[nodiscard]] __host__ __device__ MatrixShape shape() const { return {rows, columns}; }
  [[nodiscard]] __host__ __device__ bool is_wide() const { return rows <= columns; }
};

/// One a job; zeroed.
struct SketchState {
  unsigned long long largest = 0;  ///< bits of the largest rms of a row, a finite f64
  /// Of SketchJob::picked: rows that were computed to be measured, then those that are kept.
  std::uint32_t measured = 0, kept = 0;
  std::uint32_t sweeps[kMostLeaves] = {};  ///< that SketchJob::turns has
  std::uint32_t directions = 0;            ///< rows of the tridiagonal form
  Cut start;                               ///< of the columns times the start
  std::int32_t exponent = 0;      ///< of two, by whose power the tensor's entries are multiplied
  const float* matrix = nullptr;  ///< what is sketched: the tensor itself, or SketchJob::entries
};

/// A product whose units leave partial sums where they are several, and the sums of these.
struct SketchProduct {
  Split units, folds;
};

struct SketchPlan {
  Table<SketchJob> jobs;
  Scratch<SketchState> states;
  Split drawn;                            ///< words of the start
  SketchProduct start;                    ///< matrix times the start
  SketchProduct to_rows, to_columns;      ///< matrix times vectors, by the result's side
  SketchProduct gram_rows, gram_columns;  ///< of vectors of a side
  Split turned_rows, turned_columns;      ///< tiles of vectors
  Split turned_both;
  Split eigen;                            ///< entries of eigenvectors, kEigenEntries of each
  Split roots, joined;                    ///< joints: kRootsTogether eigenvalues, tiles of vectors
  Split first_squares, stretches, pairs;  ///< stretches of first vectors, of all; pairs
  Split measured, residual;               ///< 32 rows; tiles of the matrices
  std::uint32_t iterations = 0;           ///< the most that a job has
  std::uint32_t leaves = 1;               ///< likewise
  [[nodiscard]] bool empty() const { return drawn.jobs == 0; }
};

/// Plans sketches for jobs added in order.
class SketchPlanner {
 public:
  SketchPlanner(Layout& layout, std::size_t jobs) noexcept;

  /// `options` as for cpu::sketch. Returns where vectors and residual will be.
  SketchJob add(const MatrixShape& shape, const SketchOptions& options, std::uint32_t layer,
                const SketchPlaces& places) noexcept;
  [[nodiscard]] SketchPlan finish() noexcept;

 private:
  struct NewProduct {
    SplitMaker units, folds;
    NewProduct(Layout& layout, std::size_t jobs) noexcept
        : units(layout, jobs), folds(layout, jobs) {}
    [[nodiscard]] SketchProduct product() const noexcept { return {units.split(), folds.split()}; }
  };
  void add_units(const SketchJob& job) noexcept;

  Layout& layout_;
  TableMaker<SketchJob> jobs_;
  SplitMaker drawn_;
  NewProduct start_, to_rows_, to_columns_, gram_rows_, gram_columns_;
  SplitMaker turned_rows_, turned_columns_, turned_both_, eigen_, roots_, joined_;
  SplitMaker first_squares_, stretches_, pairs_, measured_, residual_;
  std::uint32_t iterations_ = 0, leaves_ = 1;
};

/// Decomposes the layers of all jobs under their keys, once `row_rms` has the norms of their rows
/// and `note_row_rms` was called for all of them. Fills `residual_rms`; of rows that are computed
/// to be measured it has what is to be added to their rms, and `entries` has them. Vectors and
/// sigma are zero where a layer is not finite or a row's norm is 2^120 or more. 29 launches, 16
/// more for every further iteration of the job that has most; of a rank above 64 three for every 64 of it and 7 more, 10 above
/// 128, and three for every 64 in every further iteration.
void decompose(const Frame& frame, const SketchPlan& plan, Queue& queue);

/// Pairs that a job looks for in this message: units, places and memory are for `job.rank` of them.
/// Without pairs all its norms are zero, and nothing else is computed.
__device__ inline std::uint32_t sketch_rank(const Frame& frame, const SketchJob& job) {
  const price::RankState* const learnt = frame.state().ranks.now;
  if (learnt == nullptr) return job.rank;
  const std::uint32_t rank = learnt[job.layer].rank;
  return rank < job.least_rank ? job.least_rank : rank < job.rank ? rank : job.rank;
}

/// Computes the rows that `pick_rows` named and that are not there yet: one launch.
void subtract_from_kept(const Frame& frame, const SketchPlan& plan, Queue& queue);

/// By one thread: `largest` is the finite rms of one of the job's rows, or of several the largest.
__device__ inline void note_row_rms(const Frame& frame, const SketchPlan& plan,
                                    std::uint32_t number, double largest) {
  if (largest > 0)
    atomicMax(&frame(plan.states)[number].largest,
              static_cast<unsigned long long>(__double_as_longlong(largest)));
}

/// By a whole warp: rows, one a lane, that are to be computed where `picked`. `kept`: by
/// `subtract_from_kept`.
__device__ inline void pick_rows(const Frame& frame, const SketchPlan& plan, std::uint32_t number,
                                 bool kept, bool picked, std::uint64_t row) {
  const SketchJob& job = frame(plan.jobs)[number];
  SketchState& state = frame(plan.states)[number];
  const bool own = picked && !(kept && frame(job.measured)[row] != 0);
  const unsigned all = __ballot_sync(kAllLanes, own);
  if (all == 0) return;
  std::uint32_t first = 0;
  if (lane() == 0) {
    const auto count = static_cast<std::uint32_t>(__popc(all));
    first =
        kept ? state.measured + atomicAdd(&state.kept, count) : atomicAdd(&state.measured, count);
  }
  first = __shfl_sync(kAllLanes, first, 0);
  const auto before = static_cast<std::uint32_t>(__popc(all & ((1u << lane()) - 1)));
  if (own) frame(job.picked)[first + before] = static_cast<std::uint32_t>(row);
}

using math::SketchScale;
/// How a job's matrix is scaled.
__device__ inline SketchScale sketch_scale(const Frame& frame, const SketchPlan& plan,
                                           std::uint32_t number) {
  const SketchJob& job = frame(plan.jobs)[number];
  const auto bits = static_cast<long long>(frame(plan.states)[number].largest);
  if (bits == 0 || was_non_finite(frame, job.layer)) return {};
  const double norm = __longlong_as_double(bits) * sqrt(static_cast<double>(job.columns));
  return math::sketch_scale(static_cast<std::int32_t>(__double_as_longlong(norm) >> 52) - 1022);
}

/// A normal f64.
__device__ inline double sketch_unit(std::int32_t exponent) {
  return __longlong_as_double(static_cast<long long>(1023 + exponent) << 52);
}

// ---- steps of `decompose`; jobs that have no such iteration are left as they are

enum class SketchSide : std::uint32_t { rows, columns };

/// Vectors of all jobs: drafts, or those that become the pairs'.
struct SketchVectors {
  SketchSide side = SketchSide::rows;
  bool draft = true;
};

/// entries = the scaled tensors; the drafts of rows = these times the starts.
void multiply_start(const Frame& frame, const SketchPlan& plan, Queue& queue);
/// The drafts of rows = the matrices times the drafts of columns; or the columns, no drafts, = their transposes
/// times the rows, no drafts. In TF32 for a basis alone.
void multiply_to(const Frame& frame, const SketchPlan& plan, SketchSide side,
                 std::uint32_t iteration, TensorVectors taken, Queue& queue);
/// gram = inner products of vectors.
void find_gram(const Frame& frame, const SketchPlan& plan, SketchVectors of,
               std::uint32_t iteration, Queue& queue);
/// turn = what makes the vectors behind `gram` orthonormal; zero rows where less than `least_pivot` of a
/// vector's square is new.
void find_orthonormal(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                      double least_pivot, Queue& queue);
/// Vectors of a side, from a draft to the pairs' or the other way, after `turn`.
void turn_side(const Frame& frame, const SketchPlan& plan, SketchVectors from,
               std::uint32_t iteration, Queue& queue);
/// turn = eigenvectors of `gram`, a row each, in descending order of their values.
void find_eigenvectors(const Frame& frame, const SketchPlan& plan, Queue& queue);
/// Of ranks above kSharedRank: the leaves of a tridiagonal form of `gram`; from its leaves' eigenvectors to those of `gram`.
void find_tridiagonal(const Frame& frame, const SketchPlan& plan, Queue& queue);
void join_leaves(const Frame& frame, const SketchPlan& plan, Queue& queue);
/// Where these are of a rank above kSharedRank, `turn` and `gram` having been used up.
__device__ inline double* straight_turn(const Frame& frame, const SketchJob& job) {
  return frame(job.partials);
}
/// Both drafts into `shorter` and `longer`.
void turn_both(const Frame& frame, const SketchPlan& plan, Queue& queue);
/// The norms of what the pairs leave of rows, and the rows where they say nothing.
void measure_residual(const Frame& frame, const SketchPlan& plan, Queue& queue);

}  // namespace atomo::cuda
