// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Decoding of atoms on the device: blocks and rows (atoms_decode.cu), then pairs
/// (pairs_decode.cuh), which are put on top of the rows of a sketch. Encoding has a plan of its
/// own.

#include "core/philox.hpp"
#include "cuda/atom_body.cuh"
#include "cuda/pairs_decode.cuh"
#include "math/dither.hpp"

namespace atomo::cuda {

/// Bits of escaped integers, for each class.
struct EscapeBits {
  std::uint8_t of[math::kAtomClassCount] = {};
};

struct AtomsDecodeJob {
  std::uint64_t count = 0;   ///< atoms
  std::uint64_t length = 0;  ///< entries of each but the last
  std::uint64_t last = 0;    ///< entries of the last
  std::uint32_t layer = 0;
  std::uint32_t tiles = 0;        ///< of an atom
  std::uint32_t group_tiles = 0;  ///< most that a group holds
  Purpose dither = Purpose::dither_block;
  EscapeBits escape, last_escape;  ///< of an atom, of the last one
  Scratch<float> rest;             ///< of a sketch's rows: their entries, where values are added
  std::uint32_t sketch = 0;        ///< 1: they are

  /// Where values go, and how.
  [[nodiscard]] __device__ float* output(const Frame& frame, DecodeInto into) const {
    return sketch != 0 && into.add ? frame(rest) : frame.layer(layer).y;
  }
  [[nodiscard]] __device__ DecodeInto mode(DecodeInto into) const {
    return sketch != 0 ? DecodeInto{} : into;
  }
};

struct AtomsDecodePlan {
  static constexpr Stages kStages{};  ///< decoding alone
  BodyPlan bodies;
  Table<AtomsDecodeJob> jobs;  ///< the same jobs
  Split fill;                  ///< of a job's entries, where those not sent become zeros
  std::uint32_t sketches = 0;  ///< jobs that are the rows of one
  PairsDecodePlan pairs;       ///< and those that are pairs, of sketches too
  [[nodiscard]] bool empty() const { return fill.jobs == 0 && pairs.empty(); }
};

/// Takes the layers of the methods atoms, factors and, but for coordinates, automatic.
void plan(std::span<const LayerPlan> layers, Layout& layout, AtomsDecodePlan& plan);
void decode(const Frame& frame, const AtomsDecodePlan& plan, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda
