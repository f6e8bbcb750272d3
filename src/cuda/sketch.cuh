// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The decomposition of layers into the pairs of a sketch of low rank and what they leave (method
/// atoms, family 3): sketch.cu, with its products (sketch_products.cu) and its small matrices
/// (sketch_basis.cu). No library is called, so no handles are needed.

#include "cuda/frame.cuh"
#include "cuda/reduce.cuh"
#include "format/matrix.hpp"

namespace atomo::cuda {

/// A layer that is a matrix of `rows` x `columns`, and its sketch. Vectors stand one behind
/// another, as in SingularPairs: entry i of vector k of the shorter side at k * shorter() + i.
struct SketchJob {
  /// Row-major: 2^-exponent times the tensor; in the end the residual, in the tensor's own unit.
  Scratch<float> entries;
  Scratch<float> shorter;  ///< first vectors, orthonormal to f32's rounding, or zero
  Scratch<float> longer;   ///< second vectors: sigma v 2^-exponent
  Scratch<double> sigma;   ///< of pair k: sigma * unit; the caller's
  double unit = 1;
  Scratch<float> draft_shorter, draft_longer;  ///< vectors on their way
  Scratch<double> gram, turn;                  ///< rank x rank
  Scratch<double> partials;                    ///< of a product or a Gram matrix
  Scratch<double> squares;                     ///< of stretches of the second vectors
  std::uint64_t rows = 0, columns = 0;
  std::uint32_t rank = 0, iterations = 1, layer = 0;

  [[nodiscard]] __host__ __device__ MatrixShape shape() const { return {rows, columns}; }
};

/// A product whose units leave partial sums where they are several, and the sums of these.
struct SketchProduct {
  Split units, folds;
};

struct SketchPlan {
  Table<SketchJob> jobs;
  ReducePlan maxima;  ///< of the entries, a result a job
  Split scaled, drawn;
  SketchProduct to_longer, to_shorter;      ///< matrix times vectors, by the result's side
  SketchProduct gram_shorter, gram_longer;  ///< of vectors of a side
  Split turned_shorter, turned_both;        ///< tiles of vectors
  Split residual;                           ///< tiles of the matrices
  Split squares, pairs;                     ///< stretches of second vectors; pairs
  std::uint32_t iterations = 0;             ///< the most that a job has
  unsigned shared_bytes = 0;                ///< of a block that finds eigenvectors
  [[nodiscard]] bool empty() const { return scaled.jobs == 0; }
};

/// Plans sketches for jobs added in order.
class SketchPlanner {
 public:
  SketchPlanner(Layout& layout, std::size_t jobs) noexcept;

  /// `options` as for cpu::sketch; `sigma` is the caller's. Returns where vectors and residual will
  /// be.
  SketchJob add(const MatrixShape& shape, const SketchOptions& options, std::uint32_t layer,
                Scratch<double> sigma, double unit) noexcept;
  [[nodiscard]] SketchPlan finish() noexcept;

 private:
  struct NewProduct {
    SplitMaker units, folds;
    NewProduct(Layout& layout, std::size_t jobs) noexcept
        : units(layout, jobs), folds(layout, jobs) {}
    [[nodiscard]] SketchProduct product() const noexcept { return {units.split(), folds.split()}; }
  };

  Layout& layout_;
  TableMaker<SketchJob> jobs_;
  ReducePlanner maxima_;
  SplitMaker scaled_, drawn_;
  NewProduct to_longer_, to_shorter_, gram_shorter_, gram_longer_;
  SplitMaker turned_shorter_, turned_both_, residual_, squares_, pairs_;
  std::uint32_t iterations_ = 0;
  unsigned shared_bytes_ = 0;
};

/// Decomposes the layers of all jobs under their keys; marks those that are not finite, whose
/// vectors, residual and sigma are zero. Matrices with an entry of 2^120 or more are all residual.
/// 24 launches, 12 more for every further iteration of the job that has most.
void decompose(const Frame& frame, const SketchPlan& plan, Queue& queue);

/// Of the power of two that the job's largest entry is just below; 0 when all entries are zero or
/// one is not finite. From the first launch of `decompose` on.
__device__ inline std::int32_t sketch_exponent(const Frame& frame, const SketchPlan& plan,
                                               std::uint32_t number) {
  const float largest = frame(plan.maxima.results)[number];
  if (largest == 0 || !is_finite(largest)) return 0;
  const auto bits = __double_as_longlong(static_cast<double>(largest));
  return static_cast<std::int32_t>(bits >> 52) - 1022;
}

/// A normal f64.
__device__ inline double sketch_unit(std::int32_t exponent) {
  return __longlong_as_double(static_cast<long long>(1023 + exponent) << 52);
}

// ---- steps of `decompose`; jobs that have no such iteration are left as they are

/// Vectors of all jobs.
enum class SketchVectors : std::uint32_t { draft_shorter, shorter, draft_longer };

/// draft_longer = the matrices' transposes times draft_shorter.
void multiply_to_longer(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                        Queue& queue);
/// draft_shorter = the matrices times draft_longer.
void multiply_to_shorter(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                         Queue& queue);
/// gram = inner products of vectors.
void find_gram(const Frame& frame, const SketchPlan& plan, SketchVectors of,
               std::uint32_t iteration, Queue& queue);
/// turn = what makes the vectors behind `gram` orthonormal; zero rows where they depend on others.
void find_orthonormal(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                      Queue& queue);
/// The vectors of the shorter side, from a draft into `shorter` or the other way, after `turn`.
void turn_shorter(const Frame& frame, const SketchPlan& plan, SketchVectors from,
                  std::uint32_t iteration, Queue& queue);
/// turn = eigenvectors of `gram`, a row each, in descending order of their values.
void find_eigenvectors(const Frame& frame, const SketchPlan& plan, Queue& queue);
/// Both drafts into `shorter` and `longer`.
void turn_both(const Frame& frame, const SketchPlan& plan, Queue& queue);
/// entries = what the pairs leave, in the tensor's own unit.
void subtract_pairs(const Frame& frame, const SketchPlan& plan, Queue& queue);

/// Of a block of `find_eigenvectors`, dynamic; 0 for a rank whose matrices are not kept there.
[[nodiscard]] unsigned eigenvector_bytes(std::uint32_t rank) noexcept;

}  // namespace atomo::cuda
