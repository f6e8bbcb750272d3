// SPDX-License-Identifier: Apache-2.0
/// The words of blocks and rows of several messages at once.
///
/// What it computes: the pairs of a strand as they are looked up, bit for bit those of one message
/// (atoms_decode.cu), which are left in the workspace (duo_words.cuh).
///
/// Mapping. A lane reads a strand of a message by itself; strands of all messages run side by side, so that
/// none waits for those of the message before. Four pairs are looked up in one window of 64 bits. Those
/// in front of the first that has more behind its word are taken; of that one the place is left, and
/// where a tile has it alone, its numbers stand beside the tile: one escape in 180 pairs seldom
/// meets another in a tile.
///
/// Traffic in bytes an entry that is kept: a byte written, and the bodies read.
///
/// Shared memory: 3,840 bytes a warp. Workspace: 4 bytes of words and 1 byte of places an entry.
/// Determinism: every pair is one lane's. Alignment: bodies begin at any byte; those at a multiple of
/// 4 are read in whole words.

#include <algorithm>

#include "cuda/duo_words.cuh"

namespace atomo::cuda::atoms {
namespace {

constexpr unsigned kWarps = 4;  // of a block, at most

/// A row a lane: 11 and 19 words, so that neither rows nor columns meet in a bank. What is behind a tile's is
/// read and written, and nothing else.
struct WarpWords {
  std::uint32_t word[kLanes][kTileDuos / 2 + 3];           ///< two of a tile each
  std::uint32_t level[kLanes][kTileDuos + kLaneDuos - 1];  ///< of 8 tiles, nibble u mod 8
};
struct BlockWords {
  WarpWords of[kWarps];
};

/// A tile as one lane looks its words up.
struct TileWords {
  const LaneVector& of;
  const WordStrand& strand;
  const std::uint32_t* level;
  unsigned shift;      ///< of the tile's nibble
  std::uint32_t half;  ///< its pairs
  std::uint16_t* word;
  std::uint32_t places = 0;             ///< pairs of which the place is left
  std::uint32_t pair = 0, pair_at = 0;  ///< the last of them, and its bit

