// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A strand as a lane reads it: four pairs at once out of a window of 64 bits.
///
/// The words of the code follow from each other, so a lane waits for each look-up. The rest does not wait
/// with it: the words of the stream are loaded at least a window before they are needed, each of them
/// once, and numbers behind words are read where the window has them.

#include "cuda/atom_strands.cuh"
#include "cuda/short_words.cuh"

namespace atomo::cuda::atoms {

/// Pairs that a lane looks up or adds at once.
inline constexpr unsigned kLaneDuos = 4;

/// The 32-bit words of a lane's strand, each with the bit that comes first highest, but for the last, which may
/// still be on its way. A damaged strand may leave its group; outside of the body there are zeros.
class StrandStream {
 public:
  __device__ StrandStream(const BodyBytes& body, const UnitStrand& own)
      : step_(not_ahead(own.upward ? 4u : ~3u)) {
    const auto begin = reinterpret_cast<std::uintptr_t>(body.begin);
    const std::uint64_t bit =
        8 * (begin % 4) + own.start + (own.upward ? 0 : std::uint64_t{own.length} + 31);
    // Of the word of the strand's first bit, from the body's begin.
    const std::int64_t at = static_cast<std::int64_t>(bit / 32 * 4) - (own.upward ? 0 : 4) -
                            static_cast<std::int64_t>(begin % 4);
    const std::int64_t behind = static_cast<std::int64_t>(body.bytes) - at;
    const std::int64_t skipped = at > kReach ? at - kReach : 0;
    const std::int64_t bytes = (behind < kReach ? behind : kReach) + (at - skipped);
    from_ = in_one(body.begin + skipped);
    bytes_ = static_cast<std::uint32_t>(bytes > 0 ? bytes : 0);
    at_ = static_cast<std::uint32_t>(at - skipped);
    used_ = static_cast<unsigned>(own.upward ? bit % 32 : 31 - bit % 32);
    for (unsigned k = 0; k < 3; ++k) word_[k] = in_order(load());
    word_[3] = load();
  }

  [[nodiscard]] __device__ bool upward() const { return step_ == 4; }
  /// Bits that were passed.
  [[nodiscard]] __device__ std::uint32_t passed() const { return passed_; }
  /// The next 64 bits, the first the highest.
  [[nodiscard]] __device__ std::uint64_t window() const {
    return std::uint64_t{__funnelshift_l(word_[1], word_[0], used_)} << 32 |
           __funnelshift_l(word_[2], word_[1], used_);
  }
  /// Goes on by at most 64 bits.
  __device__ void pass(std::uint32_t bits) {
    passed_ += bits;
    used_ += bits;
    if (used_ >= 64) {
      word_[0] = word_[2], word_[1] = in_order(word_[3]);
      word_[2] = in_order(load());
      word_[3] = load();
    } else if (used_ >= 32) {
      word_[0] = word_[1], word_[1] = word_[2], word_[2] = in_order(word_[3]);
      word_[3] = load();
    }
    used_ %= 32;
  }

 private:
  /// Bytes on either side of the strand's begin, more than a group has.
  static constexpr std::int64_t kReach = 1 << 16;

  [[nodiscard]] __device__ std::uint32_t in_order(std::uint32_t word) const {
    return upward() ? __brev(word) : word;
  }
  /// The next word as it is in memory.
  __device__ std::uint32_t load() {
    const std::uint32_t at = at_;
    at_ += step_;
    if (at < bytes_ && bytes_ - at >= 4) return *reinterpret_cast<const std::uint32_t*>(from_ + at);
    std::uint32_t word = 0;
#pragma unroll 1
    for (unsigned k = 0; k < 4; ++k) {
      if (at + k < bytes_) word |= static_cast<std::uint32_t>(from_[at + k]) << (8 * k);
    }
    return word;
  }

