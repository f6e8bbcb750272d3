// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The word that heads a segment of coordinates (its bytes and how they are to be read), and how an
/// encoder chooses it. Sums of messages may have levels of 2^29 and more: a segment with such
/// levels is wide, its content begins with a second word.

#include <cstddef>
#include <cstdint>

#include "coding/rice.hpp"
#include "math/grid_rounding.hpp"

namespace atomo::format {

enum class SegmentMode : std::uint32_t {
  zero = 0,       ///< every level is zero; the whole word is 0
  one_list = 1,   ///< the entries that are not zero
  two_lists = 2,  ///< those of level 1, then the larger ones
  dense = 3,      ///< every level
};

inline constexpr unsigned kGapRawBits = 16;  ///< gaps go up to 32,768: the end of an empty list
inline constexpr unsigned kMaxGapRice = 15;  ///< Rice parameters of gaps
inline constexpr unsigned kMaxLevelRice = kLevelBits;  ///< and of levels
inline constexpr unsigned kWideMark = 31;  ///< in place of a wide segment's parameter of levels
inline constexpr std::uint32_t kMaxWideBytes = (std::uint32_t{1} << 27) - 1;
inline constexpr std::size_t kSegmentWordBytes = 4;  ///< of either word

struct SegmentWord {
  std::uint32_t bytes = 0;
  SegmentMode mode = SegmentMode::zero;
  unsigned ones = 0;    ///< Rice parameter of the gaps of the level-1 list
  unsigned others = 0;  ///< of the gaps of the other list
  unsigned level = 0;   ///< of the levels
  /// Levels are below 2^level_bits. 0 in a wide segment whose second word is still to be read.
  unsigned level_bits = kLevelBits;

  [[nodiscard]] constexpr bool wide() const noexcept { return level_bits != kLevelBits; }
  [[nodiscard]] constexpr std::uint32_t pack() const noexcept {
    if (wide()) return bytes | kWideMark << 27;
    return bytes | static_cast<std::uint32_t>(mode) << 17 | ones << 19 | others << 23 | level << 27;
  }
  /// The second word of a wide segment.
  [[nodiscard]] constexpr std::uint32_t pack_second() const noexcept {
    return static_cast<std::uint32_t>(mode) | ones << 2 | others << 6 | level << 10 |
           level_bits << 16;
  }
  static constexpr SegmentWord unpack(std::uint32_t word) noexcept {
    if (word >> 27 == kWideMark) {
      SegmentWord wide;
      wide.bytes = word & kMaxWideBytes;
      wide.level_bits = 0;
      return wide;
    }
    return {word & 0x1FFFFu, static_cast<SegmentMode>(word >> 17 & 3),
            word >> 19 & 15, word >> 23 & 15,
            word >> 27,      kLevelBits};
  }
  /// Fields a mode does not use are zero, a segment that is not zero has bytes. Of a wide segment
  /// its second word says more.
  [[nodiscard]] constexpr bool valid() const noexcept {
    if (wide()) return bytes > kSegmentWordBytes;
    if (mode == SegmentMode::zero) return pack() == 0;
    return bytes > 0 && valid_fields();
  }
  /// Takes the second word of a wide segment; false when it breaks the format.
  constexpr bool take_second(std::uint32_t second) noexcept {
    mode = static_cast<SegmentMode>(second & 3);
    ones = second >> 2 & 15, others = second >> 6 & 15, level = second >> 10 & 63;
    level_bits = second >> 16;
    return mode != SegmentMode::zero && level_bits > kLevelBits && level_bits <= kWideLevelBits &&
           valid_fields();
  }

 private:
  [[nodiscard]] constexpr bool valid_fields() const noexcept {
    if (level > level_bits) return false;
    if (mode != SegmentMode::two_lists && ones != 0) return false;
    return mode != SegmentMode::dense || others == 0;
  }
};

/// A segment of `kCoordinateSegment` entries takes at most 31 bits an entry.
[[nodiscard]] constexpr std::size_t max_segment_bytes(std::size_t entries) noexcept {
  return (entries * (kLevelBits + 2) + 7) / 8;
}
static_assert(max_segment_bytes(kCoordinateSegment) <= 0x1FFFF);

/// Bytes at most of a segment whose levels have up to 53 bits: 55 bits an entry.
[[nodiscard]] constexpr std::size_t max_wide_segment_bytes(std::size_t entries) noexcept {
  return entries == 0 ? 0 : kSegmentWordBytes + (entries * (kWideLevelBits + 2) + 7) / 8;
}
static_assert(max_wide_segment_bytes(kCoordinateSegment) <= kMaxWideBytes);

[[nodiscard]] constexpr std::size_t segments_of(std::size_t n) noexcept {
  return n / kCoordinateSegment + (n % kCoordinateSegment != 0 ? 1 : 0);
}

/// Most bytes of a body of n entries, of a sum too.
[[nodiscard]] constexpr std::size_t max_wide_body_bytes(std::size_t n) noexcept {
  return segments_of(n) * kSegmentWordBytes +
         n / kCoordinateSegment * max_wide_segment_bytes(kCoordinateSegment) +
         max_wide_segment_bytes(n % kCoordinateSegment);
}

// ---- choosing

/// What the choice follows from, beside the words' lengths.
struct SegmentCounts {
  std::uint32_t entries = 0;
  std::uint32_t nonzero = 0;         ///< levels that are not 0
  std::uint32_t large = 0;           ///< levels above 1
  std::uint64_t total = 0;           ///< sum of levels; of a wide segment of level >> kWideShift
  unsigned level_bits = kLevelBits;  ///< more in a wide segment: the width of its largest level

