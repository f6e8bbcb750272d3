// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The levels of a body of coordinates, segment by segment; nothing of a body is trusted. Its
/// layout stands in FORMAT.md, "coordinate".

#include "core/bits.hpp"
#include "format/coordinate_body.hpp"

namespace atomo::cpu {

/// Reads the levels of one segment.
struct LevelReader {
  const BitReader& in;
  unsigned level_bits;

  /// `base` and what a word adds to it; false when it breaks the format.
  bool read(std::uint64_t& bit, std::uint32_t base, unsigned k,
            std::int64_t& level) const noexcept {
    bool canonical = true;
    const std::uint64_t v =
        base + (level_bits == kLevelBits ? read_rice(in, bit, k, kLevelBits, canonical)
                                         : read_wide_rice(in, bit, k, level_bits, canonical));
    level = static_cast<std::int64_t>(v);
    return canonical && v >> level_bits == 0;
  }
};

/// Calls found(place, signed level) for what a list holds; false when it breaks the format.
template <typename Found>
bool read_list(const LevelReader& levels, std::uint64_t& bit, std::size_t m, unsigned gap_k,
               bool with_levels, std::uint32_t base, unsigned k, Found found) noexcept {
  bool canonical = true;
  for (std::size_t place = 0;; ++place) {
    place += read_rice(levels.in, bit, gap_k, kGapRawBits, canonical);
    if (!canonical || place > m) return false;
    if (place == m) return true;
    const bool negative = (levels.in.peek(bit++) & 1) != 0;
    std::int64_t level = base;
    if (with_levels && !levels.read(bit, base, k, level)) return false;
    if (!found(place, negative ? -level : level)) return false;
  }
}

template <typename Found>
bool read_dense(const LevelReader& levels, std::uint64_t& bit, std::size_t m, unsigned k,
                Found found) noexcept {
  for (std::size_t i = 0; i < m; ++i) {
    std::int64_t level = 0;
    if (!levels.read(bit, 0, k, level)) return false;
    if (level == 0) continue;
    const bool negative = (levels.in.peek(bit++) & 1) != 0;
    if (!found(i, negative ? -level : level)) return false;
  }
  return true;
}

/// Reads a segment of m entries whose bytes begin `data`; `data` holds at least `word.bytes`.
/// Calls found(place, signed level) once for every level that is not 0; a false answer, or a broken
/// rule, makes the whole false.
template <typename Found>
bool read_segment(ConstBytes data, SegmentWord word, std::size_t m, Found found) noexcept {
  std::uint64_t bit = 0;
  if (word.wide()) {
    if (!word.take_second(load_le<std::uint32_t>(data.data()))) return false;
    bit = 8 * kSegmentWordBytes;
  }
  const BitReader in(data.data(), word.bytes);
  const LevelReader levels{in, word.level_bits};
  bool good = true;
  switch (word.mode) {
    case SegmentMode::zero:
      return true;
    case SegmentMode::one_list:
      good = read_list(levels, bit, m, word.others, true, 1, word.level, found);
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
      good = read_list(levels, bit, m, word.ones, false, 1, 0, once) &&
             read_list(levels, bit, m, word.others, true, 2, word.level, once);
      break;
    }
    case SegmentMode::dense:
      good = read_dense(levels, bit, m, word.level, found);
      break;
  }
  // Exactly the stated bytes, the last one padded with zeros.
  return good && (bit + 7) / 8 == word.bytes && in.peek(bit) == 0;
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