  const std::byte* from_;  ///< what offsets count from
  std::uint32_t bytes_;    ///< that are there from it on
  std::uint32_t at_;       ///< of the next word, of which some may be before `from_`
  std::uint32_t word_[4];
  unsigned used_;  ///< bits of the first word
  std::uint32_t passed_ = 0;
  std::uint32_t step_;  ///< bytes to the next word, 4 upward, -4 downward
};

/// The level draws of the eight tiles around a lane's, 16 nibbles a tile, the first pair's lowest.
using LaneLevels = std::uint64_t[coding::kDitherTiles][kLanes];

/// Of the lane's tiles. A draw has the levels of a pair in these tiles; they change places.
__device__ inline void draw_levels(const Philox& draws, std::uint64_t base, LaneLevels& levels) {
  std::uint32_t word[kTileDuos];
  draw_dither(draws, base, word);
#pragma unroll
  for (unsigned step = 4; step != 0; step /= 2) {
    const unsigned shift = 4 * step;
    const std::uint32_t low = step == 4 ? 0x0000FFFFu : step == 2 ? 0x00FF00FFu : 0x0F0F0F0Fu;
#pragma unroll
    for (unsigned i = 0; i < kTileDuos; ++i) {
      if ((i & step) != 0) continue;
      const std::uint32_t moved = (word[i] >> shift ^ word[i + step]) & low;
      word[i + step] ^= moved;
      word[i] ^= moved << shift;
    }
  }
#pragma unroll
  for (unsigned u = 0; u < coding::kDitherTiles; ++u)
    levels[u][lane()] = std::uint64_t{word[coding::kDitherTiles + u]} << 32 | word[u];
}

/// Those of the lane's tile, a nibble a pair; 0 in a centred layer, for which nothing is drawn.
__device__ inline std::uint64_t levels_of(const AtomContent& c, const AtomVector& of,
                                          std::uint64_t atom, const StrandWalk& walk,
                                          LaneLevels& levels) {
  if (c.centred) return 0;
  const std::uint32_t in_draw = walk.tile % coding::kDitherTiles;
  if (walk.begins || in_draw == 0)
    draw_levels(Philox(c.frame.key(c.job.layer), of.dither), of.level_base(atom, walk.tile),
                levels);
  return levels[in_draw][lane()];
}

/// Pairs as they are looked up behind one another: as many as there are and the window has, one at least.
struct LaneDuos {
  std::uint64_t window;
  std::uint32_t levels;  ///< of the pairs, a nibble each, the first's lowest
  std::uint32_t entry[kLaneDuos];
  std::uint32_t count = kLaneDuos, bits = 0;
  bool more;  ///< whether some may have numbers behind their words

  /// `left`: how many pairs there are.
  __device__ LaneDuos(const StrandStream& strand, const LaneVector& of, const WordTable& table,
                      std::uint32_t levels, std::uint32_t left)
      : window(strand.window()), levels(levels), more(of.coding.raw != 0) {
    std::uint64_t rest = window;
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      entry[k] = table.look(level(k), static_cast<std::uint32_t>(rest >> 32));
      const std::uint32_t own = bits_of(of, entry[k]);
      more = more || is_escape(entry[k]);
      rest <<= own;
      bits += own;
    }
    if (left < kLaneDuos || bits > 64) stop(of, left);
  }

  [[nodiscard]] __device__ std::uint32_t level(unsigned k) const { return levels >> (4 * k) & 15u; }

  /// Calls visit(k, pair, begin) for each that has numbers behind its word, which begins at bit `begin`.
  template <typename Visit>
  __device__ void visit_more(const LaneVector& of, bool upward, Visit visit) const {
    std::uint32_t at = 0;
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      const std::uint32_t looked_up = entry[k];
      if (k < count && (of.coding.raw != 0 || is_escape(looked_up)))
        visit(k, duo_of(of.coding, of.escape_bits, level(k), looked_up, window << at, upward), at);
      at += bits_of(of, looked_up);
    }
  }

 private:
  /// Where not all of them are there.
  __device__ void stop(const LaneVector& of, std::uint32_t left) {
    std::uint32_t at = 0;
    count = bits = 0;
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      at += bits_of(of, entry[k]);
      if (k < left && at <= 64) count = k + 1, bits = at;
    }
  }

  /// The bits of a word and what is behind it.
  static __device__ std::uint32_t bits_of(const LaneVector& of, std::uint32_t looked_up) {
    const std::uint32_t word = looked_up & 15u, escaped = word + 2u * of.escape_bits,
                        coded = word + 2u * of.coding.raw;
    return is_escape(looked_up) ? escaped : coded;
  }
};

}  // namespace atomo::cuda::atoms
