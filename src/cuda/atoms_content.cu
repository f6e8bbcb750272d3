// SPDX-License-Identifier: Apache-2.0
/// The content of dithered atoms: entries dithered to integers, whose pairs are written in a static
/// prefix code (math/dither.hpp, duo_code.cuh).
///
/// Mapping: a warp a group of up to 1,024 entries, 256 at a time: *quads* of four tiles of one
/// vector, two side by side. 16 lanes draw a quad's pre-rounding, a word a tile; 4 lanes the levels
/// of a quad, eight quads at once. Then lane 4u + k codes pairs 4k .. 4k + 3 of tile u: they are
/// neighbours on a strand, so a lane's bits are one stretch, placed by a scan over lanes, of both
/// strands at once. Words with nothing behind them, those of most lanes, are joined in a shorter way.
/// Bits meet in shared memory, each strand from its end of a buffer; joined, the strands go to the
/// group's slot (strands.cuh). In a centred layer nothing is drawn.
///
/// Traffic an entry of a vector: 4 bytes read (2 of a half), once, of kept atoms alone; its bits
/// written once.
///
/// Shared memory: 1,152 bytes a warp, and the longest content of a group, some 2 KiB. Determinism:
/// draws are functions of their place, bits that meet in a word are OR-ed. Alignment: tensors as their
/// entries, 16 bytes are read at once where the address allows it.

#include <algorithm>

#include "core/philox.hpp"
#include "cuda/atoms.cuh"
#include "cuda/duo_code.cuh"
#include "cuda/strands.cuh"
#include "format/atom_body.hpp"
#include "math/centroids.hpp"
#include "math/dither.hpp"

