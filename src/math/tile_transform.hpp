// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Tiles of a matrix, one after the other, and the numbers of their transform, the orthonormal DCT-II. A
/// product of two f32 is exact in f64, so a sum in f64 is the same with and without fused operations.

#include <array>
#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

inline constexpr std::uint32_t kMaxTileSide = 64;

/// The largest divisor of a length that is not above `side`.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t tile_side(std::uint64_t length,
                                                         std::uint32_t side) noexcept {
  while (length % side != 0) --side;
  return side;
}

/// A tensor as rows of tiles; one without two sides is one row.
struct Tiles {
  std::uint64_t rows = 1, columns = 1;
  std::uint32_t height = 1, width = 1;  ///< of a tile

  /// Of `elements` > 0 entries, `dim0` the first side where there are two or more.
  [[nodiscard]] static constexpr Tiles of(int rank, std::uint64_t dim0, std::uint64_t elements,
                                          std::uint32_t side) noexcept {
    Tiles tiles;
    tiles.rows = rank < 2 ? 1 : dim0;
    tiles.columns = elements / tiles.rows;
    tiles.height = tile_side(tiles.rows, side);
    tiles.width = tile_side(tiles.columns, side);
    return tiles;
  }
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t entries() const noexcept { return height * width; }
  [[nodiscard]] ATOMO_HD constexpr std::uint64_t count() const noexcept {
    return rows / height * (columns / width);
  }
  /// Where a tile's first entry stands in the tensor; its rows are `columns` apart.
  [[nodiscard]] ATOMO_HD constexpr std::uint64_t first(std::uint64_t tile) const noexcept {
    const std::uint64_t across = columns / width;
    return tile / across * height * columns + tile % across * width;
  }
};

namespace dct {

/// The cosine of an angle from 0 to pi/4, or its sine, by their series.
constexpr double series(double angle, bool sine) noexcept {
  const double square = angle * angle;
  double term = sine ? angle : 1, sum = term;
  for (int i = sine ? 2 : 1; i < 30; i += 2) {
    term *= -square / (i * (i + 1));
    sum += term;
  }
  return sum;
}

constexpr double root(double x) noexcept {
  double y = 1;
  for (int i = 0; i < 60; ++i) y = (y + x / y) / 2;
  return y;
}

/// Where the numbers of length n begin: cos(pi i / 2n) sqrt(2/n) for i = 0 ... n, then sqrt(1/n).
[[nodiscard]] ATOMO_HD constexpr std::uint32_t begin_of(std::uint32_t n) noexcept {
  return (n - 1) * (n + 4) / 2;
}
inline constexpr std::uint32_t kNumbers = begin_of(kMaxTileSide + 1);

struct Table {
  float at[kNumbers];
};

constexpr Table make_table() noexcept {
  Table table{};
  constexpr double kHalfPi = 1.5707963267948966;
  for (std::uint32_t n = 1; n <= kMaxTileSide; ++n) {
    const double scale = root(2.0 / n);
    for (std::uint32_t i = 0; i <= n; ++i) {
      const bool sine = 2 * i > n;
      const double cosine = series((sine ? n - i : i) * kHalfPi / n, sine);
      table.at[begin_of(n) + i] = static_cast<float>(scale * cosine);
    }
    table.at[begin_of(n) + n + 1] = static_cast<float>(root(1.0 / n));
  }
  return table;
}

/// Number j of basis vector k of length n: sqrt(2/n) cos(pi (2j + 1) k / 2n), sqrt(1/n) for k = 0.
[[nodiscard]] ATOMO_HD inline float basis(const Table& table, std::uint32_t n, std::uint32_t k,
                                          std::uint32_t j) noexcept {
  const float* const of = table.at + begin_of(n);
  if (k == 0) return of[n + 1];
  std::uint32_t angle = (2 * j + 1) * k % (4 * n);
  if (angle > 2 * n) angle = 4 * n - angle;
  return angle > n ? -of[2 * n - angle] : of[angle];
}

/// An f64 as an f32, cut to plus and minus the largest.
[[nodiscard]] ATOMO_HD constexpr float cut_to_f32(double x) noexcept {
  constexpr double kLargest = 0x1.fffffep127;
  return static_cast<float>(x > kLargest ? kLargest : x < -kLargest ? -kLargest : x);
}

}  // namespace dct
}  // namespace atomo::math
