// SPDX-License-Identifier: Apache-2.0
/// Bodies of dithered atoms: selection, index, content, lengths.
///
/// Mathematics: an atom of rms r is kept for certain when r >= price, else with a probability of
/// r / price, systematically within chunks of 256 atoms; a kept atom's entries are dithered to
/// integers, whose pairs are written in a static prefix code (dither.hpp, duo_code.cuh). A kept
/// pair is sent as two vectors (pair_body.hpp), u sqrt(m), of rms 1, and sigma v / sqrt(m), divided
/// by the probability where the pair is uncertain; blocks and rows are one vector.
///
/// Mapping: five launches, with sketches that of the rows that they leave (sketch_rows.cu) before
/// the content; with layers under a cap those of thinning.cu before the last, then layout and index
/// once more for the bodies that are thinned.
///   select   a warp a chunk: a lane has eight neighbouring places of the order of visits, a scan
///            over lanes gives each its sum. The warp that ends a segment of 4,096 atoms measures
///            its marks.
///   layout   a block a job: where the sections of the body's index begin
///   index    a warp a chunk: flags, classes, the list of kept atoms with their scales; marks
///   content  atoms_content.cu
///   lengths  a block a job, with a sketch's pairs its rows too: where groups end in the stream,
///            their lengths, the body's
///
/// Traffic: an atom adds 8 bytes read three times, 16 bytes a kept one written and read, some 1/2
/// byte of marks. Determinism: draws are functions of their place, sums are integers. Bodies are
/// staged in the workspace.

#include "core/philox.hpp"
#include "cuda/atoms.cuh"
#include "format/atom_body.hpp"
#include "format/thinning.hpp"
#include "math/selection.hpp"

