// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The levels of a group of chunks whose entries are drawn (FORMAT.md, "Drawn entries"), for host and
/// device. The lowest level is the scale of the draw, the highest one is no smaller than any entry, and a
/// magnitude between two levels becomes one of them at random, so that all are right on average.

#include "format/chunk_values.hpp"
#include "math/entry_shares.hpp"

namespace atomo::format {

/// What is known of a chunk before it is drawn, or of a group of them.
struct DrawnChunk {
  std::uint32_t scale = 1;            ///< the word of the least scale at which it has slots enough
  std::uint32_t least = 0x7F800000u;  ///< magnitude that is not 0, as an integer
  std::uint32_t largest = 0;          ///< magnitude

  ATOMO_HD constexpr void join(const DrawnChunk& other) noexcept {
    scale = scale > other.scale ? scale : other.scale;
    least = least < other.least ? least : other.least;
    largest = largest > other.largest ? largest : other.largest;
  }
};

/// The codes and the level words of a group.
class DrawnCoder {
 public:
  ATOMO_HD DrawnCoder(ChunkValues values, const DrawnChunk& group) noexcept : values_(values) {
    const std::uint32_t least = group.least >> 16;
    const std::uint32_t low = least > group.scale && group.largest != 0 ? least : group.scale;
    const std::uint32_t up = (group.largest + 0xFFFFu) >> 16;
    const std::uint32_t top = up < math::kMaxScaleWord ? up : math::kMaxScaleWord;
    const std::uint32_t high = low > top ? low : top;
    low_ = values == ChunkValues::sign ? high : low;
    high_ = high;
    if (values == ChunkValues::eight) find_grid(low, high);
    if (values == ChunkValues::f16) {
      const std::uint32_t exponent = high >> 7;
      low_ = (exponent <= 15 ? 1 : exponent < 253 ? exponent - 14 : 239) << 7;
    }
  }

  /// The scale that a chunk is drawn at; its own where each value stands for itself.
  [[nodiscard]] ATOMO_HD std::uint32_t scale_word(const DrawnChunk& chunk) const noexcept {
    if (values_ == ChunkValues::f32) return chunk.scale;
    if (values_ != ChunkValues::f16) return 0;
    // No smaller than the least f16 of 11 bits.
    const std::uint32_t factor = low_ >> 7, least = factor > 14 ? (factor - 14) << 7 : 1;
    return chunk.scale > least ? chunk.scale : least;
  }
  [[nodiscard]] ATOMO_HD float scale(const DrawnChunk& chunk) const noexcept {
    if (values_ >= ChunkValues::f16)
      return core::from_bf16(static_cast<std::uint16_t>(scale_word(chunk)));
    return level(0);
  }

  /// Level word i, but for the number of those in the upper of two bins.
  [[nodiscard]] ATOMO_HD std::uint16_t word(unsigned i) const noexcept {
    if (values_ == ChunkValues::four)
      return static_cast<std::uint16_t>(low_ + i * (high_ - low_) / 7);
    return static_cast<std::uint16_t>(i == 0 ? low_ : high_);
  }
  /// An entry as the number of its level, with the entry's sign in bit 31; `random` is uniform.
  [[nodiscard]] ATOMO_HD std::uint32_t quantise(std::uint32_t entry,
                                                std::uint32_t random) const noexcept {
    if (values_ == ChunkValues::f32) return entry;
    const float magnitude = std::bit_cast<float>(entry & 0x7FFFFFFFu);
    return (values_ == ChunkValues::f16 ? half_of(magnitude, random)
                                        : level_of(magnitude, random)) |
           (entry & 0x80000000u);
  }
  /// What stands in the slot of such an entry.
  [[nodiscard]] ATOMO_HD std::uint32_t code(std::uint32_t quantised) const noexcept {
    const unsigned bits = values_ == ChunkValues::two ? 1 : chunk_value_bits(values_);
    const std::uint32_t level = values_ == ChunkValues::two ? 0 : quantised & 0x7FFFFFFFu;
    return level | quantised >> 31 << (bits - 1);
  }
  [[nodiscard]] ATOMO_HD bool is_upper(std::uint32_t quantised) const noexcept {
    return (quantised & 1u) != 0;
  }
  /// Magnitude number i, of few bits.
  [[nodiscard]] ATOMO_HD float level(std::uint32_t i) const noexcept {
    return chunk_value(values_, i, [&](unsigned w) { return word(w); });
  }

 private:
  [[nodiscard]] static ATOMO_HD constexpr unsigned level_count(ChunkValues values) noexcept {
    return values == ChunkValues::two     ? 2
           : values == ChunkValues::four  ? 8
           : values == ChunkValues::eight ? 128
                                          : 1;
  }
  /// The least high word at which 128 levels reach `top`, from a low one on.
  ATOMO_HD void reach(std::uint32_t low, std::uint32_t top) noexcept {
    const float largest = core::from_bf16(static_cast<std::uint16_t>(top));
    low_ = low;
    high_ = top;
    while (high_ < math::kMaxScaleWord && level(127) < largest) ++high_;
  }
  /// The 128 levels of eight bits, the lowest one as little above a scale as may be.
  ATOMO_HD void find_grid(std::uint32_t scale, std::uint32_t top) noexcept {
    const float least = core::from_bf16(static_cast<std::uint16_t>(scale));
    std::uint32_t below = 0, enough = scale;  // `below` is not tried
    reach(0, top);
    if (!(level(0) < least)) return;
    while (below + 1 < enough) {
      const std::uint32_t middle = (below + enough) / 2;
      reach(middle, top);
      (level(0) < least ? below : enough) = middle;
    }
    reach(enough, top);
  }
  [[nodiscard]] ATOMO_HD std::uint32_t half_of(float magnitude,
                                               std::uint32_t random) const noexcept {
    const std::uint32_t factor = low_ >> 7;
    bool overflow = false;
    const std::uint16_t half =
        core::to_f16(magnitude * std::bit_cast<float>((254 - factor) << 23), random, overflow);
    return overflow ? 0x7BFFu : half;
  }
  [[nodiscard]] ATOMO_HD std::uint32_t level_of(float magnitude,
                                                std::uint32_t random) const noexcept {
    const std::uint32_t last = level_count(values_) - 1;
    if (level(last) <= magnitude) return last;  // every one of them, where all levels are the same
    std::uint32_t i = 0;
    if (values_ == ChunkValues::eight) {
      const double low = core::from_bf16(word(0)), width = core::from_bf16(word(1)) - low;
      const double at = width > 0 ? (magnitude - low) * 128 / width : 0;
      i = at < 126 ? static_cast<std::uint32_t>(at > 0 ? at : 0) : 126;
      while (i > 0 && level(i) > magnitude) --i;
    }
    while (i < last && level(i + 1) <= magnitude) ++i;
    const float below = level(i);
    if (i == last || !(magnitude > below)) return i;
    const double part =
        (static_cast<double>(magnitude) - below) / (static_cast<double>(level(i + 1)) - below);
    return i + (random < static_cast<std::uint64_t>(part * 0x1p32) ? 1u : 0u);
  }

  ChunkValues values_;
  std::uint32_t low_ = 0, high_ = 0;  ///< level words; of f16 the factor and none
};

}  // namespace atomo::format
