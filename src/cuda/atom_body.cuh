// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The sections of bodies of atoms and of singular pairs on the device (atom_body.hpp has their
/// layout): read, checked, and laid open for what decodes the content.

#include "cuda/atom_forms.hpp"
#include "cuda/marks.cuh"
#include "format/thinning.hpp"

namespace atomo::cuda::atoms {

/// Groups whose lengths a warp sums, and which a warp may decode side by side, a strand a lane.
inline constexpr std::uint64_t kUnitGroups = kLanes / 2;

struct BodyJob {
  std::uint64_t atoms = 0;
  std::uint64_t first_kept = 0;  ///< of the job's room in `kept`
  std::uint32_t layer = 0;
  std::uint32_t group_atoms = 1;   ///< that share a group (GroupShape)
  std::uint32_t group_pieces = 1;  ///< groups of one atom
  std::uint32_t thins = 0;         ///< 1: bodies may be thinned
  std::uint32_t form = 0;          ///< of the layer's body, or there is nothing to read
  BodyPart part = BodyPart::whole;
};

/// One a job; zeroed.
struct BodyState {
  std::uint32_t stands = 0;  ///< 1: there is a body, in order as far as it has been read
  std::uint32_t faults = 0;  ///< set by the warps that read a section in parallel
  float gain = 1;            ///< of the steps, of a thinned body
  std::uint64_t kept = 0, certain = 0, groups = 0;
  std::uint64_t flags = 0, lengths = 0, content = 0;  ///< first byte of each, from the body's
};

struct BodyPlan {
  Table<BodyJob> jobs;
  MarksPlan marks;  ///< its jobs are these jobs
  Split lists;      ///< units of kListAtoms atoms
  Split groups;     ///< units of kUnitGroups groups, as many as there can be
  Scratch<BodyState> states;
  Scratch<std::uint64_t> certain;    ///< for each segment of the marks: certain atoms before it
  Scratch<std::uint64_t> unit_bits;  ///< for each unit of groups: where it begins in the content
  Scratch<std::uint64_t> kept;       ///< by rank: atom | class << kClassShift
  Scratch<std::uint8_t> classes;     ///< by atom, zeroed: class + 1 of a kept one
};
inline constexpr unsigned kClassShift = 56;
/// Atoms whose kept ones a warp lists; a segment of the marks has a whole number of lists.
inline constexpr std::uint32_t kListAtoms = 256;
static_assert(coding::kMarksSegment % kListAtoms == 0);

/// Plans bodies for jobs added in order.
class BodyPlanner {
 public:
  BodyPlanner(Layout& layout, std::size_t jobs) noexcept
      : layout_(layout),
        jobs_(layout, jobs),
        marks_(layout, jobs),
        lists_(layout, jobs),
        groups_(layout, jobs) {}

  /// `job.first_kept` is set here.
  void add(BodyJob job) noexcept {
    job.first_kept = atoms_;
    jobs_.add(job);
    marks_.add(job.layer, job.atoms);
    segments_ += coding::marks_segments(job.atoms);
    lists_.add(divide_up(job.atoms, kListAtoms));
    groups_.add(divide_up(divide_up(job.atoms, job.group_atoms) * job.group_pieces, kUnitGroups));
    atoms_ += job.atoms;
  }

  [[nodiscard]] BodyPlan finish() noexcept {
    const Split groups = groups_.split();
    return {jobs_.table(),
            marks_.finish_read(),
            lists_.split(),
            groups,
            layout_.zeroed<BodyState>(jobs_.count()),
            layout_.scratch<std::uint64_t>(segments_),
            layout_.scratch<std::uint64_t>(groups.units),
            layout_.scratch<std::uint64_t>(atoms_),
            layout_.zeroed<std::uint8_t>(atoms_)};
  }

 private:
  Layout& layout_;
  TableMaker<BodyJob> jobs_;
  MarksPlanner marks_;
  SplitMaker lists_, groups_;
  std::uint64_t atoms_ = 0, segments_ = 0;
};

/// Whether the job's layer decodes, in the job's form.
__device__ inline bool decodes(const Frame& frame, const BodyJob& job) {
  const LayerState& layer = frame.layer(job.layer);
  return layer.decodes != 0 && form_of(layer) == job.form;
}

struct BodyBytes {
  const std::byte* begin;
  std::uint64_t bytes;
};
/// All of a body behind the word of a thinned one.
__device__ inline BodyBytes whole_body(const Frame& frame, const BodyJob& job) {
  const LayerState& state = frame.layer(job.layer);
  const bool thinned = (state.flags & format::LayerRecord::kThinned) != 0;
  const std::uint64_t word = !thinned ? 0 : state.bytes < 4 ? state.bytes : 4;
  return {frame.message + state.body_at + word, state.bytes - word};
}
/// The parts of a sketch's body; false when they do not fit it.
__device__ inline bool split_sketch(const BodyBytes& body, BodyBytes& pairs, BodyBytes& rows) {
  constexpr std::uint64_t kField = format::kPairBytesField;
  pairs = rows = {body.begin, 0};
  if (body.bytes <= kField) return false;
  const std::uint64_t bytes = load_word(body.begin);
  if (bytes % 4 != 0 || bytes > body.bytes - kField) return false;
  pairs = {body.begin + kField, bytes};
  rows = {body.begin + kField + bytes, body.bytes - kField - bytes};
  return true;
}
/// What the job reads; no bytes where parts do not fit.
__device__ inline BodyBytes body_of(const Frame& frame, const BodyJob& job) {
  const BodyBytes body = whole_body(frame, job);
  if (job.part == BodyPart::whole) return body;
  BodyBytes pairs, rows;
  split_sketch(body, pairs, rows);
  return job.part == BodyPart::pairs ? pairs : rows;
}

/// Bits of a group, 0 of one that is not there. `state` is the body's.
__device__ inline std::uint32_t group_bits(const BodyBytes& body, const BodyState& state,
                                           std::uint64_t group) {
  if (group >= state.groups) return 0;
  const std::byte* const place = body.begin + state.lengths + 2 * group;
  return static_cast<std::uint32_t>(place[0]) | (static_cast<std::uint32_t>(place[1]) << 8);
}

/// Opens what the jobs read of their layers' bodies, where it has bytes: afterwards, a launch
/// later, `states[job].stands` where everything but the content is in order, then with `kept` and
/// `unit_bits`; the other layers are refused. Six launches for all messages.
void open_bodies(const Frames& frames, const BodyPlan& plan, Queue& queue);

}  // namespace atomo::cuda::atoms
