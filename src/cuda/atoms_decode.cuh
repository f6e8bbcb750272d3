// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Decoding of dithered atoms on the device (methods atoms and automatic): blocks and rows into the
/// output, the vectors of pairs into the workspace, where they are summed up (outer.cuh), those of a
/// sketch on top of its rows. Encoding has a plan of its own.

#include "cuda/atom_body.cuh"
#include "cuda/body_vectors.hpp"
#include "cuda/outer.cuh"

namespace atomo::cuda::atoms {

struct DecodeJob {
  AtomVectors vectors;
  std::uint32_t layer = 0;
  std::uint32_t strand_tiles = 0;  ///< most that a strand holds
  CallScratch<float> to[2];        ///< of pairs: their vectors, as OuterJob has them
  std::uint32_t outer = 0;         ///< of pairs: the OuterJob
  CallScratch<float> rest;         ///< of a sketch's rows: their entries, where values are added
  std::uint32_t sketch = 0;        ///< 1: they are

  [[nodiscard]] __host__ __device__ bool has_pairs() const { return vectors.count == 2; }
  /// The place that the values of blocks and rows go to.
  [[nodiscard]] __device__ float* output(const Frame& frame, DecodeInto into) const {
    return sketch != 0 && into.add ? frame(rest) : frame.layer(layer).y;
  }
  [[nodiscard]] __device__ DecodeInto mode(DecodeInto into) const {
    return sketch != 0 || has_pairs() ? DecodeInto{} : into;
  }
};

struct DecodePlan {
  static constexpr Stages kStages{};  ///< decoding alone
  BodyPlan bodies;
  Table<DecodeJob> jobs;  ///< the same jobs
  Split fill;             ///< of the entries of blocks and rows, where those not sent become zeros
  bool sketches = false;  ///< some jobs are the rows of one
  OuterPlan outer;
  [[nodiscard]] bool empty() const { return fill.jobs == 0; }
};

/// Takes the layers of the methods atoms and, but for coordinates, automatic.
void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan);
/// Opens the bodies of all messages: six launches.
void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);
[[nodiscard]] inline bool has_turns(const DecodePlan& plan) { return !plan.empty(); }
/// The contents of one: a launch; one more with singular pairs, one more with sketches.
void decode_in_turn(const Frame& frame, const DecodePlan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::atoms
