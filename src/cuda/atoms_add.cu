// SPDX-License-Identifier: Apache-2.0
/// Blocks and rows of several messages, added at once.
///
/// The mathematics is that of one message (atoms_decode.cu): y becomes y + (alpha * v), message by
/// message.
///
/// Mapping, two launches for up to four messages: atoms_find.cu, then add_words here. A warp adds up to
/// eight tiles of an atom, which share their level draws, and two such chunks after each other: a lane
/// draws for a message and chunk, then takes four pairs of a tile, eight entries, and adds what the
/// messages have for them. Atoms keep their order, whatever the groups of the messages are.
///
/// Traffic in bytes an entry: a byte of words a message, and 8 for the tensor whatever the number of
/// messages. Of atoms that no message keeps, nothing.
///
/// Shared memory: 512 bytes a warp. Determinism: every entry is one lane's, in order of messages.
/// Alignment: y is aligned to its entries; 16 bytes are read and written at once where it allows it.

#include "cuda/duo_words.cuh"

namespace atomo::cuda::atoms {
namespace {

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
    for (unsigned k = 0; k < kLaneDuos; ++k) places |= first(k) == kEscapeCell ? 1u << k : 0;
    return places;
  }
  /// Whether there are any.
  [[nodiscard]] __device__ bool has_places() const {
    // A half is zero where it is a place, which the subtraction then takes below zero.
    constexpr std::uint32_t kEach = 0x00010001u;
    const std::uint32_t low = (two[0] ^ kPlaceMark * kEach) & 0x3F0u * kEach;
    const std::uint32_t high = (two[1] ^ kPlaceMark * kEach) & 0x3F0u * kEach;
    return (((low - kEach) | (high - kEach)) & 0x8000u * kEach) != 0;
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
    std::uint32_t left = words.has_places() ? words.places() : 0;
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
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
    float v0[kLaneDuos], v1[kLaneDuos];
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      v0[k] = math::dequantise<float>(q0[k], level[k], step);
      v1[k] = math::dequantise<float>(q1[k], level[k] ^ math::kMateDither, step);
    }
    if (unrange != 1.0f) {  // of all lanes alike
#pragma unroll
      for (unsigned k = 0; k < kLaneDuos; ++k) v0[k] *= unrange, v1[k] *= unrange;
    }
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) sums.add(k, v0[k], v1[k], alpha);
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
  for (std::uint32_t first = 0; first < frames.count; first += kDecodedTogether) {
    const std::uint32_t left = frames.count - first;
    const std::uint32_t count = left < kDecodedTogether ? left : kDecodedTogether;
    find_words(frames, plan, first, count, queue);
    queue.launch_warps(add_words, plan.chunks.units, frames, plan, into.alpha, first, count);
  }
}

}  // namespace atomo::cuda::atoms
