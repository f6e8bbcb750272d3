// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Encoding dithered atoms on the device (methods atoms and automatic): the plan (atoms_plan.cu),
/// amplitudes (atoms.cu; those of pairs by a decomposition, svd.cuh or sketch.cuh), coordinates as a
/// form (grid_form.cu), the bodies (atoms_encode.cu), what is left of them under a cap
/// (thinning.cu). All four stages but `write`: bodies are of varying length.
///
/// A layer has a job for each family of atoms that it can be sent as (atom_forms.hpp). All are
/// priced; of those of other forms than the chosen one nothing is written.

#include "core/philox.hpp"
#include "cuda/body_vectors.hpp"
#include "cuda/coordinate.cuh"
#include "cuda/marks.cuh"
#include "cuda/price.cuh"
#include "cuda/sketch.cuh"
#include "cuda/svd.cuh"
#include "cuda/thinning.cuh"
#include "format/atom_layout.hpp"

namespace atomo::cuda::atoms {

/// A family of atoms of a layer. Where its atoms, groups and words begin among those of all jobs.
struct Job {
  AtomLayout layout;  ///< of pairs: their frame
  AtomVectors vectors;
  /// A decomposition's results in place of the tensor: a pair's vectors, a sketch's residual.
  Scratch<float> made[2];
  float first_inverse[math::kAtomClassCount] = {};  ///< KeptAtom::inverse of a pair's first vector
  std::uint32_t source = 0;                         ///< of pairs: the SvdJob or SketchJob
  static constexpr std::uint32_t kNoSketch = ~std::uint32_t{0};
  std::uint32_t sketch =
      kNoSketch;  ///< of rows: the SketchJob that needs their norms or leaves them
  std::uint32_t layer = 0;
  std::uint32_t priced = 0;  ///< its PricedLayer
  std::uint32_t form = 0;
  BodyPart part = BodyPart::whole;  ///< the rows of a sketch are the job behind its pairs
  std::uint32_t pieces = 1;         ///< of 1,024 entries, of an atom
  Purpose select = Purpose::select_block;
  Selection selection = Selection::drawn;
  bool learns_rank = false;  ///< of the sketch whose pairs these are
  std::uint64_t first_atom = 0;
  std::uint64_t first_sum = 0;      ///< of its pieces' sums of squares, where atoms have several
  std::uint64_t first_group = 0;    ///< a multiple of 4
  std::uint64_t first_slot = 0;     ///< word of its first group's content; forms share them
  std::uint64_t slot_words = 0;     ///< the longest content of a group
  std::uint64_t first_index = 0;    ///< word of its marks, flags and lengths
  std::uint64_t first_thinned = 0;  ///< word of those of a thinned body