namespace atomo::cuda::atoms {
namespace {

constexpr std::uint32_t kChunk = kSelectionChunk, kChunkWords = kChunk / 64;
constexpr std::uint32_t kChunksOfSegment = kMarksSegment / kChunk;

// ---- select

struct ChunkBits {
  std::uint32_t kept[kMaxWarps][kChunk / 32], certain[kMaxWarps][kChunk / 32];
};

/// A whole warp finds the kept and the certain atoms, one bit each, from the chunk's amplitudes.
__device__ void select_chunk(const double* amplitudes, std::uint64_t count, double price,
                             Selection selection, std::uint32_t start, std::uint32_t* kept,
                             std::uint32_t* certain) {
  constexpr std::uint32_t kOwn = kChunk / kLanes;
  std::uint32_t probability[kOwn], place[kOwn], sum = 0, total;
  for (std::uint32_t i = 0; i < kOwn; ++i) {
    const std::uint32_t k = i * kSelectionColumns + lane();
    const double rms = k < count ? amplitudes[k] : 0.0;
    const double ratio = rms / price;
    place[i] = k;
    const bool drawn = rms > 0 && ratio < 1.0 && selection == Selection::drawn;
    probability[i] = drawn ? probability_of_ratio(ratio) : 0;
    sum += probability[i];
    if (ratio >= math::least_certain_ratio(selection)) {
      atomicOr(&kept[k / 32], 1u << k % 32);
      atomicOr(&certain[k / 32], 1u << k % 32);
    }
  }
  std::uint32_t before = start + warp_exclusive_sum(sum, total);
  for (std::uint32_t i = 0; i < kOwn; ++i) {
    const std::uint32_t next = before + probability[i];
    if (next < before) atomicOr(&kept[place[i] / 32], 1u << place[i] % 32);
    before = next;
  }
}

__global__ void select_atoms(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.chunks);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  if (chosen_form(frame, plan.price, job.priced) != job.form) return;
  const ChosenPrice chosen = choose_price(frame, plan.price, job.priced);
  if (chosen.price == 0) return;
  if (at.index == 0 && lane() == 0) {
    if (job.part != BodyPart::rows) frame.layer(job.layer).price = chosen.price;
    frame(plan.states)[at.job].price = chosen.price;
    frame(plan.states)[at.job].own = chosen.own;
  }
  auto& memory = shared<ChunkBits>();
  std::uint32_t* const kept = memory.kept[warp_in_block()];
  std::uint32_t* const certain = memory.certain[warp_in_block()];
  if (lane() < kChunk / 32) kept[lane()] = certain[lane()] = 0;
  __syncwarp();
  const std::uint64_t first = at.index * kChunk, left = job.layout.count - first;
  const Philox draws(frame.key(job.layer), job.select);
  select_chunk(frame(plan.amplitudes) + job.first_atom + first, left < kChunk ? left : kChunk,
               static_cast<double>(chosen.price), job.selection, draws(at.index)[0], kept, certain);
  __syncwarp();
  const MarksJob& marks = frame(plan.marks.jobs)[at.job];
  const std::uint64_t word = marks.first_word + at.index * kChunkWords;
  const std::uint64_t segment = marks.first_segment + at.index / kChunksOfSegment;
  if (lane() < kChunkWords) {
    const auto wide = [&](const std::uint32_t* bits) {
      return bits[2 * lane()] | std::uint64_t{bits[2 * lane() + 1]} << 32;
    };
    frame(plan.marks.words)[word + lane()] = wide(kept);
    frame(plan.certain)[word + lane()] = wide(certain);
  }
  const auto ones =
      warp_sum(lane() < kChunk / 32 ? static_cast<std::uint32_t>(__popc(certain[lane()])) : 0u);
  Segment& state = frame(plan.segments)[segment];
  if (lane() == 0 && ones != 0) atomicAdd(&state.certain, ones);
  const std::uint64_t chunks =
      divide_up(job.layout.count, kChunk) - at.index / kChunksOfSegment * kChunksOfSegment;
  const auto of_segment =
      static_cast<std::uint32_t>(chunks < kChunksOfSegment ? chunks : kChunksOfSegment);
  if (warp_comes_last(&state.tickets, of_segment)) measure_segment(frame, plan.marks, segment);
}

// ---- layout

/// `again`: of the thinned bodies alone, from the marks that are left.
__global__ void lay_out_index(Frame frame, Plan plan, bool again) {
  const std::uint32_t number = blockIdx.x;
  const Job& job = frame(plan.jobs)[number];
  State& state = frame(plan.states)[number];
  if (state.price == 0 || (again && state.thinning == 0)) return;
  layout_marks(frame, plan.marks, number);
  const MarksState& marks = frame(plan.marks.states)[number];
  const std::uint64_t first = frame(plan.marks.jobs)[number].first_segment;
  const auto certain = scan_blockwide<std::uint64_t>(
      marks_segments(job.layout.count),
      [&](std::uint64_t i) { return frame(plan.segments)[first + i].certain; },
      [&](std::uint64_t i, std::uint64_t before) { frame(plan.certain_rank)[first + i] = before; });
  if (threadIdx.x != 0) return;
  state.kept = marks.kept;
  if (marks.kept == 0) return;
  state.certain = certain;
  state.groups = GroupShape::of(job.layout.length).groups(marks.kept);
  if (!again) state.written = state.groups;
  state.flags_bit = 8 * marks.bytes;
  state.lengths_at = round_up(marks.bytes + (marks.kept + kClassBits * certain + 7) / 8, 2);
}

// ---- index

/// Second vectors of pairs are 2^-exponent times what they stand for.
__device__ std::int32_t exponent_of(const Frame& frame, const Plan& plan, const Job& job) {
  return job.part == BodyPart::pairs ? sketch_scale(frame, plan.sketches, job.source).exponent
                                     : exponent_of(frame(plan.svd.states)[job.source]);
}

/// What the entries of the vector of a kept atom are multiplied by, or of the second of a pair.
__device__ KeptAtom kept_atom(const Frame& frame, const Plan& plan, const Job& job,
                              std::uint64_t atom, float price) {
  const double ratio = frame(plan.amplitudes)[job.first_atom + atom] / static_cast<double>(price);
  const auto atom_class = static_cast<std::uint32_t>(class_of_ratio(ratio));
  const float range = range_scale(price), ranged = price * range;
  if (!job.has_pairs()) {
    const float size = job.vectors.of[0].size[atom_class];
    const auto scale = atom_class != 0 ? certain_scale(ranged, size)
                                       : uncertain_scale(ranged, size, probability_of_ratio(ratio));
    return {atom, scale.inverse, atom_class};
  }
  const double weight =
      atom_class != 0 ? 1 : kTwo32 / static_cast<double>(probability_of_ratio(ratio));
  const double root = sqrt(static_cast<double>(job.vectors.of[0].length));
  const double unit = static_cast<double>(range) * power_of_two(exponent_of(frame, plan, job));
  const float step = ranged * job.vectors.of[1].size[atom_class];
  return {atom, static_cast<float>(weight * unit / (root * static_cast<double>(step))), atom_class};
}

/// Ones among the first `count` of a segment's words.
__device__ std::uint32_t ones_before(const std::uint64_t* words, std::uint32_t count) {
  std::uint32_t ones = 0;
  for (std::uint32_t i = lane(); i < count; i += kLanes)
    ones += static_cast<std::uint32_t>(__popcll(words[i]));
  return warp_sum(ones);
}

/// The u32 that hold a job's marks, flags and lengths.
__device__ std::uint32_t* index_of(const Frame& frame, const Plan& plan, const Job& job,
                                   bool thinned) {
  return thinned ? frame(plan.thinned) + job.first_thinned : frame(plan.index) + job.first_index;
}

/// `again`: of the thinned bodies alone; the list of kept atoms stays as it is.
__global__ void write_index(Frame frame, Plan plan, bool again) {
  const UnitOf at = unit_of_warp(frame, plan.chunks);
  if (!at) return;
  const State& state = frame(plan.states)[at.job];
  if (state.kept == 0 || (again && state.thinning == 0)) return;
  const Job& job = frame(plan.jobs)[at.job];
  const MarksJob& marks = frame(plan.marks.jobs)[at.job];
  const std::uint64_t segment = marks.first_segment + at.index / kChunksOfSegment;
  std::uint32_t* const index = index_of(frame, plan, job, again);
  const auto chunk = static_cast<std::uint32_t>(at.index % kChunksOfSegment);
  if (chunk == 0) write_segment(frame, plan.marks, segment, index);
  const std::uint64_t word = marks.first_word + (at.index - chunk) * kChunkWords;
  const std::uint64_t* const kept = frame(plan.marks.words) + word;
  const std::uint64_t* const certain = frame(plan.certain) + word;
  std::uint64_t rank = frame(plan.marks.ranks)[segment] + ones_before(kept, chunk * kChunkWords);
  std::uint64_t certain_rank =
      frame(plan.certain_rank)[segment] + ones_before(certain, chunk * kChunkWords);
  const float price = state.price;
  for (std::uint32_t w = 0; w < kChunk / 32; ++w) {
    const unsigned shift = 32 * (w % 2);
    const auto kept_bits = static_cast<std::uint32_t>(kept[chunk * kChunkWords + w / 2] >> shift);
    const auto certain_bits =
        static_cast<std::uint32_t>(certain[chunk * kChunkWords + w / 2] >> shift);
    const std::uint32_t before = (1u << lane()) - 1;
    const bool keeps = (kept_bits >> lane() & 1u) != 0;
    const std::uint64_t atom = at.index * kChunk + 32 * w + lane();
    if (job.part == BodyPart::rows && !again)
      pick_rows(frame, plan.sketches, job.sketch, true, keeps, atom);
    if (keeps) {
      const std::uint64_t own = rank + static_cast<std::uint32_t>(__popc(kept_bits & before));
      const KeptAtom one = kept_atom(frame, plan, job, atom, price);
      if (!again) frame(plan.kept)[job.first_atom + own] = one;
      if (one.atom_class != 0) {
        const std::uint64_t flag = state.flags_bit + own;
        atomicOr(&index[flag / 32], 1u << flag % 32);
        const auto passed = static_cast<std::uint32_t>(__popc(certain_bits & before));
        BitSetter out(index, state.flags_bit + state.kept + kClassBits * (certain_rank + passed));
        out.put(one.atom_class - 1, kClassBits);
        out.flush();
      }
    }
    rank += static_cast<std::uint32_t>(__popc(kept_bits));
    certain_rank += static_cast<std::uint32_t>(__popc(certain_bits));
  }
}

// ---- lengths

/// By a whole block: ends and lengths of the groups of what a job sends. Returns its bytes, 0 where
/// it keeps nothing; `staged` is where it is then.
__device__ std::uint64_t stage_part(const Frame& frame, const Plan& plan, std::uint32_t number,
                                    StagedBody& staged) {
  const Job& job = frame(plan.jobs)[number];
  const State& state = frame(plan.states)[number];
  if (state.price == 0 || state.kept == 0) return 0;
  const UnitsLeft left = state.left.times(job.pieces);  // in groups
  const std::uint32_t* const bits = frame(plan.group_bits) + job.first_group;
  std::uint64_t* const ends = frame(plan.group_ends) + job.first_group;
  std::uint32_t* const index = index_of(frame, plan, job, state.thinning != 0);
  auto* const lengths = reinterpret_cast<std::uint16_t*>(index) + state.lengths_at / 2;
  // Groups that are left out become pieces without bits.
  const auto total = scan_blockwide<std::uint64_t, kLongScanThreads>(
      state.written, [&](std::uint64_t i) { return left.stays(i) ? bits[i] : 0u; },
      [&](std::uint64_t i, std::uint64_t before) {
        const bool stays = left.stays(i);
        ends[i] = before + (stays ? bits[i] : 0);
        if (stays) lengths[left.before(i)] = static_cast<std::uint16_t>(bits[i]);
      });
  const std::uint64_t content = state.lengths_at + 2 * state.groups;
  staged = {};
  staged.prefix = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(index) - frame.work);
  staged.prefix_bytes = content;
  staged.slots = plan.slots.at + job.first_slot * sizeof(std::uint32_t);
  staged.slot_words = job.slot_words;
  staged.ends = plan.group_ends.at + job.first_group * sizeof(std::uint64_t);
  staged.pieces = state.written;
  return round_up(content + (total + 7) / 8, 4);
}

