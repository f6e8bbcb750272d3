// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Stochastic rounding of coordinates to a grid, to the bit: what every implementation shares.
///
/// An entry x under the step D is the 64-bit integer T = floor(|x| * (2^32 / D) + 1/2), computed in
/// f64 with one rounding an operation: level T >> 32, and P = T mod 2^32 of 2^32 to be rounded up.
/// So |P * 2^-32 + level - |x|/D| <= 2^-33 * (1 + 2^-20) + 2^-51 * |x|/D. Every f32 and every
/// quotient here is a normal f64, subnormal x and D included; levels stay below 2^29, so T < 2^61.
///
/// The rounding is drawn systematically within a chunk: P is added to a running 32-bit sum that
/// starts at a uniform u, and the entry is rounded up when the sum carries. Marginals are exactly P
/// / 2^32.
///
/// Decoded, a level is level * D rounded once (the product of 29 and 24 bits is exact in f64), cut
/// at the largest f32. Levels of sums of messages go up to 2^53, and are rounded to f64 first.
/// Where the next level would lie beyond that, the cell above x is shorter and P follows from its
/// true width, so nothing is biased and nothing becomes infinite.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/host_device.hpp"
#include "math/systematic_sampling.hpp"

namespace atomo::math {

inline constexpr std::size_t kCoordinateChunk = 4096;     ///< entries that share a draw
inline constexpr std::size_t kCoordinateSegment = 32768;  ///< entries written together
inline constexpr std::size_t kCoordinateColumns = 256;    ///< in which a chunk is visited
inline constexpr unsigned kLevelBits = 29;
inline constexpr std::uint32_t kMaxLevel = (std::uint32_t{1} << kLevelBits) - 1;
inline constexpr unsigned kWideLevelBits = 53;  ///< of sums of messages; exact in f64

inline constexpr double kLargest = std::numeric_limits<float>::max();

/// 2^32 / D.
[[nodiscard]] constexpr double grid_scale(double step) noexcept { return 4294967296.0 / step; }

/// T of an entry. Values beyond the last level come out as 2^61 or more.
[[nodiscard]] ATOMO_HD inline std::uint64_t grid_fixed(double x, double scale) noexcept {
  return static_cast<std::uint64_t>(std::min(std::fabs(x) * scale + 0.5, 0x1p62));
}

/// T where the next level may lie beyond the largest f32.
[[nodiscard]] ATOMO_HD inline std::uint64_t grid_fixed_at_top(double x, double step,
                                                              double scale) noexcept {
  const std::uint64_t fixed = grid_fixed(x, scale);
  const double low = static_cast<double>(fixed >> 32) * step;
  if (low + step <= kLargest) return fixed;
  const double width = kLargest - low;
  const double above = std::fabs(x) - low;
  if (!(width > 0) || !(above > 0)) return fixed >> 32 << 32;
  const double part = std::min(above / width * 4294967296.0 + 0.5, 4294967296.0);
  return (fixed >> 32 << 32) + static_cast<std::uint64_t>(part);
}

/// Whether entries that reach `level`, the largest of their chunk before it is rounded up, need
/// `grid_fixed_at_top`.
[[nodiscard]] constexpr bool grid_at_top(std::uint64_t level, double step) noexcept {
  return static_cast<double>(level + 1) * step > kLargest;
}

/// The value that a signed level decodes to.
[[nodiscard]] constexpr float grid_value(std::int64_t level, double step) noexcept {
  const double value = static_cast<double>(level) * step;
  return static_cast<float>(value > kLargest ? kLargest : value < -kLargest ? -kLargest : value);
}

/// The code (upper 16 bits) of the smallest step for entries up to `largest` in magnitude, at which
/// levels stay below 2^29.
[[nodiscard]] constexpr std::uint32_t min_step_code(float largest) noexcept {
  std::uint32_t low = 1, high = 0x7F7F;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    const double step = std::bit_cast<float>(middle << 16);
    // One level is left free for rounding up.
    if (static_cast<double>(largest) < step * (kMaxLevel - 1)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Rounds up, among the m entries of one chunk, those whose P makes the running sum carry.
/// `part(k)` gives the P of place k, `round_up(k, carried)` receives 0 or 1.
template <typename Part, typename RoundUp>
inline void draw_chunk(std::size_t m, std::uint32_t u, Part part, RoundUp round_up) noexcept {
  systematic_draw<kCoordinateChunk, kCoordinateColumns>(m, u, part, round_up);
}

}  // namespace atomo::math