  [[nodiscard]] __host__ __device__ bool has_pairs() const { return vectors.count == 2; }
};

/// A kept atom, in the order of the body.
struct alignas(16) KeptAtom {
  std::uint64_t atom = 0;
  float inverse = 0;  ///< what the entries of its vector, of a pair the second, are multiplied by
  std::uint32_t atom_class = 0;
};

/// A segment of 4,096 atoms; zeroed.
struct Segment {
  std::uint32_t tickets = 0;  ///< of its chunks that are selected
  std::uint32_t certain = 0;  ///< atoms
};

/// One a job; zeroed, and left so where nothing is sent or kept.
struct State {
  float price = 0;  ///< that its form is sent at
  std::uint64_t kept = 0, certain = 0, groups = 0;
  std::uint64_t flags_bit = 0;   ///< of the body's index, likewise:
  std::uint64_t lengths_at = 0;  ///< byte
  std::uint64_t written = 0;     ///< groups with content; of a thinned body not all are in `groups`
  std::uint32_t thinning = 0;    ///< the word that a thinned body starts with, 0 of another
  bool own = false;              ///< the price stands in the body
  UnitsLeft left;
};

struct Plan {
  static constexpr Stages kStages{.analyse = true, .price = true, .size = true, .handles = true};
  Table<Job> jobs;
  std::uint32_t count = 0;
  Split sums;       ///< units of `pieces_of_unit` pieces of up to 1,024 entries
  Split trees;      ///< a unit an atom of more than one piece
  Split rest_sums;  ///< likewise of the rows that sketches leave
  Split rest_trees;
  Split chunks;            ///< a unit 256 atoms
  Split offers;            ///< a unit kOfferedPairs pairs
  Split groups;            ///< a unit each group that there can be
  Split lengths;           ///< a unit kLengthsPart groups, at least one a job
  SvdPlan svd;             ///< of pairs that are all of a body
  SketchPlan sketches;     ///< of those with rows beside them
  coordinate::Plan grids;  ///< coordinates as a form
  MarksPlan marks;
  PricePlan price;
  Scratch<double> amplitudes;  ///< of each atom
  Scratch<double> piece_sums;  ///< of the atoms that have several pieces
  Scratch<State> states;
  Scratch<Segment> segments;            ///< as those of the marks
  Scratch<std::uint64_t> certain;       ///< marks of the certain atoms, as `marks.words`
  Scratch<std::uint64_t> certain_rank;  ///< a segment: certain atoms of the job before it
  Scratch<KeptAtom> kept;
  Scratch<std::uint32_t> index;    ///< zeroed: marks, flags and lengths of each job
  Scratch<std::uint32_t> thinned;  ///< zeroed: the same of those under a cap
  Scratch<std::uint32_t> slots;
  std::uint64_t longest_slot = 0;  ///< words
  Scratch<std::uint32_t> group_bits;
  Scratch<std::uint64_t> group_ends;
  CapPlan cap;

  [[nodiscard]] bool empty() const { return count == 0; }
};

/// Pieces of up to 1,024 entries that a warp squares side by side, and all that it squares: a
/// multiple of these, and at least 2,048 entries where atoms have so many.
inline constexpr unsigned kSquaredTogether = 4;
[[nodiscard]] __host__ __device__ constexpr std::uint64_t pieces_of_unit(std::uint64_t length) {
  const std::uint64_t most = coding::kPieceEntries, entries = length < most ? length : most;
  const std::uint64_t rounds = 2048 / kSquaredTogether / entries;
  return kSquaredTogether * (rounds == 0 ? 1 : rounds);
}
/// Groups whose places a block finds.
inline constexpr std::uint64_t kLengthsPart = 512;
/// Pairs whose amplitudes a warp gives out.
inline constexpr std::uint64_t kOfferedPairs = 256;

/// The entries of one of the vectors of a job's atoms, atom by atom.
__device__ inline Entries entries_of(const Frame& frame, const Job& job, unsigned vector) {
  if (job.has_pairs() || job.part == BodyPart::rows) return {frame(job.made[vector]), DType::f32};
  return frame.entries(job.layer);
}

/// Takes the layers of the methods atoms and automatic. The atoms of pairs are laid out as
/// format::pairs_frame.
void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
/// Of these what `search_prices` and `share_room` need: `price`, `amplitudes`, `grids` and `cap`,
/// whose contents come from the plans of single layers.
void plan_prices(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);

/// Singular pairs are found by the caller's libraries.
[[nodiscard]] inline bool needs_handles(const Plan& plan) { return !plan.svd.empty(); }

/// Amplitudes; a launch, two when there are rows of more than 1,024 entries, twice that with
/// sketches. With pairs their decomposition, and one more; with grids three more.
void analyse(const Frame& frame, const Plan& plan, Queue& queue);
/// The price of the pool: one launch.
void search_prices(const Frame& frame, const Plan& plan, Queue& queue);
/// The same, and the forms of layers that choose: one launch more, with grids three.
void find_price(const Frame& frame, const Plan& plan, Queue& queue);
/// The content of all groups (atoms_content.cu).
void launch_content(const Frame& frame, const Plan& plan, Queue& queue);
/// Bodies: five launches, seven with sketches; with layers under a cap four more, five when there
/// are several of them; with grids those of coordinates.
void size(const Frame& frame, const Plan& plan, Queue& queue);

/// What bodies say of the next messages' sketches: one launch, none without sketches.
void learn_ranks(const Frame& frame, const Plan& plan, Queue& queue);

}  // namespace atomo::cuda::atoms
