// SPDX-License-Identifier: Apache-2.0
/// Blocks and rows of several messages, added at once.
///
/// The mathematics is that of one message (atoms_decode.cu): y becomes y + (alpha * v), message by
/// message.
///
/// Mapping, two launches for up to four messages. find_words: a lane reads a strand of a message, and
/// leaves the words of its pairs as they were looked up, two bytes each, in the workspace; strands of all
/// messages run side by side, so that none waits for those of the message before. A word with more
/// behind it, an escape or raw bits, stays where it is, and its place in the tile is left instead; where
/// a tile has one alone, its numbers stand beside the tile. add_words: a warp adds up to eight tiles
/// of an atom, which share their level draws: a lane draws for a message, then takes four pairs of a tile,
/// eight entries, and adds what the messages have for them.
///
/// Traffic in bytes an entry: a byte of words written and read a message, 8 for the tensor whatever the
/// number of messages, and the bodies. Of atoms that no message keeps, nothing.
///
/// Shared memory: 3,840 bytes a warp (find_words), 512 bytes (add_words). Workspace: 4 bytes of words
/// and 1 byte of places an entry. Determinism: every entry is one lane's, in order of messages.
/// Alignment: y is aligned to its entries; bodies begin at any byte, those at a multiple of 4 are
/// read in whole words.

#include <algorithm>

#include "cuda/atom_strands.cuh"

namespace atomo::cuda::atoms {
namespace {

constexpr unsigned kWarps = 4;  // of a block, at most
constexpr unsigned kLaneDuos = 4;

/// A word in the workspace that stands for its place: cell kEscapeCell, then ten bits.
constexpr std::uint32_t kPlaceMark = (kEscapeCell & 63) << 4;
__device__ std::uint32_t put_place(std::uint32_t place) {
  return kPlaceMark | (place & 15u) | (place >> 4) << 10;
}
__device__ std::uint32_t place_of(std::uint32_t word) { return (word & 15u) | word >> 10 << 4; }

/// What stands beside a tile with places: its first bit, from the body's begin, or the numbers of its
/// only pair that has one.
constexpr std::uint64_t kOnePair = std::uint64_t{1} << 63;
constexpr unsigned kNumberBits = 31;
__device__ std::uint64_t put_start(std::uint64_t bit, bool upward) {
  return bit << 1 | (upward ? 1 : 0);
}
__device__ std::uint64_t put_numbers(std::int32_t q0, std::int32_t q1) {
  constexpr std::uint32_t kMask = (1u << kNumberBits) - 1;
  return kOnePair | std::uint64_t{static_cast<std::uint32_t>(q0) & kMask} << kNumberBits |
         (static_cast<std::uint32_t>(q1) & kMask);
}
__device__ std::int32_t number_of(std::uint64_t numbers, unsigned which) {
  const auto bits = static_cast<std::uint32_t>(numbers >> (which == 0 ? kNumberBits : 0));
  return static_cast<std::int32_t>(bits << (32 - kNumberBits)) >> (32 - kNumberBits);
}

/// The strand of a lane in whole words, where the body stands at a multiple of 4; at its ends, and where it
/// does not, in words that are looked at byte by byte.
class WordStrand {
 public:
  __device__ WordStrand(const BodyBytes& body, const UnitStrand& own)
      : slow_{BitView(body.begin, body.bytes).from(own.start), own.upward},
        turned_(own.upward ? 0 : 64) {
    const auto address = reinterpret_cast<std::uintptr_t>(body.begin);
    const std::uint64_t before = own.start / 32, behind = body.bytes / 4 - before;
    words_ = in_one(reinterpret_cast<const std::uint32_t*>(address - address % 4) + before);
    skipped_ = static_cast<std::int32_t>(own.start % 32);
    before_ = static_cast<std::int32_t>(before < kMost ? before : kMost);
    const auto after = static_cast<std::int32_t>(behind < kMost ? behind : kMost) - 2;
    there_ = address % 4 != 0 || after < 0 ? 0u : static_cast<std::uint32_t>(before_ + after);
  }

