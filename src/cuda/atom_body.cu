// SPDX-License-Identifier: Apache-2.0
/// Reading the sections of bodies of atoms: marks, flags and classes, lengths of groups.
///
/// What it computes. With K kept atoms, C of them certain, G groups: where each section begins
/// (flags after the marks, then C classes of 5 bits, then G lengths of 16 bits, then the content),
/// which follows from sums over the sections before it; the list of kept atoms with their classes;
/// where each group begins. What an encoder would not write is refused as on the CPU.
///
/// Mapping. All messages of a call at once, a part of each grid a message. Sums are taken in two levels: a warp a segment of 4,096 atoms (marks, certain flags) or
/// a unit of 16 groups (lengths), then one block a job over segments or units. The list is made by
/// a warp 256 atoms, a lane an atom: flags are words that lanes pass to one another, classes and the
/// list are read and written next to each other. Each level needs the
/// one before, hence six launches: counts, frame of the marks, marks and certain flags, frame of
/// the sections, list and lengths, frame of the content. A fault found by one warp is noted in
/// `faults` and acted upon by the block of the next launch.
///
/// Traffic. The body's index is read once (marks twice): at most 4 bits and 16 bits / group an
/// atom; 8 bytes a kept atom are written and read. Of a layer of blocks of 256 that is 1/64 of the
/// output.
///
/// Shared memory: 4 KiB for a block of 8 warps that reads gaps, the scans' own. Determinism: all
/// integers, each result written by one thread. Alignment: bodies may begin at any byte.

#include "cuda/atom_body.cuh"

#include "format/atom_body.hpp"