__global__ void __launch_bounds__(kLongScanThreads) sum_lengths(Frame frame, Plan plan) {
  const std::uint32_t number = blockIdx.x;
  const Job& job = frame(plan.jobs)[number];
  if (job.part == BodyPart::rows) return;  // with its pairs
  const bool sketch = job.part == BodyPart::pairs;
  StagedBody first_part, second_part;
  const std::uint64_t first = stage_part(frame, plan, number, first_part);
  const std::uint64_t second = sketch ? stage_part(frame, plan, number + 1, second_part) : 0;
  if (threadIdx.x != 0 || first + second == 0) return;
  const State& state = frame(plan.states)[number];
  const std::uint32_t thinning =
      state.thinning != 0 || !sketch ? state.thinning : frame(plan.states)[number + 1].thinning;
  LayerState& layer = frame.layer(job.layer);
  const std::uint32_t words = (thinning != 0 ? 1u : 0u) + (sketch ? 1u : 0u);
  layer.front[0] = thinning != 0 ? thinning : static_cast<std::uint32_t>(first);
  layer.front[1] = static_cast<std::uint32_t>(first);
  layer.front_words = words;
  StagedBody* const staged = frame(frame.plan.staged) + job.layer;
  if (first != 0) staged[0] = first_part;
  if (first != 0 && second != 0) layer.second_at = first;
  if (second != 0) staged[first != 0 ? frame.plan.count : 0] = second_part;
  layer.bytes = (state.own ? sizeof(float) : 0) + 4 * words + first + second;
  layer.flags |= job.form << LayerRecord::kFormShift;
  if (state.own) layer.flags |= LayerRecord::kOwnPrice;
  if (thinning != 0) layer.flags |= LayerRecord::kThinned;
  if (job.selection == Selection::nearest) layer.flags |= LayerRecord::kCentred;
}

}  // namespace

void size(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_warps(select_atoms, plan.chunks.units, frame, plan);
  queue.launch_blocks(lay_out_index, plan.count, kScanThreads, 0, frame, plan, false);
  queue.launch_warps(write_index, plan.chunks.units, frame, plan, false);
  subtract_from_kept(frame, plan.sketches, queue);
  launch_content(frame, plan, queue);
  if (plan.cap.layers > 0) {
    thin(frame, plan, queue);
    queue.launch_blocks(lay_out_index, plan.count, kScanThreads, 0, frame, plan, true);
    queue.launch_warps(write_index, plan.chunks.units, frame, plan, true);
  }
  queue.launch_blocks(sum_lengths, plan.count, kLongScanThreads, 0, frame, plan);
  if (!plan.grids.empty()) size(frame, plan.grids, queue);
  learn_ranks(frame, plan, queue);
}

}  // namespace atomo::cuda::atoms
