// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The price of coordinates to the bit, in parts that every implementation shares: bins of
/// magnitudes, the expected counts of levels at a step, the expected size of a body from these
/// counts, and the step that keeps a given count of entries.
///
/// A bin holds the magnitudes that share the upper 15 bits of |x|: 128 bins an octave. Expected
/// counts are integers in units of 2^-16 entry and linear in a bin's count, so it does not matter
/// whether equal magnitudes are counted together or one by one, nor in which order. Counts of
/// entries are below 2^41, in units below 2^57.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/bit_counts.hpp"
#include "format/coordinate_body.hpp"

namespace atomo::price {

inline constexpr std::uint32_t kMagnitudeBins = 0x7F80;  ///< of finite magnitudes
inline constexpr unsigned kUnitBits = 16;                ///< an entry is 2^16 units

/// The middle of a bin, exact.
[[nodiscard]] constexpr double bin_magnitude(std::uint32_t bin) noexcept {
  return std::bit_cast<float>(bin << 16 | 0x8000u);
}

/// An entry of a bin is at `level`, or one above with probability up * 2^-16.
struct LevelShare {
  std::uint32_t level, up;
};

/// `scale` is grid_scale(step).
[[nodiscard]] ATOMO_HD inline LevelShare share_of_bin(std::uint32_t bin, double scale) noexcept {
  const std::uint64_t fixed = grid_fixed(bin_magnitude(bin), scale);
  const std::uint64_t level = fixed >> 32;
  return {level < kMaxLevel ? static_cast<std::uint32_t>(level) : kMaxLevel - 1,
          static_cast<std::uint32_t>(fixed) >> 16};
}

// ---- levels: those below 64 one by one, then 8 bins an octave

inline constexpr std::uint32_t kExactLevels = 64;
inline constexpr std::size_t kLevelBins = kExactLevels + (kLevelBits - 6) * 8;

[[nodiscard]] constexpr std::uint32_t level_bin(std::uint32_t level) noexcept {
  if (level < kExactLevels) return level;
  const auto top = static_cast<unsigned>(core::bit_width(level)) - 1;
  return kExactLevels + (top - 6) * 8 + (level >> (top - 3) & 7);
}

/// The middle of a bin.
[[nodiscard]] constexpr std::uint32_t level_of_bin(std::uint32_t bin) noexcept {
  if (bin < kExactLevels) return bin;
  const std::uint32_t at = bin - kExactLevels;
  const unsigned top = at / 8 + 6;
  return (8 + at % 8) << (top - 3) | 1u << (top - 4);
}

// ---- size, in 1/256 bit

/// count * bits_256 / 2^16 without overflow: bits_256 < 2^14.
[[nodiscard]] constexpr std::uint64_t scaled(std::uint64_t count, std::uint64_t bits_256) noexcept {
  return (count >> kUnitBits) * bits_256 + ((count & 0xFFFFu) * bits_256 >> kUnitBits);
}
/// The same where it is below 2^32.
[[nodiscard]] constexpr std::uint32_t scaled_32(std::uint32_t count,
                                                std::uint32_t bits_256) noexcept {
  return static_cast<std::uint32_t>(std::uint64_t{count} * bits_256 >> kUnitBits);
}

/// 1 - q in units of 2^-32, for entries that are in a list with probability q = listed / entries
/// each. Both in units.
inline constexpr std::uint64_t kNoneListed = std::uint64_t{1} << 32;
[[nodiscard]] constexpr std::uint64_t not_listed(std::uint64_t listed,
                                                 std::uint64_t entries) noexcept {
  // Drop bits until the quotient fits.
  const unsigned drop =
      entries >> 31 != 0 ? static_cast<unsigned>(core::bit_width(entries)) - 31 : 0;
  const std::uint64_t density =
      (listed >> drop << 32) / std::max<std::uint64_t>(entries >> drop, 1);
  return density < kNoneListed ? kNoneListed - density : 0;
}
[[nodiscard]] constexpr std::uint64_t squared_not_listed(std::uint64_t out) noexcept {
  const auto below = static_cast<std::uint32_t>(out);
  return out >= kNoneListed ? out : std::uint64_t{below} * below >> 32;
}
/// A gap under Rice parameter k: k + 1 / (1 - (1 - q)^(2^k)), `out` being the power.
[[nodiscard]] constexpr std::uint64_t gap_bits_256_at(std::uint64_t out, unsigned k) noexcept {
  const std::uint64_t within = std::max<std::uint64_t>(kNoneListed - out, 1);
  return 256 * std::uint64_t{k} + (256 * kNoneListed) / within;
}
inline constexpr std::uint64_t kMostGapBits256 = 256 * std::uint64_t{kRiceLimit + kGapRawBits};

/// A gap of such a list at the best parameter.
[[nodiscard]] constexpr std::uint64_t gap_bits_256(std::uint64_t listed,
                                                   std::uint64_t entries) noexcept {
  std::uint64_t out = not_listed(listed, entries), best = kMostGapBits256;
  for (unsigned k = 0; k <= kMaxGapRice; ++k) {
    best = std::min(best, gap_bits_256_at(out, k));
    out = squared_not_listed(out);
  }
  return best;
}

/// Rice under parameter k of the levels from `base` up, less `base`, without gaps and signs.
/// `units[b]` counts those of bin b; bins from `end` on are empty.
template <typename Units>
[[nodiscard]] constexpr std::uint64_t level_bits_256_at(const Units& units, std::uint32_t end,
                                                        std::uint32_t base, unsigned k) noexcept {
  std::uint64_t sum = 0;
  for (std::uint32_t b = base; b < end; ++b) {
    const std::uint64_t own = units[b];
    if (own != 0) sum += scaled(own, 256 * rice_bits(level_of_bin(b) - base, k, kLevelBits));
  }
  return sum;
}

/// At the best parameter; `bits_at(k)` is level_bits_256_at.
template <typename BitsAt>
[[nodiscard]] constexpr std::uint64_t least_level_bits_256(BitsAt bits_at) noexcept {
  std::uint64_t best = ~std::uint64_t{0};
  for (unsigned k = 0; k <= kMaxLevelRice; ++k) {
    const std::uint64_t sum = bits_at(k);
    if (sum > best) break;  // convex in k but for rounding
    best = sum;
  }
  return best;
}

/// Counts that the size of a body follows from.
struct GridDemand {
  std::uint64_t entries = 0;  ///< of the layer
  std::uint64_t nonzero = 0;  ///< levels that are not zero, in units
  std::uint64_t others = 0;   ///< levels above 1, in units
  /// A gap of the list of all, of ones, of others.
  std::uint64_t every_gap = 0, ones_gap = 0, others_gap = 0;
  /// least_level_bits_256 from base 0, 1, 2.
  std::uint64_t levels_from[3] = {};
};

[[nodiscard]] constexpr std::uint64_t grid_bits_256(const GridDemand& d) noexcept {
  const std::uint64_t ones = d.nonzero - d.others;
  const std::uint64_t segments = std::uint64_t{segments_of(d.entries)} << kUnitBits;
  // A segment that keeps nothing has its word and no content; every list has an end mark.
  const std::uint64_t written = std::min(d.nonzero, segments);
  const std::uint64_t one_list = scaled(d.nonzero + written, d.every_gap) + d.levels_from[1];
  const std::uint64_t two_lists = scaled(ones + written, d.ones_gap) +
                                  scaled(d.others + written, d.others_gap) + d.levels_from[2];
  constexpr std::uint64_t kWord = 32 * 256, kPadding = 4 * 256;
  // A body of which every segment is empty is empty.
  const std::uint64_t words = std::min(segments, d.nonzero * (segments >> kUnitBits));
  return std::min(std::min(one_list, two_lists), d.levels_from[0]) + scaled(d.nonzero, 256) +
         scaled(words, kWord) + scaled(written, kPadding);
}

// ---- the step that keeps a count

/// The step at which `keep` entries are expected not to become zero, with each |x| at the middle of
/// its bin. Bins come in ascending order, empty ones left out; f64, an operation a rounding.
class KeepSearch {
 public:
  /// `nonzero`: entries of all bins.
  constexpr KeepSearch(std::uint64_t keep, std::uint64_t nonzero) noexcept
      : keep_(keep), certain_(nonzero), all_(keep >= nonzero) {}

  /// True when later bins do not matter.
  constexpr bool add(std::uint32_t bin, std::uint64_t count) noexcept {
    if (all_) {  // any step below the smallest entry
      if (step_ == 0) step_ = std::bit_cast<float>(bin << 16 | 1u);
      return true;
    }
    // With the bins so far uncertain and those from here on certain, the step must not exceed this
    // bin.
    const double magnitude = bin_magnitude(bin);
    if (done_ || (step_ > 0 && step_ <= magnitude)) return done_ = true;
    sum_ += magnitude * static_cast<double>(count);
    certain_ -= count;
    if (keep_ > certain_) step_ = sum_ / static_cast<double>(keep_ - certain_);
    return false;
  }
  [[nodiscard]] constexpr float step() const noexcept {
    return static_cast<float>(step_ < 0x1p-149 ? 0x1p-149 : step_ > kLargest ? kLargest : step_);
  }

 private:
  std::uint64_t keep_, certain_;  ///< certain: entries above the bins so far
  double sum_ = 0, step_ = 0;
  bool all_, done_ = false;
};

}  // namespace atomo::price
