// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Decoding of pairs on the device, dithered (method atoms, families 2 and 3) and f32 (method
/// factors): pairs_decode.cu reads the factors of a body into the workspace, outer_products.cu sums
/// singular pairs up, low_rank.cu those of a sketch.

#include "cuda/atom_body.cuh"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"
#include "math/dither.hpp"

namespace atomo::cuda {

/// Vectors in the workspace begin at multiples of so many entries and are filled up with zeros.
inline constexpr std::uint64_t kVectorStride = 32;
[[nodiscard]] __host__ __device__ constexpr std::uint64_t vector_stride(std::uint64_t entries) {
  return (entries + kVectorStride - 1) / kVectorStride * kVectorStride;
}

/// The kept pairs of a layer, in order; one a layer that is a matrix.
struct OuterJob {
  Scratch<float> shorter, longer;  ///< vector k at k * vector_stride(entries)
  Scratch<float> rest;             ///< of a sketch: its rows, where values are added
  std::uint64_t rows = 0, columns = 0;
  std::uint32_t layer = 0;
  std::uint32_t dithered = 0;  ///< 1: a body of no bytes adds nothing at all
  std::uint32_t form = 0;      ///< of the layer's body, or there is nothing to do

  [[nodiscard]] __host__ __device__ MatrixShape shape() const { return {rows, columns}; }
};

/// One a job; zeroed, and left so where there is nothing to sum up.
struct OuterState {
  std::uint64_t count = 0;  ///< pairs
  double scale = 0;         ///< what their sums are multiplied by
};

/// Layers of dithered pairs.
struct PairsDecodeJob {
  std::uint32_t layer = 0;
  std::uint32_t outer = 0;        ///< its OuterJob
  std::uint32_t group_tiles = 0;  ///< most that a group holds
  format::PairStep steps[math::kAtomClassCount];
};

/// Layers of method factors: f32 vectors, or a tensor that is no matrix as it is.
struct FactorsDecodeJob {
  std::uint32_t layer = 0;
  std::uint32_t outer = 0;   ///< its OuterJob
  std::uint32_t matrix = 0;  ///< 0: there is none
};

struct PairsDecodePlan {
  BodyPlan bodies;
  Table<PairsDecodeJob> pairs;      ///< the same jobs
  Table<FactorsDecodeJob> factors;  ///< their jobs
  Split pieces;                     ///< of these: 1,024 entries of a vector, as many as can be
  Table<OuterJob> outer;
  Split tiles;           ///< of the outer jobs that are no sketches: squares of the result
  Split sketch_squares;  ///< of those that are
  Scratch<OuterState> states;
  [[nodiscard]] bool empty() const { return bodies.groups.jobs + pieces.jobs == 0; }
};

/// `rest` has room for the rows of all sketches, one behind another (AtomsDecodeJob).
void plan_pairs(std::span<const LayerPlan> layers, Layout& layout, Scratch<float> rest,
                PairsDecodePlan& plan);
/// Once the rows of sketches are decoded.
void decode_pairs(const Frame& frame, const PairsDecodePlan& plan, DecodeInto into, Queue& queue);

/// Every output of the layers that decode: one launch.
void sum_outer_products(const Frame& frame, const PairsDecodePlan& plan, DecodeInto into,
                        Queue& queue);
/// Squares of a result that `sum_outer_products` cuts it into.
[[nodiscard]] std::uint64_t outer_tiles(const MatrixShape& shape);
/// Puts the pairs of sketches on top of their rows: one launch, none without sketches
/// (low_rank.cu).
void add_low_rank(const Frame& frame, const PairsDecodePlan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda
