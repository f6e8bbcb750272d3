// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Decoding of atoms, blocks and rows, on the device (atoms_decode.cu). Encoding has a plan of its
/// own.

#include "atomo/philox.hpp"
#include "cuda/atom_body.cuh"
#include "dither.hpp"

namespace atomo::cuda {

/// Bits of escaped integers, for each class.
struct EscapeBits {
  std::uint8_t of[detail::kAtomClassCount] = {};
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
};

struct AtomsDecodePlan {
  BodyPlan bodies;
  Table<AtomsDecodeJob> jobs;  ///< the same jobs
  Split fill;                  ///< of a job's entries, where those not sent become zeros
  [[nodiscard]] bool empty() const { return fill.jobs == 0; }
};

void plan(std::span<const PlannedLayer> layers, Layout& layout, AtomsDecodePlan& plan);
void decode(const AtomsDecodePlan& plan, const Frame& frame, DecodeInto into, Queue& queue);

}  // namespace atomo::cuda