  [[nodiscard]] __device__ bool upward() const { return slow_.upward; }
  [[nodiscard]] __device__ std::uint32_t moved(std::uint32_t bit, std::uint32_t by) const {
    return slow_.moved(bit, by);
  }
  /// The next 64 bits, the first the highest.
  [[nodiscard]] __device__ std::uint64_t window(std::uint32_t bit) const {
    const std::int32_t at = static_cast<std::int32_t>(bit) + skipped_ - turned_, i = at >> 5;
    if (static_cast<std::uint32_t>(i + before_) >= there_) return slow_.window(bit);
    const std::uint32_t* const three = words_ + i;
    const auto shift = static_cast<unsigned>(at & 31);
    const std::uint32_t low = __funnelshift_r(three[0], three[1], shift),
                        high = __funnelshift_r(three[1], three[2], shift);
    const std::uint32_t upper = slow_.upward ? __brev(low) : high,
                        lower = slow_.upward ? __brev(high) : low;
    return std::uint64_t{upper} << 32 | lower;
  }

 private:
  static constexpr std::uint64_t kMost = 1u << 20;  ///< words: more than a group has

  LaneStrand slow_;
  std::int32_t turned_;
  const std::uint32_t* words_;     ///< that of the group's first bit
  std::int32_t skipped_, before_;  ///< bits of it; words before it that are there, or kMost
  std::uint32_t there_;            ///< from these on, words with two behind them; or 0
};

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

/// Room of the messages that are decoded together: of message `slot` of them.
struct Room {
  std::uint16_t* words;
  std::uint64_t* starts;

