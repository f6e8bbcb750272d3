// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Bins of magnitudes and their means, all in integers: sums of any order agree, so that host and
/// device find the same bins.
///
/// A magnitude is taken as a whole number of units of 2^-30 of the largest one's power of two. Numbers
/// are counted in at most 256 cells of equal width; bins are runs of cells, found by Lloyd's rounds
/// from bins of equal counts on: a bin ends in the middle between its mean and the next one's.

#include <bit>
#include <cstdint>

#include "core/half.hpp"
#include "core/host_device.hpp"

namespace atomo::math {

inline constexpr unsigned kBinCells = 256, kMaxBins = 8, kLloydRounds = 12;

/// The exponent field of a finite magnitude, of a subnormal one 1.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t exponent_of(std::uint32_t magnitude) noexcept {
  return magnitude >> 23 == 0 ? 1 : magnitude >> 23;
}

/// A magnitude in units of 2^-30 of 2^(exponent of the largest), below 2^31, rounded down.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t fixed_magnitude(std::uint32_t magnitude,
                                                               std::uint32_t exponent) noexcept {
  const std::uint32_t own = exponent_of(magnitude);
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | (magnitude >> 23 != 0 ? 0x800000u : 0u);
  return exponent - own < 32 ? mantissa << 7 >> (exponent - own) : 0;
}

/// Such a number as the upper half of an f32, rounded to nearest, at most the largest.
[[nodiscard]] ATOMO_HD inline std::uint16_t level_word(std::uint32_t fixed,
                                                       std::uint32_t exponent) noexcept {
  // 2^(exponent - 127 - 30), exact in f64.
  const double unit = std::bit_cast<double>(std::uint64_t{exponent + 1023 - 157} << 52);
  bool overflow = false;
  const std::uint16_t word = core::to_bf16(static_cast<float>(fixed * unit), overflow);
  return word < 0x7F80u ? word : std::uint16_t{0x7F7F};
}

/// The cells of numbers from `low` to `high`.
struct Cells {
  std::uint32_t low = 0;
  unsigned shift = 0;

  ATOMO_HD constexpr Cells(std::uint32_t least, std::uint32_t largest) noexcept : low(least) {
    while (((largest - least) >> shift) >= kBinCells) ++shift;
  }
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t of(std::uint32_t fixed) const noexcept {
    return (fixed - low) >> shift;
  }
};

/// The numbers of the cells before one.
struct CellSums {
  std::uint64_t sum;
  std::uint32_t count;
};

/// Bins of cells: bin b has the cells from `ends[b - 1]` on to before `ends[b]`.
struct ValueBins {
  std::uint32_t ends[kMaxBins];
  std::uint32_t means[kMaxBins];  ///< of an empty bin 0
  unsigned bins;

  [[nodiscard]] ATOMO_HD constexpr unsigned of(std::uint32_t cell) const noexcept {
    unsigned bin = 0;
    for (unsigned b = 0; b + 1 < bins; ++b) bin += cell >= ends[b] ? 1u : 0u;
    return bin;
  }
};

/// `before` has kBinCells + 1 entries, the last one's all numbers, at least one.
ATOMO_HD inline void find_bins(const CellSums* before, Cells cells, unsigned bins,
                               ValueBins& out) noexcept {
  out.bins = bins;
  std::uint32_t cell = 0;
  for (unsigned b = 0; b < bins; ++b) {
    while (cell < kBinCells && before[cell].count * bins < before[kBinCells].count * (b + 1))
      ++cell;
    out.ends[b] = b + 1 == bins ? kBinCells : cell;
  }
  for (unsigned round = 0; round <= kLloydRounds; ++round) {
    std::uint32_t begin = 0;
    for (unsigned b = 0; b < bins; ++b) {
      const CellSums &first = before[begin], &last = before[out.ends[b]];
      const std::uint32_t count = last.count - first.count;
      out.means[b] = count == 0 ? 0 : static_cast<std::uint32_t>((last.sum - first.sum) / count);
      begin = out.ends[b];
    }
    if (round == kLloydRounds) break;
    bool changed = false;
    for (unsigned b = 0; b + 1 < bins; ++b) {
      if (out.means[b] == 0 || out.means[b + 1] == 0) continue;
      const std::uint32_t middle = (out.means[b] + out.means[b + 1]) / 2;
      const std::uint32_t end = middle < cells.low ? 0 : cells.of(middle) + 1;
      changed = changed || end != out.ends[b];
      out.ends[b] = end;
    }
    if (!changed) break;
  }
}

}  // namespace atomo::math
