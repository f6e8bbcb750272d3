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
///   index    a warp 64 atoms: flags, classes, the list of kept atoms with their scales; a warp a segment:
///            marks
///   content  atoms_content.cu
///   lengths  a block 512 groups: where they end in the stream, from the bits of all before them, and their
///            lengths; of a job's last ones also the body's, with a sketch's pairs that of its rows
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
  if (warp_comes_last(&state.tickets, of_segment))
    measure_segment(frame, plan.marks, {at.job, at.index / kChunksOfSegment, segment});
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

/// Kept and certain atoms.
struct Ones {
  std::uint32_t kept, certain;
};
/// By a whole warp: those of the first `count` of a segment's words.
__device__ Ones ones_before(const std::uint64_t* kept, const std::uint64_t* certain,
                            std::uint32_t count) {
  static_assert(kMarksSegment < 1u << 16);
  std::uint32_t ones = 0;  // of either in 16 bits
  for (std::uint32_t i = lane(); i < count; i += kLanes) {
    ones += static_cast<std::uint32_t>(__popcll(kept[i])) |
            static_cast<std::uint32_t>(__popcll(certain[i])) << 16;
  }
  ones = __reduce_add_sync(kAllLanes, ones);
  return {ones & 0xFFFFu, ones >> 16};
}

/// The u32 that hold a job's marks, flags and lengths.
__device__ std::uint32_t* index_of(const Frame& frame, const Plan& plan, const Job& job,
                                   bool thinned) {
  return thinned ? frame(plan.thinned) + job.first_thinned : frame(plan.index) + job.first_index;
}

/// By a whole warp: flags and classes of the atoms of a word of marks, and the list of the kept ones.
__device__ void list_word(const Frame& frame, const Plan& plan, const UnitOf& at, bool again) {
  const State& state = frame(plan.states)[at.job];
  if (state.kept == 0 || (again && state.thinning == 0)) return;
  const Job& job = frame(plan.jobs)[at.job];
  const MarksJob& marks = frame(plan.marks.jobs)[at.job];
  const std::uint64_t segment = marks.first_segment + at.index / kSegmentWords;
  const auto own_word = static_cast<std::uint32_t>(at.index % kSegmentWords);
  const std::uint64_t word = marks.first_word + (at.index - own_word);
  const std::uint64_t* const kept = frame(plan.marks.words) + word;
  const std::uint64_t* const certain = frame(plan.certain) + word;
  const std::uint64_t kept_word = kept[own_word], certain_word = certain[own_word];
  const float price = state.price;
  std::uint32_t* const index = index_of(frame, plan, job, again);
  KeptAtom own[2];
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const std::uint64_t atom = 64 * at.index + 32 * half + lane();
    const bool keeps = (kept_word >> (32 * half + lane()) & 1u) != 0;
    if (job.part == BodyPart::rows && !again)
      pick_rows(frame, plan.sketches, job.sketch, true, keeps, atom);
    if (keeps) own[half] = kept_atom(frame, plan, job, atom, price);
  }
  const Ones before = ones_before(kept, certain, own_word);
  const std::uint64_t rank = frame(plan.marks.ranks)[segment] + before.kept;
  const std::uint64_t certain_rank = frame(plan.certain_rank)[segment] + before.certain;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned bit = 32 * half + lane();
    if ((kept_word >> bit & 1u) == 0) continue;
    const std::uint64_t below = (std::uint64_t{1} << bit) - 1;
    const std::uint64_t place = rank + static_cast<std::uint32_t>(__popcll(kept_word & below));
    if (!again) frame(plan.kept)[job.first_atom + place] = own[half];
    if (own[half].atom_class == 0) continue;
    const std::uint64_t flag = state.flags_bit + place;
    atomicOr(&index[flag / 32], 1u << flag % 32);
    const auto passed = static_cast<std::uint32_t>(__popcll(certain_word & below));
    BitSetter out(index, state.flags_bit + state.kept + kClassBits * (certain_rank + passed));
    out.put(own[half].atom_class - 1, kClassBits);
    out.flush();
  }
}

