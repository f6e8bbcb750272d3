// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The codes of chunked top-k's values (FORMAT.md, "chunked top-k") and what they decode to, for host and
/// device. A code of a few bits has the bin of a magnitude, and the sign above it.

#include <bit>
#include <cstdint>

#include "core/half.hpp"
#include "format/chunk_body.hpp"
#include "math/value_bins.hpp"

namespace atomo::format {

/// Whether level word i of a group of so many slots may stand in a body.
[[nodiscard]] ATOMO_HD constexpr bool valid_level(ChunkValues values, unsigned i,
                                                  std::uint32_t slots,
                                                  std::uint32_t word) noexcept {
  if (values == ChunkValues::two && i == 2) return word <= slots;
  return word < (values == ChunkValues::f16 ? 0x7781u : 0x7F80u);
}
/// Whether a code of a slot may.
[[nodiscard]] ATOMO_HD constexpr bool valid_code(ChunkValues values, std::uint32_t code) noexcept {
  if (values == ChunkValues::f16) return (code & 0x7C00u) != 0x7C00u;
  return values != ChunkValues::f32 || (code & 0x7F800000u) != 0x7F800000u;
}

/// What a code decodes to; `word(i)` is level word i of its group.
template <typename Word>
[[nodiscard]] ATOMO_HD inline float chunk_value(ChunkValues values, std::uint32_t code,
                                                Word word) noexcept {
  if (values == ChunkValues::f32) return std::bit_cast<float>(code);
  if (values == ChunkValues::f16)
    return core::from_f16(static_cast<std::uint16_t>(code)) * core::from_bf16(word(0));
  const unsigned bits = chunk_value_bits(values);
  const std::uint32_t bin = code & ((1u << (bits - 1)) - 1);
  float magnitude;
  if (values == ChunkValues::eight) {
    const double low = core::from_bf16(word(0)), width = (core::from_bf16(word(1)) - low) / 256;
    const double above = (2 * bin + 1) * width;
    magnitude = static_cast<float>(low + above);
  } else {
    magnitude = core::from_bf16(word(bin));
  }
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | code >> (bits - 1) << 31);
}

/// The codes and the level words of a group, from the least and the largest magnitude of what it keeps,
/// as integers, and the sums of its cells where there are bins.
class ChunkCoder {
 public:
  /// `bins` outlives the coder; it is used where means of bins are sent.
  ATOMO_HD ChunkCoder(ChunkValues values, std::uint32_t least, std::uint32_t largest,
                      math::ValueBins& bins) noexcept
      : values_(values),
        least_(least),
        largest_(largest),
        exponent_(math::exponent_of(largest)),
        cells_(math::fixed_magnitude(least, exponent_), math::fixed_magnitude(largest, exponent_)),
        bins_(&bins) {}

  /// Means of bins are sent.
  [[nodiscard]] ATOMO_HD bool has_bins() const noexcept { return values_ <= ChunkValues::four; }
  [[nodiscard]] ATOMO_HD std::uint32_t fixed(std::uint32_t magnitude) const noexcept {
    return math::fixed_magnitude(magnitude, exponent_);
  }
  [[nodiscard]] ATOMO_HD std::uint32_t cell_of(std::uint32_t magnitude) const noexcept {
    return cells_.of(fixed(magnitude));
  }
  ATOMO_HD void find_bins(const math::CellSums* before) const noexcept {
    math::find_bins(before, cells_, chunk_bins(values_), *bins_);
  }
  /// In the upper of two bins.
  [[nodiscard]] ATOMO_HD bool is_upper(std::uint32_t entry) const noexcept {
    return bins_->of(cell_of(entry & 0x7FFFFFFFu)) != 0;
  }
  /// Level word i, but for the number of those in the upper of two bins.
  [[nodiscard]] ATOMO_HD std::uint16_t word(unsigned i) const noexcept {
    if (has_bins()) return math::level_word(bins_->means[i], exponent_);
    if (values_ == ChunkValues::f16)
      return static_cast<std::uint16_t>((exponent_ > 16 ? exponent_ - 15 : 1) << 7);
    if (i == 0) return static_cast<std::uint16_t>(least_ >> 16);
    return static_cast<std::uint16_t>(largest_ > 0x7F7F0000u ? 0x7F7F : (largest_ + 0xFFFF) >> 16);
  }
  /// What stands in an entry's slot.
  [[nodiscard]] ATOMO_HD std::uint32_t code(std::uint32_t entry) const noexcept {
    if (values_ == ChunkValues::f32) return entry;
    const std::uint32_t magnitude = entry & 0x7FFFFFFFu, sign = entry >> 31;
    if (values_ <= ChunkValues::two) return sign;
    if (values_ == ChunkValues::f16) {
      const std::uint32_t scale = word(0) >> 7;
      bool overflow = false;
      const std::uint16_t half = core::to_f16(
          std::bit_cast<float>(magnitude) * std::bit_cast<float>((254 - scale) << 23), overflow);
      return (overflow ? 0x7BFFu : half) | sign << 15;
    }
    if (values_ == ChunkValues::eight) {
      const double low = core::from_bf16(word(0)), width = core::from_bf16(word(1)) - low;
      const double above = (std::bit_cast<float>(magnitude) - low) * 128;
      const double bin = width > 0 ? above / width : 0;
      return (bin < 127 ? static_cast<std::uint32_t>(bin) : 127) | sign << 7;
    }
    return bins_->of(cell_of(magnitude)) | sign << (chunk_value_bits(values_) - 1);
  }

 private:
  ChunkValues values_;
  std::uint32_t least_, largest_, exponent_;
  math::Cells cells_;
  math::ValueBins* bins_;
};

}  // namespace atomo::format