  __device__ Room(const Frame& frame, const DecodePlan& plan, const DecodeJob& job,
                  std::uint32_t slot)
      : words(frame(plan.room.words) + slot * plan.room.of_message + job.first_duo),
        starts(frame(plan.room.starts) + slot * plan.room.tiles_of_message + job.first_tile) {}
};

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

__global__ void find_words(const Frames frames, const DecodePlan plan, const std::uint32_t first) {
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

/// The numbers of a pair whose place `word` is, of a tile of an atom that the message keeps.
__device__ DuoRead read_again(const Frame& frame, const DecodePlan& plan, std::uint32_t number,
                              std::uint64_t atom, std::uint64_t start, std::uint32_t word,
                              std::uint32_t level) {
  const AtomContent content = content_of(frame, plan, number);
  const std::uint32_t atom_class =
      frame(plan.bodies.classes)[content.body_job.first_kept + atom] - 1u;
  const LaneVector vector = vector_of(content, atom, atom_class, 0);
  const BodyBytes body = body_of(frame, content.body_job);
  const bool upward = (start & 1) != 0;
  const std::uint64_t at = start >> 1, place = place_of(word);
  const BitView view(body.begin, body.bytes);
  return get_duo(vector.coding, vector.escape_bits, level,
                 view.peek64_along(upward ? at + place : at - place, upward), upward);
}

/// Chunks that a warp has level draws of at once: a lane draws once for them.
constexpr unsigned kDrawn = 2;
constexpr unsigned kCalls = kTileDuos / 4;
static_assert(kDrawn * kDecodedTogether * kCalls == kLanes);

struct WarpLevels {
  alignas(16) std::uint32_t word[kDrawn][kDecodedTogether][kTileDuos];
};
struct BlockLevels {
  WarpLevels of[kMaxWarps];
};

/// What a lane knows of the message and chunk that it draws for.
struct DrawnAtom {
  std::uint32_t kept = 0;
  float step = 0, unrange = 0;
  std::uint32_t swaps = 0;  ///< bit of the level that exchanges the numbers
};

/// Up to eight tiles of an atom, four pairs a lane: eight entries.
class ChunkSums {
 public:
  __device__ ChunkSums(const DecodeJob& job, float* y, std::uint64_t atom, std::uint64_t chunk)
      : tile_(chunk * coding::kDitherTiles + lane() / kCalls) {
    const std::uint64_t from = tile_ * kTile, length = job.vectors.length_of(0, atom);
    const std::uint64_t behind = from < length ? length - from : 0;
    entries_ = static_cast<std::uint32_t>(behind < kTile ? behind : kTile);
    y_ = y + atom * job.vectors.of[0].length + from + pair();
    vector_ = entries_ == kTile && reinterpret_cast<std::uintptr_t>(y_) % 16 == 0;
    for (unsigned part = 0; part < 2; ++part) {
      const float* const at = y_ + part * half();
      if (vector_) {
        const float4 four = *reinterpret_cast<const float4*>(at);
        sum_[part][0] = four.x, sum_[part][1] = four.y;
        sum_[part][2] = four.z, sum_[part][3] = four.w;
      } else {
#pragma unroll
        for (unsigned k = 0; k < kLaneDuos; ++k) sum_[part][k] = has(part, k) ? at[k] : 0.0f;
      }
    }
  }

  [[nodiscard]] __device__ std::uint64_t tile() const { return tile_; }
  /// The lane's first pair of the tile, and how many of them the tile has.
  [[nodiscard]] __device__ std::uint32_t pair() const { return kLaneDuos * (lane() % kCalls); }
  [[nodiscard]] __device__ std::uint32_t pairs() const {
    return half() > pair() ? half() - pair() : 0;
  }
  __device__ void add(unsigned k, float v0, float v1, float alpha) {
    sum_[0][k] = sum_[0][k] + (alpha * v0);
    sum_[1][k] = sum_[1][k] + (alpha * v1);
  }
  __device__ void store() const {
    for (unsigned part = 0; part < 2; ++part) {
      float* const at = y_ + part * half();
      if (vector_) {
        *reinterpret_cast<float4*>(at) =
            make_float4(sum_[part][0], sum_[part][1], sum_[part][2], sum_[part][3]);
      } else {
#pragma unroll
        for (unsigned k = 0; k < kLaneDuos; ++k)
          if (has(part, k)) at[k] = sum_[part][k];
      }
    }
  }

 private:
  [[nodiscard]] __device__ std::uint32_t half() const { return (entries_ + 1) / 2; }
  [[nodiscard]] __device__ bool has(unsigned part, unsigned k) const {
    return k < pairs() && part * half() + pair() + k < entries_;
  }

  std::uint64_t tile_;
  std::uint32_t entries_;
  float* y_;  ///< the lane's first entry
  bool vector_;
  float sum_[2][kLaneDuos];
};

/// The words of a lane's four pairs, two in 32 bits.
struct LaneWords {
  std::uint32_t two[kLaneDuos / 2] = {};

  /// Those from `count` on are not there.
  __device__ LaneWords(const std::uint16_t* from, std::uint32_t count) {
    if (count >= kLaneDuos && reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {
      const uint2 four = *reinterpret_cast<const uint2*>(from);
      two[0] = four.x, two[1] = four.y;
      return;
    }
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k)
      two[k / 2] |= (k < count ? std::uint32_t{from[k]} : 0u) << (k % 2 * 16);
  }
  [[nodiscard]] __device__ std::uint32_t word(unsigned k) const {
    return (k < 2 ? two[0] : two[1]) >> (k % 2 * 16) & 0xFFFFu;
  }
  [[nodiscard]] __device__ std::int32_t first(unsigned k) const {
    return static_cast<std::int32_t>(two[k / 2] << (k % 2 == 0 ? 22 : 6)) >> 26;
  }
  [[nodiscard]] __device__ std::int32_t second(unsigned k) const {
    return static_cast<std::int32_t>(two[k / 2] << (k % 2 == 0 ? 16 : 0)) >> 26;
  }
  /// A bit for each that stands for its place.
  [[nodiscard]] __device__ std::uint32_t places() const {
    std::uint32_t places = 0;
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k)
      places |= (two[k / 2] & 0x3F0u << (k % 2 * 16)) == kPlaceMark << (k % 2 * 16) ? 1u << k : 0;
    return places;
  }
};

/// What a lane adds of a message.
struct LaneMessage {
  const Frames& frames;
  const DecodePlan& plan;
  std::uint32_t job, message;
  std::uint64_t atom;
  float step, unrange;
  std::uint32_t swaps;