namespace atomo::cuda::atoms {
namespace {

constexpr std::uint32_t kQuadTiles = 4;  // of a vector, whose pre-rounding shares blocks
constexpr std::uint32_t kQuads = 8;      // whose levels are drawn together
constexpr std::uint32_t kPreStride = 5 * kTileDuos;  // keeps two quads in different banks

/// The shared memory of a warp.
struct alignas(16) ContentMemory {
  std::uint32_t levels[kQuads][kTileDuos];
  std::uint32_t pre[2 * kPreStride];  ///< [quad][tile][pair]
};
/// Bytes of a warp, the buffer of its group's strands behind the rest.
std::size_t content_bytes(std::uint64_t slot_words) {
  return sizeof(ContentMemory) +
         format::round_up(strand_words(slot_words) * sizeof(std::uint32_t), alignof(ContentMemory));
}

/// A group: some kept atoms, or a piece of one.
struct Group {
  const Job* job;
  Key key;
  const KeptAtom* kept;                      ///< its first atom
  std::uint32_t quads = 0;                   ///< of all
  std::uint32_t quads_each = 0;              ///< of an atom, or of the piece
  std::uint32_t inverse = 0;                 ///< that of `quads_each`, a bit more than 2^16 times
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
    made.inverse = 0x10000u / made.quads_each + 1;
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
  made.inverse = 0x10000u / made.quads_each + 1;
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
  // The quotient is exact: quads * quads_each is far below 2^16.
  const std::uint32_t member = quad * group.inverse >> 16, own = quad - member * group.quads_each;
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

/// A lane's pairs: 4k .. 4k + 3 of tile u mod 4 of its quad, the first of `out` all of them where 64 bits
/// have them. `x` has the quad's vector of all atoms.
__device__ void code_duos(const Entries& x, const Job& job, const Quad& quad, float range,
                          const std::uint32_t* levels, const std::uint32_t* pre, bool upward,
                          DuoBits (&out)[4]) {
  const AtomVectors& vectors = job.vectors;
  const AtomVector& vector = vectors.of[quad.vector];
  const std::uint32_t u = lane() / 4 % kQuadTiles, k = lane() % 4, c = quad.atom.atom_class;
  const std::uint64_t length = vectors.length_of(quad.vector, quad.atom.atom);
  const std::uint64_t at = std::uint64_t{kTile} * (quad.tile + u);
  const std::uint64_t left = at < length ? length - at : 0;
  float x0[4] = {}, x1[4] = {};
  const std::uint32_t count =
      load_pairs(x, quad.atom.atom * vector.length + at,
                 static_cast<std::uint32_t>(left < kTile ? left : kTile), k, x0, x1);
  const float inverse = vectors.priced(quad.vector) ? quad.atom.inverse : job.first_inverse[c];
  const unsigned escape = vector.escape_bits[vectors.is_last(quad.atom.atom) ? 1 : 0][c];
  const bool centred = job.selection == Selection::nearest;
  const DeviceStep step = device_step(vector.step[c], centred);
  const unsigned shift = 4 * ((quad.tile + u) % kDitherTiles);
  std::int32_t q0[4], q1[4];
  std::uint32_t entry[4], escapes = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    std::uint32_t level = 0;
    if (centred) {
      q0[i] = nearest_level(x0[i] * range, inverse);
      q1[i] = nearest_level(x1[i] * range, inverse);
    } else {
      level = levels[4 * k + i] >> shift & 15u;
      const std::uint32_t word = pre[u * kTileDuos + 4 * k + i];
      q0[i] = quantise<float>(x0[i] * range, inverse, EntryDraw{level, word & 0xFFFFu});
      q1[i] = quantise<float>(x1[i] * range, inverse, EntryDraw{level ^ kMateDither, word >> 16});
    }
    const std::uint32_t coded = encode_entry(step, level, q0[i], q1[i]);
    entry[i] = i < count ? coded : 0u;  // of pairs that are not there no bits
    escapes |= entry[i] & kEscapeBit;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) out[i] = {0, 0};
  if (step.raw == 0 && escapes == 0) {  // words alone, of which 32 bits have two
    const ShortBits two[2] = {join(word_of(entry[0]), word_of(entry[1])),
                              join(word_of(entry[2]), word_of(entry[3]))};
    out[0] = {std::uint64_t{two[0].bits} << two[1].count | two[1].bits,
              two[0].count + two[1].count};
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (i < count) out[i] = put_duo(step, escape, entry[i], q0[i], q1[i], upward);
  }
  join(out[0], out[1]);
  join(out[2], out[3]);
  if (out[1].count == 0) join(out[0], out[2]);
}

/// `warp_bytes`: shared memory of a warp.
__global__ void write_content(Frame frame, Plan plan, std::uint32_t warp_bytes) {
  const UnitOf at = unit_of_warp(frame, plan.groups);
  if (!at) return;
  const State& state = frame(plan.states)[at.job];
  if (at.index >= state.groups) return;
  const Job& job = frame(plan.jobs)[at.job];
  const Group group = group_of(frame, plan, job, state.kept, at.index);
  const Entries first_x = entries_of(frame, job, 0), second_x = entries_of(frame, job, 1);
  // The range is part of what the vectors of pairs are multiplied by.
  const float range = job.has_pairs() ? 1.0f : range_scale(state.price);
  std::byte* const own = dynamic_shared<std::byte>() + warp_in_block() * warp_bytes;
  ContentMemory& memory = *reinterpret_cast<ContentMemory*>(own);
  Strands strands(reinterpret_cast<std::uint32_t*>(own + sizeof memory),
                  strand_words(job.slot_words));
  const std::uint32_t half = lane() / kTileDuos;
  const bool draws = job.selection != Selection::nearest;
  for (std::uint32_t first = 0; first < group.quads; first += kQuads) {
    if (draws) draw_dither(group, first, memory);
    const std::uint32_t end = first + kQuads < group.quads ? first + kQuads : group.quads;
    for (std::uint32_t two = first; two < end; two += 2) {
      const bool there = two + half < end;
      const Quad quad = quad_of(group, there ? two + half : two);
      if (there && draws) draw_pre_rounding(group, quad, memory);
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
  const std::uint32_t bits =
      strands.write(frame(plan.slots) + job.first_slot + at.index * job.slot_words);
  if (lane() == 0) frame(plan.group_bits)[job.first_group + at.index] = bits;
}

}  // namespace

/// As many warps a block as there is shared memory for.
void launch_content(const Frame& frame, const Plan& plan, Queue& queue) {
  constexpr std::size_t kMost = 48 * 1024;
  const std::size_t each = content_bytes(plan.longest_slot);
  const auto warps = static_cast<unsigned>(std::min<std::size_t>(warps_per_block, kMost / each));
  queue.launch_blocks(write_content, divide_up(plan.groups.units, warps), warps * kLanes,
                      warps * each, frame, plan, static_cast<std::uint32_t>(each));
}

}  // namespace atomo::cuda::atoms
