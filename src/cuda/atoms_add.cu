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
/// The words of the next message are on their way while one is added.
///
/// Shared memory: 1 KiB a warp. Determinism: every entry is one lane's, in order of messages.
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
static_assert(kDrawn * kDecodedTogether * kCalls == kLanes && kCalls == kLaneDuos);

/// What lanes need to add four pairs of a message's atom: the draws of their levels, and what is the same for
/// all of its pairs.
struct alignas(16) DrawnDuos {
  std::uint32_t draw[kLaneDuos];  ///< of a centred layer the offset of centroids, in every nibble
  float step;                     ///< below zero in a centred layer: a register less than a flag
  float unrange;
  std::uint32_t swaps;  ///< bit of the level that exchanges the numbers

  [[nodiscard]] __device__ bool centred() const { return step < 0; }
};
struct WarpLevels {
  DrawnDuos of[kDrawn][kDecodedTogether][kCalls];
};
struct BlockLevels {
  WarpLevels of[kMaxWarps];
};

/// A chunk: of which atom, and which of its chunks.
struct ChunkPlace {
  std::uint64_t atom;
  std::uint32_t part;

  /// `chunks`: of an atom.
  __device__ void go_on(std::uint32_t chunks) {
    if (++part < chunks) return;
    part = 0;
    ++atom;
  }
};

/// Up to eight tiles of an atom, four pairs a lane: eight entries.
class ChunkSums {
 public:
  __device__ ChunkSums(const DecodeJob& job, float* y, const ChunkPlace& place)
      : tile_(place.part * coding::kDitherTiles + lane() / kCalls) {
    const std::uint32_t from = tile_ * kTile,  // vectors are short: kMaxVectorEntries
        length = static_cast<std::uint32_t>(job.vectors.length_of(0, place.atom));
    const std::uint32_t behind = from < length ? length - from : 0;
    entries_ = behind < kTile ? behind : kTile;
    y_ = y + place.atom * job.vectors.of[0].length + from + pair();
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

  [[nodiscard]] __device__ std::uint32_t tile() const { return tile_; }
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
        *reinterpret_cast<float4*>(in_one(at)) =
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

  std::uint32_t tile_;
  std::uint32_t entries_;
  float* y_;  ///< the lane's first entry
  bool vector_;
  float sum_[2][kLaneDuos];
};

/// The words of a lane's four pairs, two in 32 bits.
struct LaneWords {
  std::uint32_t two[kLaneDuos / 2];

  /// An atom has room for four words where it has one.
  __device__ explicit LaneWords(const std::uint16_t* from) {
    const uint2 four = *reinterpret_cast<const uint2*>(from);
    two[0] = four.x, two[1] = four.y;
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
  /// A bit for each of the first `count` that stands for its place.
  [[nodiscard]] __device__ std::uint32_t places(std::uint32_t count) const {
    std::uint32_t places = 0;
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) places |= first(k) == kEscapeCell ? 1u << k : 0;
    return places & ((1u << count) - 1);
  }
  /// Whether there may be any.
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
  std::uint32_t job, number;
  std::uint64_t atom;
  const DrawnDuos& drawn;

  /// `beside`: what stands beside the tile; `levels`: those of the four pairs.
  __device__ void add(const LaneWords& words, const std::uint64_t* beside,
                      const std::uint32_t (&level)[kLaneDuos], float alpha, ChunkSums& sums) const {
    std::int32_t q0[kLaneDuos], q1[kLaneDuos];
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      const std::int32_t h0 = words.first(k), h1 = words.second(k);
      const bool swapped = (level[k] & drawn.swaps) != 0;
      q0[k] = swapped ? h1 : h0, q1[k] = swapped ? h0 : h1;
    }
    std::uint32_t left = words.has_places() ? words.places(sums.pairs()) : 0;
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const auto own = static_cast<unsigned>(__ffs(static_cast<int>(left)) - 1);
      const std::uint64_t stands = *beside;
      std::int32_t n0 = number_of(stands, 0), n1 = number_of(stands, 1);
      if ((stands & kOnePair) == 0) {
        const std::uint32_t of =
            own < 2 ? (own == 0 ? level[0] : level[1]) : (own == 2 ? level[2] : level[3]);
        const DuoRead again =
            read_again(frames[number], plan, job, atom, stands, words.word(own), of);
        n0 = again.q0, n1 = again.q1;
      }
#pragma unroll
      for (unsigned k = 0; k < kLaneDuos; ++k) {
        q0[k] = k == own ? n0 : q0[k];
        q1[k] = k == own ? n1 : q1[k];
      }
    }
    if (drawn.centred()) {  // of all lanes alike
#pragma unroll
      for (unsigned k = 0; k < kLaneDuos; ++k) {
        q0[k] = math::centred_units(q0[k], static_cast<std::int32_t>(level[k]));
        q1[k] = math::centred_units(q1[k], static_cast<std::int32_t>(level[k]));
      }
    } else {
#pragma unroll
      for (unsigned k = 0; k < kLaneDuos; ++k) {
        q0[k] = math::dithered_units(q0[k], level[k]);
        q1[k] = math::dithered_units(q1[k], level[k] ^ math::kMateDither);
      }
    }
    const float step = std::fabs(drawn.step);
    float v0[kLaneDuos], v1[kLaneDuos];
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      v0[k] = math::value_of_units(q0[k], step);
      v1[k] = math::value_of_units(q1[k], step);
    }
    if (drawn.unrange != 1.0f) {  // of all lanes alike
#pragma unroll
      for (unsigned k = 0; k < kLaneDuos; ++k) v0[k] *= drawn.unrange, v1[k] *= drawn.unrange;
    }
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) sums.add(k, v0[k], v1[k], alpha);
  }
};

