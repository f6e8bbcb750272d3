// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Encoding dithered blocks and rows on the device (method atoms, families 0 and 1): the plan and
/// the amplitudes (atoms.cu), the bodies (atoms_encode.cu). All four stages but `write`: bodies are
/// of varying length.

#include "atomo/atoms.hpp"
#include "cuda/marks.cuh"
#include "cuda/price.cuh"

namespace atomo::cuda {

/// One a layer. Where its atoms, groups and words begin among those of all jobs.
struct AtomsJob {
  AtomLayout layout;
  std::uint32_t layer = 0;
  std::uint32_t pieces = 1;  ///< of 1,024 entries, of an atom
  std::uint64_t first_atom = 0;
  std::uint64_t first_sum = 0;  ///< of its pieces' sums of squares, where atoms have several
  std::uint64_t first_group = 0;
  std::uint64_t first_slot = 0;          ///< word of its first group's content
  std::uint64_t slot_words = 0;          ///< the longest content of a group
  std::uint64_t first_index = 0;         ///< word of its marks, flags and lengths
  std::uint8_t escape_bits[2][32] = {};  ///< by class: of all atoms but the last, of the last
};

/// A kept atom, in the order of the body.
struct alignas(16) KeptAtom {
  std::uint64_t atom = 0;
  float inverse = 0;  ///< what its entries are multiplied by
  std::uint32_t atom_class = 0;
};

/// A segment of 4,096 atoms; zeroed.
struct AtomsSegment {
  std::uint32_t tickets = 0;  ///< of its chunks that are selected
  std::uint32_t certain = 0;  ///< atoms
};

/// One a job; zeroed, and left so where nothing is kept.
struct AtomsState {
  std::uint64_t kept = 0, groups = 0;
  std::uint64_t flags_bit = 0;   ///< of the body's index, likewise:
  std::uint64_t lengths_at = 0;  ///< byte
  bool own = false;              ///< the price stands in the body
};

struct AtomsPlan {
  Table<AtomsJob> jobs;
  std::uint32_t count = 0;
  Split sums;    ///< units of kSumsOfUnit or more segments of up to 1,024 entries
  Split trees;   ///< a unit an atom of more than one piece
  Split chunks;  ///< a unit 256 atoms
  Split groups;  ///< a unit each group that there can be
  MarksPlan marks;
  PricePlan price;
  Scratch<double> amplitudes;  ///< of each atom
  Scratch<double> piece_sums;  ///< of the atoms that have several pieces
  Scratch<AtomsState> states;
  Scratch<AtomsSegment> segments;       ///< as those of the marks
  Scratch<std::uint64_t> certain;       ///< marks of the certain atoms, as `marks.words`
  Scratch<std::uint64_t> certain_rank;  ///< a segment: certain atoms of the job before it
  Scratch<KeptAtom> kept;
  Scratch<std::uint32_t> index;  ///< zeroed: marks, flags and lengths of each job
  Scratch<std::uint32_t> slots;
  Scratch<std::uint32_t> group_bits;
  Scratch<std::uint64_t> group_ends;

  [[nodiscard]] bool empty() const { return count == 0; }
};

/// Takes the layers of blocks and rows whose method encodes without a cap.
void plan(std::span<const PlannedLayer> layers, Layout& layout, AtomsPlan& plan);

/// Amplitudes; a launch, two when there are rows of more than 1,024 entries.
void analyse(const AtomsPlan& plan, const Frame& frame, Queue& queue);
/// Three launches.
void price(const AtomsPlan& plan, const Frame& frame, Queue& queue);
/// Bodies: five launches.
void size(const AtomsPlan& plan, const Frame& frame, Queue& queue);

}  // namespace atomo::cuda