  /// `beside`: what stands beside the tile; `levels`: those of the four pairs.
  __device__ void add(const LaneWords& words, const std::uint64_t* beside,
                      const std::uint32_t (&level)[kLaneDuos], float alpha, ChunkSums& sums) const {
    std::int32_t q0[kLaneDuos], q1[kLaneDuos];
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      const std::int32_t h0 = words.first(k), h1 = words.second(k);
      const bool swapped = (level[k] & swaps) != 0;
      q0[k] = swapped ? h1 : h0, q1[k] = swapped ? h0 : h1;
    }
#pragma unroll 1
    for (std::uint32_t left = words.places(); left != 0; left &= left - 1) {
      const auto own = static_cast<unsigned>(__ffs(static_cast<int>(left)) - 1);
      const std::uint64_t stands = *beside;
      std::int32_t n0 = number_of(stands, 0), n1 = number_of(stands, 1);
      if ((stands & kOnePair) == 0) {
        const std::uint32_t of =
            own < 2 ? (own == 0 ? level[0] : level[1]) : (own == 2 ? level[2] : level[3]);
        const DuoRead again =
            read_again(frames[message], plan, job, atom, stands, words.word(own), of);
        n0 = again.q0, n1 = again.q1;
      }
#pragma unroll
      for (unsigned k = 0; k < kLaneDuos; ++k) {
        q0[k] = k == own ? n0 : q0[k];
        q1[k] = k == own ? n1 : q1[k];
      }
    }
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k)
      sums.add(k, math::dequantise<float>(q0[k], level[k], step) * unrange,
               math::dequantise<float>(q1[k], level[k] ^ math::kMateDither, step) * unrange, alpha);
  }
};

/// By a whole warp: what lanes know of the chunks from `chunk` on, `there` of them, and of `count` messages;
/// draws their levels.
__device__ DrawnAtom draw_levels(const Frames& frames, const DecodePlan& plan, std::uint32_t number,
                                 std::uint64_t chunk, std::uint32_t there, std::uint32_t first,
                                 std::uint32_t count, WarpLevels& levels) {
  const std::uint32_t drawn = lane() / (kLanes / kDrawn);
  const std::uint32_t slot = lane() / kCalls % kDecodedTogether, call = lane() % kCalls;
  DrawnAtom own;
  if (drawn >= there || slot >= count) return own;
  const Frame frame = frames[first + slot];
  const AtomVector& vector = frame(plan.jobs)[number].vectors.of[0];
  const BodyState& state = frame(plan.bodies.states)[number];
  const std::uint64_t atom = (chunk + drawn) / vector.chunks();
  const std::uint64_t part = (chunk + drawn) % vector.chunks();
  if (state.stands == 0 || state.faults != 0) return own;
  own.kept = frame(plan.bodies.classes)[frame(plan.bodies.jobs)[number].first_kept + atom];
  if (own.kept == 0) return own;
  const AtomContent content = content_of(frame, plan, number);
  const LaneVector v = vector_of(content, atom, own.kept - 1, 0);
  own.step = v.step, own.unrange = content.unrange;
  own.swaps = 8u & (v.coding.level_mask + 1u);
  const PhiloxWords words = Philox(frame.key(content.job.layer), vector.dither)(
      4 * vector.level_base(atom, part * coding::kDitherTiles) + call);
  for (unsigned w = 0; w < 4; ++w) levels.word[drawn][slot][4 * w + call] = words[w];
  return own;
}