  /// Reads the tile from `bit` on; returns the bit behind it.
  __device__ std::uint32_t read(std::uint32_t bit) {
    const std::uint32_t start = bit;
    for (std::uint32_t l = 0; l < half;) {
      std::uint32_t used;
      const std::uint32_t count = look(strand.window(bit), l, used);
      bit = strand.moved(bit, used);
      l += count;
      if (count == kLaneDuos || l == half) continue;
      const std::uint32_t entry = word[l], length = entry & 15u;
      const std::uint32_t place = strand.upward() ? bit - start : start - bit;
      word[l] = static_cast<std::uint16_t>(put_place(place));
      ++places, pair = l, pair_at = bit;
      const unsigned each = first_of(entry) == kEscapeCell ? of.escape_bits : of.coding.raw;
      bit = strand.moved(bit, length + 2 * each);
      ++l;
    }
    return bit;
  }
  /// Looks up to four words up from pair l on; returns how many have nothing behind them, and their bits.
  /// The word behind these is there too, where it is the tile's.
  __device__ std::uint32_t look(std::uint64_t window, std::uint32_t l, std::uint32_t& used) const {
    const DeviceStep& c = of.coding;
    std::uint32_t count = 0;
    bool goes = c.raw == 0;
    used = 0;
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      const std::uint32_t nibble = level[l + k] >> shift & c.level_mask;
      const std::uint32_t place = c.decode + (nibble << c.limit | first_bits(window, c.limit));
      const std::uint32_t entry = decode_table()[place], length = entry & 15u;
      word[l + k] = static_cast<std::uint16_t>(entry);
      goes = goes && first_of(entry) != kEscapeCell && l + k < half;
      used += goes ? length : 0;
      count += goes ? 1 : 0;
      window <<= length;
    }
    return count;
  }
  /// What stands beside the tile, which begins at `start` of the group, that at `group`.
  [[nodiscard]] __device__ std::uint64_t beside(std::uint64_t group, std::uint32_t start) const {
    if (places != 1) return put_start(group + start, strand.upward());
    const DuoRead numbers = get_duo(of.coding, of.escape_bits, level[pair] >> shift & 15u,
                                    strand.window(pair_at), strand.upward());
    return put_numbers(numbers.q0, numbers.q1);
  }
};

/// A tile's words on their way out of a lane's row.
__device__ void store_words(const std::uint32_t* row, std::uint32_t half, std::uint16_t* out) {
  if (half == kTileDuos && reinterpret_cast<std::uintptr_t>(out) % 16 == 0) {
    auto* const to = reinterpret_cast<uint4*>(out);
    to[0] = make_uint4(row[0], row[1], row[2], row[3]);
    to[1] = make_uint4(row[4], row[5], row[6], row[7]);
    return;
  }
  const auto* const words = reinterpret_cast<const std::uint16_t*>(row);
  for (std::uint32_t l = 0; l < half; ++l) out[l] = words[l];
}

/// The strands of a unit: each lane reads its own. True when they meet.
__device__ bool find_strands(const AtomContent& c, const BodyBytes& body, const UnitStrand& own,
                             const Room& room, WarpWords& warp) {
  const WordStrand strand(body, own);
  const AtomVector& of = c.job.vectors.of[0];
  std::uint32_t* const level = warp.level[lane()];
  std::uint32_t* const row = warp.word[lane()];
  const Philox draws(c.frame.key(c.job.layer), of.dither);
  StrandWalk walk(c, own.group, own.upward);
  std::uint32_t bit = own.upward ? 0 : own.length;
  LaneVector vector;
  for (std::uint32_t k = kTileDuos; k < kTileDuos + kLaneDuos - 1; ++k) level[k] = 0;
  for (std::uint32_t s = 0; s < c.job.strand_tiles; ++s) {
    if (walk.left == 0) continue;
    if (walk.begins) vector = load_vector(c, walk.rank, 0);
    const std::uint64_t from = std::uint64_t{walk.tile} * kTile;
    if (from < vector.entries) {
      const std::uint64_t behind = vector.entries - from;
      const auto entries = static_cast<std::uint32_t>(behind < kTile ? behind : kTile);
      if (walk.begins || walk.tile % coding::kDitherTiles == 0)
        draw_dither(draws, of.level_base(vector.atom, walk.tile), level);
      TileWords tile{vector,
                     strand,
                     level,
                     4 * (walk.tile % coding::kDitherTiles),
                     (entries + 1) / 2,
                     reinterpret_cast<std::uint16_t*>(row)};
      const std::uint32_t start = bit;
      bit = tile.read(bit);
      store_words(row, tile.half,
                  room.words + vector.atom * of.duos() + std::uint64_t{walk.tile} * kTileDuos);
      if (tile.places != 0)
        room.starts[vector.atom * of.tiles + walk.tile] = tile.beside(own.start, start);
    }
    walk.go_on(c.job.vectors);
  }
  return bit == __shfl_xor_sync(kAllLanes, bit, 1);
}

__global__ void look_up_words(const Frames frames, const DecodePlan plan,
                              const std::uint32_t first) {
  const Frame frame = frames[first + blockIdx.y];
  const UnitOf at = unit_of_warp(frame, plan.bodies.groups);
  if (!at) return;
  const DecodeJob& job = frame(plan.jobs)[at.job];
  BodyState& state = frame(plan.bodies.states)[at.job];
  if (job.together == 0 || state.stands == 0 || at.index * kUnitGroups >= state.groups) return;
  const AtomContent content = content_of(frame, plan, at.job);
  const BodyBytes body = body_of(frame, content.body_job);
  const UnitStrand own = strand_of_lane(frame, plan.bodies, at, body, state);
  const bool good = find_strands(content, body, own, Room(frame, plan, job, blockIdx.y),
                                 shared<BlockWords>().of[warp_in_block()]);
  if (good) return;
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