/// By a whole warp: draws the levels of the chunks from `place` on, `there` of them, and of `count` messages;
/// each lane's answer is whether the message keeps the atom.
__device__ bool draw_levels(const Frames& frames, const DecodePlan& plan, std::uint32_t number,
                            ChunkPlace place, std::uint32_t there, std::uint32_t first,
                            std::uint32_t count, WarpLevels& levels) {
  const std::uint32_t drawn = lane() / (kLanes / kDrawn);
  const std::uint32_t slot = lane() / kCalls % kDecodedTogether, call = lane() % kCalls;
  if (drawn >= there || slot >= count) return false;
  const Frame frame = frames[first + slot];
  const AtomVector& vector = frame(plan.jobs)[number].vectors.of[0];
  const BodyState& state = frame(plan.bodies.states)[number];
  static_assert(kDrawn == 2);
  if (drawn != 0) place.go_on(static_cast<std::uint32_t>(vector.chunks()));
  if (state.stands == 0 || state.faults != 0) return false;
  const std::uint32_t kept =
      frame(plan.bodies.classes)[frame(plan.bodies.jobs)[number].first_kept + place.atom];
  if (kept == 0) return false;
  const AtomContent content = content_of(frame, plan, number);
  const LaneVector v = vector_of(content, place.atom, kept - 1, 0);
  PhiloxWords words;
  if (content.centred) {
    words.fill(0x11111111u * static_cast<std::uint32_t>(offset_of(content, kept - 1, 0)));
  } else {
    words = Philox(frame.key(content.job.layer), vector.dither)(
        4 * vector.level_base(place.atom, place.part * coding::kDitherTiles) + call);
  }
  auto& to = levels.of[drawn][slot];
  for (unsigned w = 0; w < 4; ++w) to[w].draw[call] = words[w];
  to[call].step = content.centred ? -v.step : v.step, to[call].unrange = content.unrange;
  to[call].swaps = 8u & (v.coding.level_mask + 1u);
  return true;
}

/// By a whole warp: adds up to kDrawn chunks from `place` on, which goes on.
__device__ void add_chunks(const Frames& frames, const DecodePlan& plan, std::uint32_t number,
                           ChunkPlace& place, std::uint32_t there, std::uint32_t first,
                           std::uint32_t count, float alpha, WarpLevels& levels) {
  constexpr unsigned kOfChunk = kLanes / kDrawn;
  const Frame& frame = frames.first;
  const DecodeJob& job = frame(plan.jobs)[number];
  const AtomVector& vector = job.vectors.of[0];
  __syncwarp();  // the levels before were read
  const bool keeps = draw_levels(frames, plan, number, place, there, first, count, levels);
  const std::uint32_t kept = __ballot_sync(kAllLanes, keeps && lane() % kCalls == 0);
  __syncwarp();
  const unsigned shift = 4 * (lane() / kCalls);
#pragma unroll 1
  for (std::uint32_t c = 0; c < there;
       ++c, place.go_on(static_cast<std::uint32_t>(vector.chunks()))) {
    std::uint32_t left = kept >> (c * kOfChunk) & ((1u << kOfChunk) - 1);
    if (left == 0) continue;
    ChunkSums sums(job, frame.layer(job.layer).y, place);
    const std::uint32_t pairs = sums.pairs();
    if (pairs == 0) continue;
    const std::uint16_t* const words =
        in_one(frame(plan.room.words) + job.first_duo + place.atom * vector.duos() +
               sums.tile() * kTileDuos + sums.pair());
    const std::uint64_t* const beside =
        in_one(frame(plan.room.starts) + job.first_tile + place.atom * vector.tiles + sums.tile());
    const DrawnDuos* const drawn = in_one(&levels.of[c][0][lane() % kCalls]);
    const auto slot_of = [](std::uint32_t kept_by) {
      return static_cast<std::uint32_t>(__ffs(static_cast<int>(kept_by)) - 1) / kCalls;
    };
    std::uint32_t m = slot_of(left);
    LaneWords ahead(words + m * plan.room.of_message);
#pragma unroll 1
    do {
      const LaneWords own_words = ahead;
      const std::uint32_t slot = m;
      left &= left - 1;
      if (left != 0) {  // on their way while these are added
        m = slot_of(left);
        ahead = LaneWords(words + m * plan.room.of_message);
      }
      const DrawnDuos own = drawn[slot * kCalls];
      const std::uint32_t level[kLaneDuos] = {
          own.draw[0] >> shift & 15u, own.draw[1] >> shift & 15u, own.draw[2] >> shift & 15u,
          own.draw[3] >> shift & 15u};
      const LaneMessage message{frames, plan, number, first + slot, place.atom, own};
      message.add(own_words, beside + slot * plan.room.tiles_of_message, level, alpha, sums);
    } while (left != 0);
    sums.store();
  }
}

__global__ void add_words(const Frames frames, const DecodePlan plan, const float alpha,
                          const std::uint32_t first, const std::uint32_t count) {
  const UnitOf at = unit_of_warp(frames.first, plan.chunks);
  if (!at) return;
  const DecodeJob& job = frames.first(plan.jobs)[at.job];
  const std::uint64_t of_atom = job.vectors.of[0].chunks(), all = of_atom * job.vectors.atoms;
  const std::uint64_t begin = at.index * kChunksOfUnit;
  auto left = static_cast<std::uint32_t>(all - begin < kChunksOfUnit ? all - begin : kChunksOfUnit);
  ChunkPlace place{begin / of_atom, static_cast<std::uint32_t>(begin % of_atom)};
  while (left != 0) {
    const std::uint32_t there = left < kDrawn ? left : kDrawn;
    add_chunks(frames, plan, at.job, place, there, first, count, alpha,
               shared<BlockLevels>().of[warp_in_block()]);
    left -= there;
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