/// A warp a word of marks, behind these one a segment. `again`: of the thinned bodies alone; the list of
/// kept atoms stays as it is.
__global__ void write_index(Frame frame, Plan plan, bool again) {
  const std::uint64_t words = kChunkWords * plan.chunks.units, number = warp_in_grid();
  if (number < words) {
    const UnitOf chunk = find_unit_together(frame, plan.chunks, number / kChunkWords);
    const std::uint64_t word = kChunkWords * chunk.index + number % kChunkWords;
    return list_word(frame, plan, {chunk.job, word, number}, again);
  }
  const std::uint64_t segment = number - words;
  if (segment >= plan.marks.segments.units) return;
  const UnitOf at = find_unit_together(frame, plan.marks.segments, segment);
  const State& state = frame(plan.states)[at.job];
  if (state.kept == 0 || (again && state.thinning == 0)) return;
  write_segment(frame, plan.marks, at, index_of(frame, plan, frame(plan.jobs)[at.job], again));
}

// ---- lengths

struct LengthsMemory {
  std::uint64_t sums[kMaxWarps];
};

/// The same in every thread of a block.
__device__ std::uint64_t block_sum(std::uint64_t value) {
  auto& memory = shared<LengthsMemory>();
  value = warp_sum(value);
  __syncthreads();  // the memory is free
  if (lane() == 0) memory.sums[warp_in_block()] = value;
  __syncthreads();
  value = 0;
  for (unsigned w = 0; w < blockDim.x / kLanes; ++w) value += memory.sums[w];
  return value;
}

/// By a whole block: the bits of the first `end` groups of what a job sends, those that stay. `bits` is
/// aligned to 16 bytes.
__device__ std::uint64_t sum_groups(const std::uint32_t* bits, const UnitsLeft& left,
                                    std::uint64_t end) {
  constexpr unsigned kTogether = 4;  // loads on their way
  const auto begin = static_cast<std::uint32_t>(left.begin);
  const auto count = static_cast<std::uint32_t>(left.end - left.begin);
  std::uint64_t sum = 0;
  for (std::uint64_t first = 4 * threadIdx.x; first < end; first += 4 * kTogether * kScanThreads) {
    uint4 four[kTogether];
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const std::uint64_t at = first + 4 * k * kScanThreads;
      if (at + 4 <= end) {
        four[k] = *reinterpret_cast<const uint4*>(bits + at);
      } else {  // nothing is read that was not written
        four[k] = {at < end ? bits[at] : 0, at + 1 < end ? bits[at + 1] : 0,
                   at + 2 < end ? bits[at + 2] : 0, 0};
      }
    }
    std::uint32_t some = 0;
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const auto at = static_cast<std::uint32_t>(first + 4 * k * kScanThreads);
      const auto add = [&](std::uint32_t group, std::uint32_t value) {
        const bool stays = (group - begin < count) == left.inside;
        some += stays ? value : 0;
      };
      add(at, four[k].x);
      add(at + 1, four[k].y);
      add(at + 2, four[k].z);
      add(at + 3, four[k].w);
    }
    sum += some;
  }
  return block_sum(sum);
}

/// A job's groups, where they are written.
struct JobGroups {
  const Job& job;
  const State& state;
  UnitsLeft left;             ///< in groups
  const std::uint32_t* bits;  ///< of each
  std::uint32_t* index;       ///< of the body

  __device__ JobGroups(const Frame& frame, const Plan& plan, std::uint32_t number)
      : job(frame(plan.jobs)[number]),
        state(frame(plan.states)[number]),
        left(state.left.times(job.pieces)),
        bits(frame(plan.group_bits) + job.first_group),
        index(index_of(frame, plan, job, state.thinning != 0)) {}

  [[nodiscard]] __device__ bool empty() const { return state.price == 0 || state.kept == 0; }
  /// By a whole block: the bits of all.
  [[nodiscard]] __device__ std::uint64_t sum() const {
    return empty() ? 0 : sum_groups(bits, left, state.written);
  }
  /// Where the body is whose groups have so many bits. Returns its bytes, 0 where it has no group.
  __device__ std::uint64_t stage(const Frame& frame, const Plan& plan, std::uint64_t all,
                                 StagedBody& staged) const {
    if (empty()) return 0;
    const std::uint64_t content = state.lengths_at + 2 * state.groups;
    staged = {};
    staged.prefix = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(index) - frame.work);
    staged.prefix_bytes = content;
    staged.slots = plan.slots.at + job.first_slot * sizeof(std::uint32_t);
    staged.slot_words = job.slot_words;
    staged.ends = plan.group_ends.at + job.first_group * sizeof(std::uint64_t);
    staged.pieces = state.written;
    return round_up(content + (all + 7) / 8, 4);
  }
};

