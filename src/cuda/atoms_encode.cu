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
///   content  a warp a group of up to 1,024 entries, 256 at a time: *quads* of four tiles of one
///            vector, two side by side. 16 lanes draw a quad's pre-rounding, a word a tile; 4 lanes
///            the levels of a quad, eight quads at once. Then lane 4u + k codes pairs 4k .. 4k + 3
///            of tile u: they are neighbours on a strand, so a lane's bits are one stretch, placed
///            by a scan over lanes, of both strands at once. Bits meet in shared memory, a window a
///            strand; whole words go to the group's slot, from its ends. Then the strands are joined.
///   lengths  a block a job, with a sketch's pairs its rows too: where groups end in the stream,
///            their lengths, the body's
///
/// Traffic an entry of a vector: 4 bytes read (2 of a half), once, of kept atoms alone; its bits
/// written once.
/// An atom adds 8 bytes read three times, 16 bytes a kept one written and read, some 1/2 byte of
/// marks.
///
/// Shared memory: 3,200 bytes a warp in content. Determinism: draws are functions of their place,
/// sums are integers, bits that meet in a word are OR-ed. Alignment: tensors as their entries, 16
/// bytes are read at once where the address allows it; bodies are staged in the workspace.

#include "core/philox.hpp"
#include "cuda/atoms.cuh"
#include "cuda/bit_window.cuh"
#include "cuda/duo_code.cuh"
#include "format/atom_body.hpp"
#include "format/thinning.hpp"
#include "math/dither.hpp"
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
                             std::uint32_t start, std::uint32_t* kept, std::uint32_t* certain) {
  constexpr std::uint32_t kOwn = kChunk / kLanes;
  std::uint32_t probability[kOwn], place[kOwn], sum = 0, total;
  for (std::uint32_t i = 0; i < kOwn; ++i) {
    const std::uint32_t k = i * kSelectionColumns + lane();
    const double rms = k < count ? amplitudes[k] : 0.0;
    const double ratio = rms / price;
    place[i] = k;
    probability[i] = rms > 0 && ratio < 1.0 ? probability_of_ratio(ratio) : 0;
    sum += probability[i];
    if (ratio >= 1.0) {
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
               static_cast<double>(chosen.price), draws(at.index)[0], kept, certain);
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
  std::uint64_t rank =
      frame(plan.marks.segment_states)[segment].rank + ones_before(kept, chunk * kChunkWords);
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

// ---- content

constexpr std::uint32_t kQuadTiles = 4;  // of a vector, whose pre-rounding shares blocks
constexpr std::uint32_t kQuads = 8;      // whose levels are drawn together
constexpr std::uint32_t kPreStride = 5 * kTileDuos;  // keeps two quads in different banks

/// The shared memory of a warp.
struct alignas(16) ContentMemory {
  std::uint32_t levels[kQuads][kTileDuos];
  std::uint32_t pre[2 * kPreStride];  ///< [quad][tile][pair]
  std::uint32_t windows[2 * kWindowWords];
};
struct ContentMemories {
  ContentMemory warp[kMaxWarps];
};

/// A group: some kept atoms, or a piece of one.
struct Group {
  const Job* job;
  Key key;
  const KeptAtom* kept;                      ///< its first atom
  std::uint32_t quads = 0;                   ///< of all
  std::uint32_t quads_each = 0;              ///< of an atom, or of the piece
  std::uint32_t quads_first = 0;             ///< of these, those of the first vector
  std::uint32_t first_tile = 0;              ///< within the vector
  std::uint32_t upward = 0, odd_upward = 0;  ///< GroupShape::upward_tiles of even and odd members
};

__device__ std::uint32_t quads_of(std::uint32_t tiles) {
  return (tiles + kQuadTiles - 1) / kQuadTiles;
}

__device__ Group group_of(const Frame& frame, const Plan& plan, const Job& job, std::uint64_t kept,
                          std::uint64_t group) {
  const GroupShape shape = GroupShape::of(job.layout.length);
  Group made{&job, frame.key(job.layer), frame(plan.kept) + job.first_atom};
  if (job.pieces > 1) {
    const VectorPiece piece = job.vectors.piece(static_cast<std::uint32_t>(group % job.pieces));
    made.kept += group / job.pieces;
    made.quads = made.quads_each = quads_of(piece.tiles);
    made.quads_first = piece.vector == 0 ? made.quads : 0;
    made.first_tile = piece.first_tile;
    made.upward = shape.upward_tiles(0, piece.tiles);
    return made;
  }
  const std::uint64_t rank = group * shape.atoms;
  const std::uint64_t members = kept - rank < shape.atoms ? kept - rank : shape.atoms;
  made.kept += rank;
  made.quads_first = quads_of(job.vectors.of[0].tiles);
  made.quads_each = made.quads_first + quads_of(job.vectors.of[1].tiles);
  made.quads = made.quads_each * static_cast<std::uint32_t>(members);
  made.upward = shape.upward_tiles(0, job.vectors.tiles());
  made.odd_upward = shape.upward_tiles(1, job.vectors.tiles());
  return made;
}

/// A quad of a group: four tiles of a vector of an atom from `tile` on.
struct Quad {
  KeptAtom atom;
  std::uint32_t vector, tile;
  std::uint32_t upward;  ///< how many of the tiles from `tile` on, and of those behind, go upward
};

__device__ Quad quad_of(const Group& group, std::uint32_t quad) {
  const std::uint32_t member = quad / group.quads_each, own = quad - member * group.quads_each;
  const std::uint32_t vector = own < group.quads_first ? 0 : 1;
  const std::uint32_t before = vector == 0 ? 0 : group.quads_first;
  const std::uint32_t tile = kQuadTiles * (own - before);
  // Tiles of the group, or of the member, before this one.
  const std::uint32_t passed =
      vector == 0 || group.quads_first == 0 ? tile : group.job->vectors.of[0].tiles + tile;
  const std::uint32_t upward = member % 2 == 0 ? group.upward : group.odd_upward;
  return {group.kept[member], vector, group.first_tile + tile,
          upward > passed ? upward - passed : 0};
}

/// A whole warp draws the words of the levels of eight quads from `first` on, four blocks each.
__device__ void draw_dither(const Group& group, std::uint32_t first, ContentMemory& memory) {
  const std::uint32_t own = lane() / 4, block = lane() % 4;
  if (first + own >= group.quads) return;
  const Quad quad = quad_of(group, first + own);
  const AtomVector& vector = group.job->vectors.of[quad.vector];
  const Philox draws(group.key, vector.dither);
  const PhiloxWords words = draws(4 * vector.level_base(quad.atom.atom, quad.tile) + block);
  for (unsigned w = 0; w < 4; ++w) memory.levels[own][4 * w + block] = words[w];
}

/// 16 lanes draw the words of a quad's pre-rounding, one a tile and pair.
__device__ void draw_pre_rounding(const Group& group, const Quad& quad, ContentMemory& memory) {
  const std::uint32_t half = lane() / kTileDuos, pair = lane() % kTileDuos;
  const AtomVector& vector = group.job->vectors.of[quad.vector];
  const Philox draws(group.key, vector.pre_round);
  const std::uint64_t index = quad.atom.atom * quads_of(vector.tiles) + quad.tile / kQuadTiles;
  const PhiloxWords words = draws(kTileDuos * index + pair);
  for (unsigned w = 0; w < kQuadTiles; ++w)
    memory.pre[half * kPreStride + w * kTileDuos + pair] = words[w];
}

/// Both entries of pairs 4k .. 4k + 3 of a tile. Returns how many of these there are.
__device__ std::uint32_t load_pairs(const Entries& x, std::uint64_t first, std::uint32_t entries,
                                    std::uint32_t k, float (&x0)[4], float (&x1)[4]) {
  const std::uint32_t half = (entries + 1) / 2, begin = 4 * k;
  if (begin >= half) return 0;
  x.four(first + begin, first + half, x0);
  x.four(first + half + begin, first + entries, x1);
  return half - begin < 4 ? half - begin : 4;
}

/// A lane's pairs: 4k .. 4k + 3 of tile u mod 4 of its quad. `x` has the quad's vector of all
/// atoms.
__device__ void code_duos(const Entries& x, const Job& job, const Quad& quad, float range,
                          const std::uint32_t* levels, const std::uint32_t* pre, bool upward,
                          DuoBits (&out)[4]) {
  const AtomVectors& vectors = job.vectors;
  const AtomVector& vector = vectors.of[quad.vector];
  const std::uint32_t u = lane() / 4 % kQuadTiles, k = lane() % 4, c = quad.atom.atom_class;
  const std::uint64_t length = vectors.length_of(quad.vector, quad.atom.atom);
  const std::uint64_t at = std::uint64_t{kTile} * (quad.tile + u);
  const std::uint64_t left = at < length ? length - at : 0;
  float x0[4], x1[4];
  const std::uint32_t count =
      load_pairs(x, quad.atom.atom * vector.length + at,
                 static_cast<std::uint32_t>(left < kTile ? left : kTile), k, x0, x1);
  const float inverse = vectors.priced(quad.vector) ? quad.atom.inverse : job.first_inverse[c];
  const unsigned escape = vector.escape_bits[vectors.is_last(quad.atom.atom) ? 1 : 0][c];
  const DeviceStep step = device_step(vector.step[c]);
  const unsigned shift = 4 * ((quad.tile + u) % kDitherTiles);
  for (std::uint32_t i = 0; i < 4; ++i) {
    out[i] = {0, 0};
    if (i >= count) continue;
    const std::uint32_t level = levels[4 * k + i] >> shift & 15u;
    const std::uint32_t word = pre[u * kTileDuos + 4 * k + i];
    const std::int32_t q0 =
        quantise<float>(x0[i] * range, inverse, EntryDraw{level, word & 0xFFFFu});
    const std::int32_t q1 =
        quantise<float>(x1[i] * range, inverse, EntryDraw{level ^ kMateDither, word >> 16});
    out[i] = put_duo(step, escape, level, q0, q1, upward);
  }
}

__global__ void write_content(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.groups);
  if (!at) return;
  const State& state = frame(plan.states)[at.job];
  if (at.index >= state.groups) return;
  const Job& job = frame(plan.jobs)[at.job];
  const Group group = group_of(frame, plan, job, state.kept, at.index);
  const Entries first_x = entries_of(frame, job, 0), second_x = entries_of(frame, job, 1);
  // The range is part of what the vectors of pairs are multiplied by.
  const float range = job.has_pairs() ? 1.0f : range_scale(state.price);
  ContentMemory& memory = shared<ContentMemories>().warp[warp_in_block()];
  StrandWindows strands(memory.windows,
                        frame(plan.slots) + job.first_slot + at.index * job.slot_words,
                        job.slot_words);
  const std::uint32_t half = lane() / kTileDuos;
  for (std::uint32_t first = 0; first < group.quads; first += kQuads) {
    draw_dither(group, first, memory);
    const std::uint32_t end = first + kQuads < group.quads ? first + kQuads : group.quads;
    for (std::uint32_t two = first; two < end; two += 2) {
      const bool there = two + half < end;
      const Quad quad = quad_of(group, there ? two + half : two);
      if (there) draw_pre_rounding(group, quad, memory);
      __syncwarp();
      DuoBits bits[4] = {};
      const bool upward = lane() / 4 % kQuadTiles < quad.upward;
      if (there) {
        const Entries x{quad.vector == 0 ? first_x.x : second_x.x, first_x.dtype};
        code_duos(x, job, quad, range, memory.levels[two - first + half],
                  memory.pre + half * kPreStride, upward, bits);
      }
      strands.put(bits, upward);
    }
  }
  const std::uint64_t bits = strands.finish();
  if (lane() == 0)
    frame(plan.group_bits)[job.first_group + at.index] = static_cast<std::uint32_t>(bits);
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
  const auto total = scan_blockwide<std::uint64_t>(
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

__global__ void sum_lengths(Frame frame, Plan plan) {
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
}

}  // namespace

void size(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_warps(select_atoms, plan.chunks.units, frame, plan);
  queue.launch_blocks(lay_out_index, plan.count, kScanThreads, 0, frame, plan, false);
  queue.launch_warps(write_index, plan.chunks.units, frame, plan, false);
  subtract_from_kept(frame, plan.sketches, queue);
  queue.launch_warps(write_content, plan.groups.units, frame, plan);
  if (plan.cap.layers > 0) {
    thin(frame, plan, queue);
    queue.launch_blocks(lay_out_index, plan.count, kScanThreads, 0, frame, plan, true);
    queue.launch_warps(write_index, plan.chunks.units, frame, plan, true);
  }
  queue.launch_blocks(sum_lengths, plan.count, kScanThreads, 0, frame, plan);
  if (!plan.grids.empty()) size(frame, plan.grids, queue);
  learn_ranks(frame, plan, queue);
}

}  // namespace atomo::cuda::atoms
