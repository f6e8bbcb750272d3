// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The levels of a body of coordinates, segment by segment; nothing of a body is trusted. Its
/// layout stands in FORMAT.md, "coordinate".

#include "core/bits.hpp"
#include "format/coordinate_body.hpp"

namespace atomo::cpu {

/// A walk through the bits of a segment, upward or downward.
template <Direction direction>
struct SegmentStream {
  BitReader in;
  std::uint64_t bit;

  [[nodiscard]] auto window() const noexcept {
    if constexpr (direction == Direction::upward) {
      return UpwardWindow{in.peek(bit)};
    } else {
      return DownwardWindow{in.peek_below(bit)};
    }
  }
  void move(unsigned count) noexcept {
    bit = direction == Direction::upward ? bit + count : bit - count;
  }
  /// 1 for minus.
  std::int64_t read_sign() noexcept {
    const auto sign = static_cast<std::int64_t>(window().field(0, 1));
    move(1);
    return sign;
  }
  /// `base` and what a word adds to it; false when it breaks the format.
  bool read_level(unsigned level_bits, std::uint32_t base, unsigned k,
                  std::int64_t& level) noexcept {
    bool canonical = true;
    const std::uint64_t v =
        base + (level_bits == kLevelBits ? read_rice(*this, k, kLevelBits, canonical)
                                         : read_wide_rice(*this, k, level_bits, canonical));
    level = static_cast<std::int64_t>(v);
    return canonical && v >> level_bits == 0;
  }
};

/// Without a branch: signs are anyone's guess.
inline std::int64_t with_sign(std::int64_t level, std::int64_t sign) noexcept {
  return (level ^ -sign) + sign;
}

/// Calls found(place, signed level) for what a list holds; false when it breaks the format.
template <bool with_levels, Direction direction, typename Found>
bool read_list(SegmentStream<direction>& stream, const SegmentWord& word, std::size_t m,
               unsigned gap_k, std::uint32_t base, Found found) noexcept {
  SegmentStream<direction> in = stream;  // a copy the compiler can keep in registers
  bool canonical = true;
  for (std::size_t place = 0;; ++place) {
    place += read_rice(in, gap_k, kGapRawBits, canonical);
    if (!canonical || place > m) return false;
    if (place == m) break;
    const std::int64_t sign = in.read_sign();
    std::int64_t level = base;
    if (with_levels && !in.read_level(word.level_bits, base, word.level, level)) return false;
    if (!found(place, with_sign(level, sign))) return false;
  }
  stream = in;
  return true;
}

template <typename Found>
bool read_dense(SegmentStream<Direction::upward>& in, const SegmentWord& word, std::size_t m,
                Found found) noexcept {
  for (std::size_t i = 0; i < m; ++i) {
    std::int64_t level = 0;
    if (!in.read_level(word.level_bits, 0, word.level, level)) return false;
    if (level == 0) continue;
    if (!found(i, with_sign(level, in.read_sign()))) return false;
  }
  return true;
}

/// Reads a segment of m entries whose bytes begin `data`; `data` holds at least `word.bytes`.
/// Calls found(place, signed level) once for every level that is not 0; a false answer, or a broken
/// rule, makes the whole false.
template <typename Found>
bool read_segment(ConstBytes data, SegmentWord word, std::size_t m, Found found) noexcept {
  std::uint64_t first = 0;
  if (word.wide()) {
    if (!word.take_second(load_le<std::uint32_t>(data.data()))) return false;
    first = 8 * kSegmentWordBytes;
  }
  const BitReader in(data.data(), word.bytes);
  SegmentStream<Direction::upward> up{in, first};
  SegmentStream<Direction::downward> down{in, 8 * std::uint64_t{word.bytes}};
  bool good = true;
  switch (word.mode) {
    case SegmentMode::zero:
      return true;
    case SegmentMode::one_list:
      good = read_list<true>(up, word, m, word.others, 1, found);
      break;
    case SegmentMode::two_lists: {
      // No place may stand in both lists.
      std::uint64_t taken[kCoordinateSegment / 64] = {};
      const auto once = [&](std::size_t place, std::int64_t level) {
        const std::uint64_t mask = std::uint64_t{1} << (place % 64);
        if ((taken[place / 64] & mask) != 0) return false;
        taken[place / 64] |= mask;
        return found(place, level);
      };
      good = read_list<false>(up, word, m, word.ones, 1, once) &&
             read_list<true>(down, word, m, word.others, 2, once);
      break;
    }
    case SegmentMode::dense:
      good = read_dense(up, word, m, found);
      break;
  }
  // Exactly the stated bytes, with zeros in less than one between or behind the streams.
  if (!good || up.bit > down.bit || down.bit - up.bit >= 8) return false;
  return in.bits(up.bit, static_cast<unsigned>(down.bit - up.bit)) == 0;
}

/// The words of a body's segments.
struct SegmentTable {
  ConstBytes body;
  std::size_t segments = 0;

  [[nodiscard]] std::uint64_t bytes() const noexcept { return segments * kSegmentWordBytes; }
  [[nodiscard]] SegmentWord word(std::size_t s) const noexcept {
    return SegmentWord::unpack(load_le<std::uint32_t>(body.data() + s * kSegmentWordBytes));
  }
  /// Every word is valid and the segments fill the body exactly; not every one is zero.
  [[nodiscard]] bool valid() const noexcept {
    if (body.size() / kSegmentWordBytes < segments) return false;
    std::uint64_t end = bytes();
    for (std::size_t s = 0; s < segments; ++s) {
      const SegmentWord w = word(s);
      if (!w.valid()) return false;
      end += w.bytes;
    }
    return end == body.size() && end > bytes();
  }
};

}  // namespace atomo::cpu
