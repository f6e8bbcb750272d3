// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Drawing entries of a chunk with probabilities in proportion to their magnitudes, at most 1
/// (FORMAT.md, "chunked top-k", "Drawn entries"), for host and device.
///
/// At a scale D, the upper half of an f32, an entry has the share p = |x| / D of a place, a whole number
/// of 2^-30 and at most 1. A running sum of shares starts at a uniform draw; an entry is kept where the
/// sum reaches a whole number. Marginals are the shares, and no more than the sum of shares is kept.

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/half.hpp"
#include "core/host_device.hpp"
#include "math/stochastic_level.hpp"

namespace atomo::math {

/// The share of an entry that is certain to be kept.
inline constexpr std::uint32_t kWholeShare = 1u << 30;
/// The largest scale.
inline constexpr std::uint32_t kMaxScaleWord = 0x7F7F;

/// The factors of shares at the scale of a word.
[[nodiscard]] ATOMO_HD inline LevelScale share_scale(std::uint32_t word) noexcept {
  return level_scale(core::from_bf16(static_cast<std::uint16_t>(word)),
                     static_cast<float>(kWholeShare));
}

[[nodiscard]] ATOMO_HD inline std::uint32_t share_of(float magnitude, LevelScale scale) noexcept {
  const float z = (magnitude * scale.pre) * scale.inv;
  constexpr auto kWhole = static_cast<float>(kWholeShare);
  return static_cast<std::uint32_t>(std::rint(z < kWhole ? z : kWhole));
}

/// Whether that is a whole one. Just below it f32 are 64 apart: nothing less is rounded to it.
[[nodiscard]] ATOMO_HD inline bool has_whole_share(float magnitude, LevelScale scale) noexcept {
  return (magnitude * scale.pre) * scale.inv >= static_cast<float>(kWholeShare);
}

/// What the shares of a chunk sum to.
struct ShareSum {
  std::uint64_t sum = 0;
  std::uint32_t certain = 0;  ///< entries with a whole share
};

/// Looks for the least scale at which the shares of a chunk sum to its slots at most, or for the largest
/// of all. Sums fall as scales grow, so every way of looking ends at the same one: this one follows the
/// sum's slope, and halves what is left where that is slow.
class ScaleSearch {
 public:
  ATOMO_HD ScaleSearch(std::uint32_t slots, std::uint32_t guess) noexcept
      : room_(std::uint64_t{slots} * kWholeShare), word_(within(guess)) {}

  [[nodiscard]] ATOMO_HD bool done() const noexcept { return low_ + 1 == high_; }
  /// The scale whose sum is asked for; the one that was looked for once that is done.
  [[nodiscard]] ATOMO_HD std::uint32_t word() const noexcept { return done() ? high_ : word_; }

  /// Of the scale `word()`.
  ATOMO_HD void take(const ShareSum& shares) noexcept {
    const bool fits = shares.sum <= room_;
    (fits ? high_ : low_) = word_;
    ++rounds_;
    const std::uint64_t certain = std::uint64_t{shares.certain} * kWholeShare;
    std::uint32_t next = (low_ + high_) / 2;
    if (rounds_ < kSlopes && certain < room_) {
      const double slope =
          static_cast<double>(shares.sum - certain) / static_cast<double>(room_ - certain);
      const double scale = core::from_bf16(static_cast<std::uint16_t>(word_)) * slope;
      next = scale < 0x1p127
                 ? (std::bit_cast<std::uint32_t>(static_cast<float>(scale)) + 0xFFFFu) >> 16
                 : kMaxScaleWord;
    }
    word_ = within(next);
  }

 private:
  static constexpr unsigned kSlopes = 8;

  [[nodiscard]] ATOMO_HD std::uint32_t within(std::uint32_t word) const noexcept {
    return word <= low_ ? low_ + 1 : word >= high_ ? high_ - 1 : word;
  }

  std::uint64_t room_;
  std::uint32_t low_ = 0, high_ = kMaxScaleWord;
  std::uint32_t word_;
  unsigned rounds_ = 0;
};

}  // namespace atomo::math