/// By a whole warp: adds up to kDrawn chunks.
__device__ void add_chunks(const Frames& frames, const DecodePlan& plan, std::uint32_t number,
                           std::uint64_t chunk, std::uint32_t there, std::uint32_t first,
                           std::uint32_t count, float alpha, WarpLevels& levels) {
  constexpr unsigned kOfChunk = kLanes / kDrawn;
  const Frame& frame = frames.first;
  const DecodeJob& job = frame(plan.jobs)[number];
  const AtomVector& vector = job.vectors.of[0];
  __syncwarp();  // the levels before were read
  const DrawnAtom own = draw_levels(frames, plan, number, chunk, there, first, count, levels);
  const std::uint32_t kept = __ballot_sync(kAllLanes, own.kept != 0 && lane() % kCalls == 0);
  __syncwarp();
  const unsigned shift = 4 * (lane() / kCalls);
#pragma unroll 1
  for (std::uint32_t c = 0; c < there; ++c) {
    std::uint32_t left = kept >> (c * kOfChunk) & ((1u << kOfChunk) - 1);
    if (left == 0) continue;
    const std::uint64_t atom = (chunk + c) / vector.chunks();
    ChunkSums sums(job, frame.layer(job.layer).y, atom, (chunk + c) % vector.chunks());
    const std::uint32_t pairs = sums.pairs();
    const std::uint16_t* const words =
        in_one(frame(plan.room.words) + job.first_duo + atom * vector.duos() +
               sums.tile() * kTileDuos + sums.pair());
    const std::uint64_t* const beside =
        frame(plan.room.starts) + job.first_tile + atom * vector.tiles + sums.tile();
    const std::uint32_t* const drawn = &levels.word[c][0][sums.pair()];
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const auto from = static_cast<std::uint32_t>(__ffs(static_cast<int>(left)) - 1);
      const std::uint32_t m = from / kCalls;
      const int source = static_cast<int>(c * kOfChunk + from);
      const float step = __shfl_sync(kAllLanes, own.step, source),
                  unrange = __shfl_sync(kAllLanes, own.unrange, source);
      const std::uint32_t swaps = __shfl_sync(kAllLanes, own.swaps, source);
      if (pairs == 0) continue;
      const uint4 draws = *reinterpret_cast<const uint4*>(drawn + m * kTileDuos);
      const std::uint32_t level[kLaneDuos] = {draws.x >> shift & 15u, draws.y >> shift & 15u,
                                              draws.z >> shift & 15u, draws.w >> shift & 15u};
      const LaneWords own_words(words + m * plan.room.of_message, pairs);
      const LaneMessage message{frames, plan, number, first + m, atom, step, unrange, swaps};
      message.add(own_words, beside + m * plan.room.tiles_of_message, level, alpha, sums);
    }
    if (pairs != 0) sums.store();
  }
}

__global__ void add_words(const Frames frames, const DecodePlan plan, const float alpha,
                          const std::uint32_t first, const std::uint32_t count) {
  const UnitOf at = unit_of_warp(frames.first, plan.chunks);
  if (!at) return;
  const DecodeJob& job = frames.first(plan.jobs)[at.job];
  const std::uint64_t all = job.vectors.of[0].chunks() * job.vectors.atoms;
  const std::uint64_t begin = at.index * kChunksOfUnit;
  const std::uint64_t end = all - begin < kChunksOfUnit ? all : begin + kChunksOfUnit;
  for (std::uint64_t chunk = begin; chunk < end; chunk += kDrawn) {
    const auto there = static_cast<std::uint32_t>(end - chunk < kDrawn ? end - chunk : kDrawn);
    add_chunks(frames, plan, at.job, chunk, there, first, count, alpha,
               shared<BlockLevels>().of[warp_in_block()]);
  }
}

}  // namespace

void decode_together(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  if (plan.chunks.units == 0) return;
  const unsigned warps = std::min(warps_per_block, kWarps);
  const std::uint64_t blocks = divide_up(plan.bodies.groups.units, warps);
  for (std::uint32_t first = 0; first < frames.count; first += kDecodedTogether) {
    const std::uint32_t count = std::min(frames.count - first, kDecodedTogether);
    queue.launch_blocks_each(find_words, blocks, count, warps * kLanes, 0, frames, plan, first);
    queue.launch_warps(add_words, plan.chunks.units, frames, plan, into.alpha, first, count);
  }
}

}  // namespace atomo::cuda::atoms
