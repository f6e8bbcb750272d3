// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sums of the outer products of decoded pairs: outer_products.cu sums singular pairs up,
/// low_rank.cu and forms_add.cu put those of a sketch on its rows. The vectors stand in the workspace: dithered ones
/// are decoded by atoms_decode.cu, those of the method factors by factors_decode.cu.

#include "cuda/frame.cuh"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"

namespace atomo::cuda {

/// Vectors in the workspace begin at multiples of so many entries and are filled up with zeros.
inline constexpr std::uint64_t kVectorStride = 32;
[[nodiscard]] __host__ __device__ constexpr std::uint64_t vector_stride(std::uint64_t entries) {
  return (entries + kVectorStride - 1) / kVectorStride * kVectorStride;
}

/// The kept pairs of a layer, in order; one a layer that is a matrix.
struct OuterJob {
  /// Vector k of a turn's message m at (m * pairs + k) * vector_stride(entries).
  CallScratch<float> shorter, longer;
  std::uint64_t pairs = 0;  ///< most that are kept
  std::uint64_t rows = 0, columns = 0;
  std::uint32_t layer = 0;
  std::uint32_t dithered = 0;   ///< 1: a body of no bytes adds nothing at all
  std::uint32_t form = 0;       ///< of the layer's body, or there is nothing to do
  std::uint32_t rows_body = 0;  ///< of a sketch: the BodyJob of its rows

  [[nodiscard]] __host__ __device__ MatrixShape shape() const { return {rows, columns}; }
};

/// One a job; zeroed, and left so where there is nothing to sum up.
struct OuterState {
  std::uint64_t count = 0;  ///< pairs
  double scale = 0;         ///< what their sums are multiplied by
};

struct OuterPlan {
  Table<OuterJob> jobs;
  Split tiles;           ///< of the jobs that are no sketches: squares of the result
  Split sketch_squares;  ///< of those that are
  Scratch<OuterState> states;
};

/// Squares of a result that `sum_outer_products` cuts it into.
[[nodiscard]] std::uint64_t outer_tiles(const MatrixShape& shape);

/// Plans sums for jobs added in order.
class OuterPlanner {
 public:
  /// `messages`: whose vectors there is room for.
  OuterPlanner(Layout& layout, std::size_t jobs, std::uint32_t messages) noexcept
      : layout_(layout),
        jobs_(layout, jobs),
        tiles_(layout, jobs),
        sketch_squares_(layout, jobs),
        messages_(messages) {}

  /// `job` without its shape and its vectors; returns it with them.
  OuterJob add(const format::PairLayer& pairs, OuterJob job, bool sketch) noexcept {
    const MatrixShape& shape = pairs.view;
    job.rows = shape.rows;
    job.columns = shape.columns;
    job.pairs = pairs.count;
    job.shorter =
        layout_.call_scratch<float>(messages_ * pairs.count * vector_stride(shape.shorter()));
    job.longer =
        layout_.call_scratch<float>(messages_ * pairs.count * vector_stride(shape.longer()));
    jobs_.add(job);
    tiles_.add(sketch ? 0 : outer_tiles(shape));
    sketch_squares_.add(sketch ? outer_tiles(shape) : 0);
    return job;
  }
  /// Jobs so far.
  [[nodiscard]] std::uint32_t count() const noexcept { return jobs_.count(); }
  [[nodiscard]] OuterPlan finish() noexcept {
    return {jobs_.table(), tiles_.split(), sketch_squares_.split(),
            layout_.zeroed<OuterState>(jobs_.count())};
  }

 private:
  Layout& layout_;
  TableMaker<OuterJob> jobs_;
  SplitMaker tiles_, sketch_squares_;
  std::uint32_t messages_;
};

/// Every output of the layers that decode, of the messages of a turn in their order: one launch.
void sum_outer_products(const Frames& frames, const MessageRange& turn, const OuterPlan& plan,
                        DecodeInto into, Queue& queue);

}  // namespace atomo::cuda
