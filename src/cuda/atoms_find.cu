// SPDX-License-Identifier: Apache-2.0
/// The words of blocks and rows of several messages at once.
///
/// What it computes: the pairs of a strand as they are looked up, bit for bit those of one message
/// (atoms_decode.cu), which are left in the workspace (duo_words.cuh).
///
/// Mapping. A lane reads a strand of a message by itself; strands of all messages run side by side, so that
/// none waits for those of the message before. Four pairs are looked up in one window of 64 bits
/// (strand_words.cuh). Of one that has more behind its word the place is left, and where a tile has it
/// alone, its numbers stand beside the tile: one escape in 180 pairs seldom meets another in a tile.
///
/// Traffic in bytes an entry that is kept: a byte written, and the bodies read.
///
/// Shared memory: 15 KiB a block, 3,584 bytes a warp. Workspace: 4 bytes of words and 1 byte of places an
/// entry. Determinism: every pair is one lane's. Alignment: bodies begin at any byte; but for their ends they
/// are read in whole words.

#include <algorithm>

#include "cuda/duo_words.cuh"

namespace atomo::cuda::atoms {
namespace {

constexpr unsigned kWarps = 4;  // of a block, at most

struct WarpWords {
  /// Two of a tile each, a row a lane. What is behind a tile's is written, and nothing else.
  alignas(16) std::uint32_t word[kLanes][kTileDuos / 2 + 4];
  LaneLevels level;
};
struct BlockWords {
  ShortWords words;
  WarpWords of[kWarps];
};

/// A tile as one lane looks its words up.
struct TileWords {
  const LaneVector& of;
  const WordTable& table;
  std::uint64_t level;  ///< a nibble a pair
  std::uint32_t half;   ///< its pairs
  std::uint32_t* row;
  std::uint32_t start = 0;      ///< bits of the strand before it
  std::uint32_t places = 0;     ///< pairs of which the place is left
  std::int32_t q0 = 0, q1 = 0;  ///< the numbers of the last of them

  __device__ void read(StrandStream& strand) {
    start = strand.passed();
    for (std::uint32_t l = 0; l < half;) {
      const LaneDuos duos(strand, of, table, static_cast<std::uint32_t>(level), half - l);
      std::uint32_t words[kLaneDuos];
      for (unsigned k = 0; k < kLaneDuos; ++k) words[k] = duos.entry[k];
      if (duos.more) leave_places(duos, strand.passed() - start, strand.upward(), words);
      put(l, words);
      strand.pass(duos.bits);
      level >>= 4 * duos.count;
      l += duos.count;
    }
  }
  /// `place`: of the first pair.
  __device__ void leave_places(const LaneDuos& duos, std::uint32_t place, bool upward,
                               std::uint32_t (&left)[kLaneDuos]) {
    duos.visit_more(of, upward, [&](unsigned k, const DuoRead& pair, std::uint32_t begin) {
      q0 = pair.q0, q1 = pair.q1;
      left[k] = put_place(place + begin);
      ++places;
    });
  }
  /// Four words; those that are not the tile's, or not read yet, are written again or not looked at.
  __device__ void put(std::uint32_t l, const std::uint32_t (&entry)[kLaneDuos]) const {
    if (l % kLaneDuos == 0) {
      *reinterpret_cast<uint2*>(row + l / 2) =
          make_uint2(entry[0] | entry[1] << 16, entry[2] | entry[3] << 16);
      return;
    }
    auto* const words = reinterpret_cast<std::uint16_t*>(row) + l;
    for (unsigned k = 0; k < kLaneDuos; ++k) words[k] = static_cast<std::uint16_t>(entry[k]);
  }
  /// What stands beside the tile.
  [[nodiscard]] __device__ std::uint64_t beside(const UnitStrand& own) const {
    const std::uint64_t bit = own.start + (own.upward ? start : own.length - start);
    return places == 1 ? put_numbers(q0, q1) : put_start(bit, own.upward);
  }
};

/// A tile's words on their way out of a lane's row; eight together, as there is room for.
__device__ void store_words(const std::uint32_t* row, std::uint32_t half, std::uint16_t* out) {
  auto* const to = reinterpret_cast<uint4*>(out);
  const auto* const from = reinterpret_cast<const uint4*>(row);
  to[0] = from[0];
  if (half > kDuosTogether) to[1] = from[1];
}

/// The strands of a unit: each lane reads its own. True when they meet.
__device__ bool find_strands(const AtomContent& c, const BodyBytes& body, const UnitStrand& own,
                             const DecodePlan& plan, std::uint32_t slot, BlockWords& block) {
  StrandStream strand(body, own);
  const AtomVector& of = c.job.vectors.of[0];
  WarpWords& warp = block.of[warp_in_block()];
  std::uint32_t* const row = warp.word[lane()];
  StrandWalk walk(c, own.group, own.upward);
  LaneVector vector;
  WordTable table;
  std::uint16_t* words = nullptr;  // of the atom
  for (; walk.left != 0; walk.go_on(c.job.vectors)) {
    if (walk.begins) {
      vector = load_vector(c, walk.rank, 0);
      table = WordTable(vector.coding, block.words);
      words = Room(c.frame, plan, c.job, slot).words + vector.atom * of.duos();
    }
    const std::uint64_t from = std::uint64_t{walk.tile} * kTile;
    if (from < vector.entries) {
      const std::uint64_t behind = vector.entries - from;
      const auto entries = static_cast<std::uint32_t>(behind < kTile ? behind : kTile);
      TileWords tile{vector, table, levels_of(c, of, vector.atom, walk, warp.level),
                     (entries + 1) / 2, row};
      tile.read(strand);
      store_words(row, tile.half, words + std::uint64_t{walk.tile} * kTileDuos);
      if (tile.places != 0)
        Room(c.frame, plan, c.job, slot).starts[vector.atom * of.tiles + walk.tile] =
            tile.beside(own);
    }
  }
  const std::uint32_t bit = own.upward ? strand.passed() : own.length - strand.passed();
  return bit == __shfl_xor_sync(kAllLanes, bit, 1);
}

__global__ void look_up_words(const Frames frames, const DecodePlan plan,
                              const std::uint32_t first) {
  auto& block = shared<BlockWords>();
  load_short_words(block.words);
  __syncthreads();
  const Frame frame = frames[first + blockIdx.y];
  const UnitOf at = unit_of_warp(frame, plan.bodies.groups);
  if (!at) return;
  const DecodeJob& job = frame(plan.jobs)[at.job];
  BodyState& state = frame(plan.bodies.states)[at.job];
  if (job.together == 0 || state.stands == 0 || at.index * kUnitGroups >= state.groups) return;
  const AtomContent content = content_of(frame, plan, at.job);
  const BodyBytes body = body_of(frame, content.body_job);
  const UnitStrand own = strand_of_lane(frame, plan.bodies, at, body, state);
  if (find_strands(content, body, own, plan, blockIdx.y, block)) return;
  atomicOr(&state.faults, 1u);
  frame.refuse(job.layer, Status::corrupt);
}

}  // namespace

void find_words(const Frames& frames, const DecodePlan& plan, std::uint32_t first,
                std::uint32_t count, Queue& queue) {
  const unsigned warps = std::min(warps_per_block, kWarps);
  queue.launch_blocks_each(look_up_words, divide_up(plan.bodies.groups.units, warps), count,
                           warps * kLanes, 0, frames, plan, first);
}

}  // namespace atomo::cuda::atoms
