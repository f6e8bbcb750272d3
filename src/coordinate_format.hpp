// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The word that heads a segment of coordinates: its bytes and how they are to be read.

#include <cstddef>
#include <cstdint>

#include "coordinate_math.hpp"
#include "rice.hpp"

namespace atomo::detail {

enum class SegmentMode : std::uint32_t {
  zero = 0,       ///< every level is zero; the whole word is 0
  one_list = 1,   ///< the entries that are not zero
  two_lists = 2,  ///< those of level 1, then the larger ones
  dense = 3,      ///< every level
};

inline constexpr unsigned kGapRawBits = 16;  ///< gaps go up to 32,768: the end of an empty list
inline constexpr unsigned kMaxGapRice = 15;  ///< Rice parameters of gaps
inline constexpr unsigned kMaxLevelRice = kLevelBits;  ///< and of levels

struct SegmentWord {
  std::uint32_t bytes = 0;
  SegmentMode mode = SegmentMode::zero;
  unsigned ones = 0;    ///< Rice parameter of the gaps of the level-1 list
  unsigned others = 0;  ///< of the gaps of the other list
  unsigned level = 0;   ///< of the levels

  [[nodiscard]] constexpr std::uint32_t pack() const noexcept {
    return bytes | static_cast<std::uint32_t>(mode) << 17 | ones << 19 | others << 23 | level << 27;
  }
  static constexpr SegmentWord unpack(std::uint32_t word) noexcept {
    return {word & 0x1FFFFu, static_cast<SegmentMode>(word >> 17 & 3), word >> 19 & 15,
            word >> 23 & 15, word >> 27};
  }
  /// Fields a mode does not use are zero, a segment that is not zero has bytes.
  [[nodiscard]] constexpr bool valid() const noexcept {
    if (mode == SegmentMode::zero) return pack() == 0;
    if (bytes == 0 || level > kMaxLevelRice) return false;
    if (mode != SegmentMode::two_lists && ones != 0) return false;
    return mode != SegmentMode::dense || others == 0;
  }
};

/// A segment of `kCoordinateSegment` entries takes at most 31 bits an entry.
[[nodiscard]] constexpr std::size_t max_segment_bytes(std::size_t entries) noexcept {
  return (entries * (kLevelBits + 2) + 7) / 8;
}
static_assert(max_segment_bytes(kCoordinateSegment) <= 0x1FFFF);

[[nodiscard]] constexpr std::size_t segments_of(std::size_t n) noexcept {
  return n / kCoordinateSegment + (n % kCoordinateSegment != 0 ? 1 : 0);
}

}  // namespace atomo::detail