namespace atomo::cuda::atoms {
namespace {

using format::kClassBits;

__device__ bool has_body(const Frame& frame, const BodyJob& job) {
  return decodes(frame, job) && frame.layer(job.layer).bytes != 0;
}

/// One thread of the job's block calls it.
__device__ void refuse(const Frame& frame, const BodyJob& job, BodyState& state) {
  state.stands = 0;
  frame.refuse(job.layer, Status::corrupt);
}

/// Ones among the `count` bits from `bit` on that are this lane's: 128 of at most 4,096.
__device__ std::uint32_t count_ones(const BitView& view, std::uint64_t bit, std::uint32_t count) {
  std::uint32_t ones = 0;
  for (std::uint32_t i = 128 * lane(); i < 128 * lane() + 128 && i < count; i += 64) {
    std::uint64_t bits = view.peek64(bit + i);
    if (count - i < 64) bits &= (std::uint64_t{1} << (count - i)) - 1;
    ones += static_cast<std::uint32_t>(__popcll(bits));
  }
  return ones;
}

__global__ void count_marks(const Frames frames, const BodyPlan plan) {
  const Frame frame = frames[blockIdx.y];
  const UnitOf at = unit_of_warp(frame, plan.marks.segments);
  if (!at) return;
  const BodyJob& job = frame(plan.jobs)[at.job];
  if (!has_body(frame, job)) return;
  const BodyBytes body = body_of(frame, job);
  count_segment(frame, plan.marks, at, body.begin, body.bytes);
}

/// The price, the word of a thinned body, and where the parts of a sketch's are.
__device__ bool open_front(const Frame& frame, const BodyJob& job, float& gain) {
  const LayerState& layer = frame.layer(job.layer);
  gain = 1;
  if (!(layer.price > 0) || !is_finite(layer.price)) return false;
  if ((layer.flags & format::LayerRecord::kThinned) != 0) {
    format::Thinning thinning;
    if (job.thins == 0 || layer.bytes <= format::kThinningBytes) return false;
    if (!format::Thinning::read(load_word(frame.message + layer.body_at), thinning)) return false;
    gain = thinning.gain();
  }
  BodyBytes pairs, rows;
  return job.part == BodyPart::whole || split_sketch(whole_body(frame, job), pairs, rows);
}

__global__ void open_frame(const Frames frames, const BodyPlan plan) {
  const Frame frame = frames[blockIdx.y];
  const BodyJob& job = frame(plan.jobs)[blockIdx.x];
  if (!has_body(frame, job)) return;
  const BodyBytes body = body_of(frame, job);
  float gain;
  const bool front = open_front(frame, job, gain);
  if (front && body.bytes == 0) return;  // the other part is all there is
  const bool good = front && open_marks(frame, plan.marks, blockIdx.x, body.begin, body.bytes);
  if (threadIdx.x != 0) return;
  BodyState& state = frame(plan.states)[blockIdx.x];
  const MarksState& marks = frame(plan.marks.states)[blockIdx.x];
  if (!good) return refuse(frame, job, state);
  state.stands = 1;
  state.gain = gain;
  state.kept = marks.kept;
  state.flags = marks.bytes;
}

__global__ void read_marks(const Frames frames, const BodyPlan plan) {
  const Frame frame = frames[blockIdx.y];
  const UnitOf at = unit_of_warp(frame, plan.marks.segments);
  if (!at) return;
  BodyState& state = frame(plan.states)[at.job];
  if (state.stands == 0) return;
  const BodyBytes body = body_of(frame, frame(plan.jobs)[at.job]);
  std::uint64_t word[2];
  const bool good = load_segment(frame, plan.marks, at, body.begin, body.bytes, word);
  std::uint64_t* const words = segment_words(frame, plan.marks, at);
  words[2 * lane()] = word[0];
  words[2 * lane() + 1] = word[1];
  const BitView view(body.begin, body.bytes);
  const std::uint32_t stated = frame(plan.marks.kept)[at.number];
  const std::uint32_t kept = stated < 4096 ? stated : 4096;
  const std::uint32_t certain =
      warp_sum(count_ones(view, 8 * state.flags + frame(plan.marks.ranks)[at.number], kept));
  if (lane() != 0) return;
  frame(plan.certain)[at.number] = certain;
  if (!good) atomicOr(&state.faults, 1u);
}

__global__ void place_sections(const Frames frames, const BodyPlan plan) {
  const Frame frame = frames[blockIdx.y];
  BodyState& state = frame(plan.states)[blockIdx.x];
  if (state.stands == 0) return;
  const BodyJob& job = frame(plan.jobs)[blockIdx.x];
  const MarksJob& marks = frame(plan.marks.jobs)[blockIdx.x];
  std::uint64_t* const all = frame(plan.certain) + marks.first_segment;
  const auto certain = scan_blockwide<std::uint64_t>(
      coding::marks_segments(job.atoms), [&](std::uint64_t i) { return all[i]; },
      [&](std::uint64_t i, std::uint64_t before) { all[i] = before; });
  if (threadIdx.x != 0) return;
  const BodyBytes body = body_of(frame, job);
  const std::uint64_t flag_bits = state.kept + kClassBits * certain;
  const std::uint64_t lengths = format::round_up(state.flags + (flag_bits + 7) / 8, 2);
  const std::uint64_t groups = divide_up(state.kept, job.group_atoms) * job.group_pieces;
  if (state.faults != 0 || lengths > body.bytes || groups > (body.bytes - lengths) / 2)
    return refuse(frame, job, state);
  if (!BitView(body.begin, body.bytes).zero(8 * state.flags + flag_bits, lengths))
    return refuse(frame, job, state);
  state.certain = certain;
  state.lengths = lengths;
  state.groups = groups;
  state.content = lengths + 2 * groups;
}

/// The kept atoms of a list, with their classes: a lane an atom, in the order of the list.
__device__ void list_kept(const Frame& frame, const BodyPlan& plan, std::uint64_t list) {
  constexpr std::uint32_t kListsOfSegment = coding::kMarksSegment / kListAtoms;
  constexpr std::uint32_t kWords = kListAtoms / kLanes;
  const UnitOf at = find_unit(frame, plan.lists, list);
  BodyState& state = frame(plan.states)[at.job];
  if (state.stands == 0) return;
  const BodyJob& job = frame(plan.jobs)[at.job];
  const UnitOf segment{at.job, at.index / kListsOfSegment};
  const std::uint64_t unit = frame(plan.marks.segments.begin)[at.job] + segment.index;
  const auto part = static_cast<std::uint32_t>(at.index % kListsOfSegment);
  std::uint64_t atom = at.index * kListAtoms;
  const BodyBytes body = body_of(frame, job);
  const BitView view(body.begin, body.bytes);
  const std::uint64_t* const words = segment_words(frame, plan.marks, segment);
  std::uint32_t before = 0;  // kept atoms of the segment before these
  for (std::uint32_t w = lane(); w < part * (kListAtoms / 64); w += kLanes)
    before += static_cast<std::uint32_t>(__popcll(words[w]));
  before = warp_sum(before);
  // Lane w < kWords has the marks of 32 atoms and 32 flags of the list.
  const std::uint64_t pair = words[part * (kListAtoms / 64) + lane() % kWords / 2];
  const auto marks = static_cast<std::uint32_t>(lane() % 2 == 0 ? pair : pair >> 32);
  const std::uint64_t first = frame(plan.marks.ranks)[unit];
  const std::uint64_t flags = 8 * state.flags + first;
  const std::uint32_t own_flags = view.peek32(flags + before + kLanes * (lane() % kWords));
  std::uint64_t place = frame(plan.certain)[unit] + warp_sum(count_ones(view, flags, before));
  place = 8 * state.flags + state.kept + kClassBits * place;  // of the next class
  std::uint64_t* kept = frame(plan.kept) + job.first_kept + first + before;
  std::uint8_t* const classes = frame(plan.classes) + job.first_kept + lane();
  const std::uint32_t below = (1u << lane()) - 1;
  std::uint32_t rank = 0;  // among these
  bool good = true;
  for (std::uint32_t w = 0; w < kWords; ++w, atom += kLanes) {
    const std::uint32_t mask = __shfl_sync(kAllLanes, marks, static_cast<int>(w));
    if (mask == 0) continue;
    const std::uint32_t own = rank + static_cast<std::uint32_t>(__popc(mask & below));
    const std::uint32_t flag =
        __shfl_sync(kAllLanes, own_flags, static_cast<int>(own / kLanes % kLanes)) >> own % kLanes;
    const bool is_kept = (mask >> lane() & 1u) != 0;
    const bool is_certain = is_kept && (flag & 1u) != 0;
    const std::uint32_t certain = __ballot_sync(kAllLanes, is_certain);
    std::uint64_t atom_class = 0;
    if (is_certain) {
      const auto skipped = static_cast<std::uint32_t>(__popc(certain & below));
      const std::uint32_t bits = view.peek32(place + kClassBits * skipped);
      atom_class = (bits & ((1u << kClassBits) - 1)) + 1;
      good = good && atom_class < math::kAtomClassCount;
    }
    if (is_kept) {
      kept[own] = (atom + lane()) | (atom_class << kClassShift);
      classes[atom] = static_cast<std::uint8_t>(atom_class + 1);
    }
    place += kClassBits * static_cast<std::uint32_t>(__popc(certain));
    rank += static_cast<std::uint32_t>(__popc(mask));
  }
  if (!good) atomicOr(&state.faults, 1u);
}

/// The bits of a unit of groups.
__device__ void sum_lengths(const Frame& frame, const BodyPlan& plan, std::uint64_t unit) {
  const UnitOf at = find_unit(frame, plan.groups, unit);
  const BodyState& state = frame(plan.states)[at.job];
  const std::uint64_t group = at.index * kUnitGroups + lane();
  if (state.stands == 0) return;
  const BodyBytes body = body_of(frame, frame(plan.jobs)[at.job]);
  const std::uint32_t bits = warp_sum(lane() < kUnitGroups ? group_bits(body, state, group) : 0u);
  if (lane() == 0) frame(plan.unit_bits)[unit] = bits;
}

__global__ void list_and_sum(const Frames frames, const BodyPlan plan) {
  const Frame frame = frames[blockIdx.y];
  const std::uint64_t unit = warp_in_grid(), lists = plan.lists.units;
  if (unit < lists) {
    list_kept(frame, plan, unit);
  } else if (unit - lists < plan.groups.units) {
    sum_lengths(frame, plan, unit - lists);
  }
}

__global__ void close_frame(const Frames frames, const BodyPlan plan) {
  const Frame frame = frames[blockIdx.y];
  BodyState& state = frame(plan.states)[blockIdx.x];
  if (state.stands == 0) return;
  const BodyJob& job = frame(plan.jobs)[blockIdx.x];
  std::uint64_t* const all = frame(plan.unit_bits) + frame(plan.groups.begin)[blockIdx.x];
  const auto bits = scan_blockwide<std::uint64_t>(
      divide_up(state.groups, kUnitGroups), [&](std::uint64_t i) { return all[i]; },
      [&](std::uint64_t i, std::uint64_t before) { all[i] = before; });
  if (threadIdx.x != 0) return;
  const BodyBytes body = body_of(frame, job);
  const bool good = state.faults == 0 &&
                    format::round_up(state.content + (bits + 7) / 8, 4) == body.bytes &&
                    BitView(body.begin, body.bytes).zero(8 * state.content + bits, body.bytes);
  if (!good) refuse(frame, job, state);
}

}  // namespace

void open_bodies(const Frames& frames, const BodyPlan& plan, Queue& queue) {
  const std::uint64_t segments = plan.marks.segments.units;
  const std::uint32_t jobs = plan.groups.jobs, count = frames.count;
  queue.launch_warps_each(count_marks, segments, count, frames, plan);
  queue.launch_blocks_each(open_frame, jobs, count, kScanThreads, 0, frames, plan);
  queue.launch_warps_each(read_marks, segments, count, frames, plan);
  queue.launch_blocks_each(place_sections, jobs, count, kScanThreads, 0, frames, plan);
  queue.launch_warps_each(list_and_sum, plan.lists.units + plan.groups.units, count, frames, plan);
  queue.launch_blocks_each(close_frame, jobs, count, kScanThreads, 0, frames, plan);
}

}  // namespace atomo::cuda::atoms