/// By a whole block: ends and lengths of a part of a job's groups. Returns the bits of the groups up to the
/// part's end.
__device__ std::uint64_t place_groups(const Frame& frame, const Plan& plan, const JobGroups& groups,
                                      std::uint64_t part) {
  constexpr unsigned kEach = kLengthsPart / kScanThreads;
  const UnitsLeft& left = groups.left;
  const std::uint64_t first = part * kLengthsPart + kEach * threadIdx.x;
  std::uint32_t own[kEach], sum = 0, all;
#pragma unroll
  for (unsigned k = 0; k < kEach; ++k) {
    const bool stays = first + k < groups.state.written && left.stays(first + k);
    own[k] = stays ? groups.bits[first + k] : 0;
    sum += own[k];
  }
  const std::uint64_t before = sum_groups(groups.bits, left, part * kLengthsPart);
  std::uint64_t end = before + block_exclusive_sum(sum, all);
  std::uint64_t* const ends = frame(plan.group_ends) + groups.job.first_group;
  auto* const lengths =
      reinterpret_cast<std::uint16_t*>(groups.index) + groups.state.lengths_at / 2;
#pragma unroll
  for (unsigned k = 0; k < kEach; ++k) {
    if (first + k >= groups.state.written) break;
    end += own[k];
    ends[first + k] = end;  // groups that are left out become pieces without bits
    if (left.stays(first + k)) lengths[left.before(first + k)] = static_cast<std::uint16_t>(own[k]);
  }
  return before + all;
}

/// By one thread: what the layer of job `number` sends, whose groups have so many bits, and those of its
/// sketch's rows.
__device__ void describe_body(const Frame& frame, const Plan& plan, std::uint32_t number,
                              const JobGroups& groups, std::uint64_t bits, std::uint64_t row_bits) {
  const Job& job = groups.job;
  const State& state = groups.state;
  const bool sketch = job.part == BodyPart::pairs;
  StagedBody first_part, second_part;
  const std::uint64_t first = groups.stage(frame, plan, bits, first_part);
  std::uint64_t second = 0;
  std::uint32_t thinning = state.thinning;
  if (sketch) {
    const JobGroups rows(frame, plan, number + 1);
    second = rows.stage(frame, plan, row_bits, second_part);
    thinning = thinning != 0 ? thinning : rows.state.thinning;
  }
  if (first + second == 0) return;
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

__global__ void __launch_bounds__(kScanThreads) sum_lengths(Frame frame, Plan plan) {
  const UnitOf at = find_unit_together(frame, plan.lengths, blockIdx.x);
  const JobGroups groups(frame, plan, at.job);
  const std::uint64_t parts = groups.empty() ? 0 : divide_up(groups.state.written, kLengthsPart);
  if (at.index != 0 && at.index >= parts) return;
  const std::uint64_t bits = parts == 0 ? 0 : place_groups(frame, plan, groups, at.index);
  // The block of the last part knows the sum of all; rows are described with their pairs.
  if (at.index + 1 < parts || groups.job.part == BodyPart::rows) return;
  std::uint64_t row_bits = 0;
  if (groups.job.part == BodyPart::pairs) row_bits = JobGroups(frame, plan, at.job + 1).sum();
  if (threadIdx.x == 0) describe_body(frame, plan, at.job, groups, bits, row_bits);
}

}  // namespace

void size(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_warps(select_atoms, plan.chunks.units, frame, plan);
  queue.launch_blocks(lay_out_index, plan.count, kScanThreads, 0, frame, plan, false);
  const std::uint64_t index_warps = kChunkWords * plan.chunks.units + plan.marks.segments.units;
  queue.launch_warps(write_index, index_warps, frame, plan, false);
  subtract_from_kept(frame, plan.sketches, queue);
  launch_content(frame, plan, queue);
  if (plan.cap.layers > 0) {
    thin(frame, plan, queue);
    queue.launch_blocks(lay_out_index, plan.count, kScanThreads, 0, frame, plan, true);
    queue.launch_warps(write_index, index_warps, frame, plan, true);
  }
  queue.launch_blocks(sum_lengths, plan.lengths.units, kScanThreads, 0, frame, plan);
  if (!plan.grids.empty()) size(frame, plan.grids, queue);
  learn_ranks(frame, plan, queue);
}

}  // namespace atomo::cuda::atoms