  /// Wide totals are cut so that 32,768 levels of 53 bits fit; one of 2^29 is still far above what
  /// is cut of all.
  static constexpr unsigned kWideShift = 9;
  [[nodiscard]] constexpr unsigned shift() const noexcept {
    return level_bits > kLevelBits ? kWideShift : 0;
  }

  /// Lists cost at least a gap bit, a level bit and a sign an entry that is not zero, dense levels
  /// a bit each zero: lists are not tried where nearly all entries are not zero, dense levels where
  /// nearly all are.
  [[nodiscard]] constexpr bool tries_lists() const noexcept {
    return nonzero <= entries - entries / 8;
  }
  [[nodiscard]] constexpr bool tries_dense() const noexcept { return nonzero >= entries / 8; }
};

/// Rice words of a segment that share a parameter. The gaps of a list include its end mark.
enum SegmentSum : unsigned {
  kEveryGaps = 0,     ///< of entries that are not zero
  kEveryLevels = 1,   ///< their levels less 1
  kOnesGaps = 2,      ///< of levels of 1
  kOthersGaps = 3,    ///< of larger levels
  kOthersLevels = 4,  ///< these less 2
  kDenseLevels = 5,   ///< all levels
};
inline constexpr unsigned kSegmentSums = 6;
inline constexpr unsigned kRiceTries = 3;  ///< parameters in the longest range

/// The parameters that are tried for a sum.
[[nodiscard]] constexpr RiceRange sum_range(SegmentSum sum, const SegmentCounts& c) noexcept {
  const std::uint32_t m = c.entries, ones = c.nonzero - c.large;
  std::uint64_t count = m, taken_off = 0;  // words, and what their levels are less by
  bool gaps = false;
  switch (sum) {
    case kEveryGaps:
      count = c.nonzero, gaps = true;
      break;
    case kEveryLevels:
      count = taken_off = c.nonzero;
      break;
    case kOnesGaps:
      count = ones, gaps = true;
      break;
    case kOthersGaps:
      count = c.large, gaps = true;
      break;
    case kOthersLevels:
      count = c.large, taken_off = std::uint64_t{c.nonzero} + c.large;
      break;
    case kDenseLevels:
      break;
  }
  // One call, so that a warp whose lanes look at different sums divides once.
  return rice_range(gaps ? count + 1 : count, gaps ? m - count : c.total - (taken_off >> c.shift()),
                    gaps ? kMaxGapRice : c.level_bits, gaps ? 0 : c.shift());
}

struct SegmentPlan {
  SegmentWord word;  ///< without its bytes
  std::uint64_t bits = ~std::uint64_t{0};
  constexpr void offer(std::uint64_t cost, SegmentWord how) noexcept {
    if (cost < bits) {
      bits = cost;
      word = how;
    }
  }
};

/// The shortest way to write a segment that is not all zero, of equals the first. `choose(sum)` is the
/// RiceChoice of a sum. Dense levels under the largest parameter are the upper bound. The second word of
/// a wide segment is not counted.
template <typename Choose>
[[nodiscard]] constexpr SegmentPlan plan_chosen(const SegmentCounts& c, Choose choose) noexcept {
  const std::uint64_t signs = c.nonzero;
  SegmentPlan plan;
  const unsigned wide = c.level_bits;
  plan.offer((wide + 1) * std::uint64_t{c.entries} + signs,
             {0, SegmentMode::dense, 0, 0, wide, wide});
  if (c.tries_lists()) {
    const RiceChoice every = choose(kEveryGaps), sizes = choose(kEveryLevels);
    plan.offer(every.bits + sizes.bits + signs,
               {0, SegmentMode::one_list, 0, every.k, sizes.k, wide});
    const RiceChoice ones = choose(kOnesGaps), others = choose(kOthersGaps);
    const RiceChoice larger = choose(kOthersLevels);
    plan.offer(ones.bits + others.bits + larger.bits + signs,
               {0, SegmentMode::two_lists, ones.k, others.k, larger.k, wide});
  }
  if (c.tries_dense()) {
    const RiceChoice dense = choose(kDenseLevels);
    plan.offer(dense.bits + signs, {0, SegmentMode::dense, 0, 0, dense.k, wide});
  }
  return plan;
}

/// The same. `bits_at(sum, k)` is what a sum's words cost: at most 73 bits each, so it fits 32 bits.
template <typename BitsAt>
[[nodiscard]] constexpr SegmentPlan plan_segment(const SegmentCounts& c, BitsAt bits_at) noexcept {
  return plan_chosen(c, [&](SegmentSum sum) {
    return choose_rice(sum_range(sum, c), [&](unsigned k) { return bits_at(sum, k); });
  });
}

}  // namespace atomo::format
