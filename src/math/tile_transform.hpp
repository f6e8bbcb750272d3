// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Tiles of a matrix, one after the other, and their transform, the orthonormal DCT-II in f32.
///
/// Of a vector of even length numbers of even frequency need the sums of mirrored entries alone, those of
/// odd frequency the differences. A vector is folded into sums and differences, the sums again while they
/// are even and long; what is left are products with small matrices, a third of one with the whole basis.

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
  std::uint64_t columns = 1;            ///< of the tensor
  std::uint64_t down = 1, across = 1;   ///< tiles above and beside each other
  std::uint32_t height = 1, width = 1;  ///< of a tile

  /// Of `elements` > 0 entries, `dim0` the first side where there are two or more.
  [[nodiscard]] static constexpr Tiles of(int rank, std::uint64_t dim0, std::uint64_t elements,
                                          std::uint32_t side) noexcept {
    Tiles tiles;
    const std::uint64_t rows = rank < 2 ? 1 : dim0;
    tiles.columns = elements / rows;
    tiles.height = tile_side(rows, side);
    tiles.width = tile_side(tiles.columns, side);
    tiles.down = rows / tiles.height;
    tiles.across = tiles.columns / tiles.width;
    return tiles;
  }
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t entries() const noexcept { return height * width; }
  [[nodiscard]] ATOMO_HD constexpr std::uint64_t count() const noexcept { return down * across; }
  /// Where a tile's first entry stands in the tensor; its rows are `columns` apart.
  [[nodiscard]] ATOMO_HD constexpr std::uint64_t first(std::uint64_t tile) const noexcept {
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

/// cos(pi angle / 2n) sqrt(2/n), where `numbers` are those of length n and the angle is below 4n.
[[nodiscard]] ATOMO_HD inline float cosine(const float* numbers, std::uint32_t n,
                                           std::uint32_t angle) noexcept {
  if (angle > 2 * n) angle = 4 * n - angle;
  return angle > n ? -numbers[2 * n - angle] : numbers[angle];
}
/// The angle of number j of basis vector k of length n.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t angle(std::uint32_t n, std::uint32_t k,
                                                     std::uint32_t j) noexcept {
  return (2 * j + 1) * k % (4 * n);
}
/// Number j of basis vector k of length n: sqrt(2/n) cos(pi (2j + 1) k / 2n), sqrt(1/n) for k = 0.
[[nodiscard]] ATOMO_HD inline float basis(const Table& table, std::uint32_t n, std::uint32_t k,
                                          std::uint32_t j) noexcept {
  const float* const numbers = table.at + begin_of(n);
  return k == 0 ? numbers[n + 1] : cosine(numbers, n, angle(n, k, j));
}

/// The longest vector that is not folded.
inline constexpr std::uint32_t kUnfolded = 8;
/// How often a side of a tile is folded at most.
inline constexpr std::uint32_t kMaxFolds = 3;
/// Entries are multiplied by the first before a transform, so that nothing overflows, and by the second
/// after it.
inline constexpr float kScaleIn = 0x1p-8f, kScaleOut = 0x1p8f;

[[nodiscard]] ATOMO_HD constexpr bool folds(std::uint32_t length) noexcept {
  return length % 2 == 0 && length > kUnfolded;
}
/// What of a vector of length n is left when it is folded.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t folded_length(std::uint32_t n) noexcept {
  while (folds(n)) n /= 2;
  return n;
}

/// Places of a folded vector that depend on each other alone: the sums that are left, or the differences
/// of a fold. As frequencies they are `stride` apart.
struct Segment {
  std::uint32_t begin, end;
  std::uint32_t first_frequency, stride;

  [[nodiscard]] ATOMO_HD constexpr std::uint32_t frequency(std::uint32_t place) const noexcept {
    return first_frequency + (place - begin) * stride;
  }
  /// Whose place it is. Differences are those of the entry before a fold's middle and its mirror image.
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t entry(std::uint32_t place) const noexcept {
    return begin == 0 ? place : 2 * begin - 1 - place;
  }
};

/// The one that a place of a folded vector of length n is in.
[[nodiscard]] ATOMO_HD constexpr Segment segment_of(std::uint32_t n, std::uint32_t place) noexcept {
  std::uint32_t stride = 1;
  for (; folds(n); n /= 2, stride *= 2) {
    if (place >= n / 2) return {n / 2, n, stride, 2 * stride};
  }
  return {0, n, 0, stride};
}
/// The frequency of a place.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t frequency_of(std::uint32_t n,
                                                            std::uint32_t place) noexcept {
  return segment_of(n, place).frequency(place);
}
/// What a folded vector's number at `inner` is multiplied by in the frequency of `place`, both of one
/// segment.
[[nodiscard]] ATOMO_HD inline float factor(const Table& table, std::uint32_t n, std::uint32_t place,
                                           std::uint32_t inner) noexcept {
  const Segment own = segment_of(n, place);
  return basis(table, n, own.frequency(place), own.entry(inner));
}

/// A transformed entry, from what came of scaled ones: cut to plus and minus the largest f32.
[[nodiscard]] ATOMO_HD constexpr float scaled_out(float x) noexcept {
  constexpr float kLargest = 0x1.fffffep127f;
  const float y = x * kScaleOut;
  return y > kLargest ? kLargest : y < -kLargest ? -kLargest : y;
}

}  // namespace dct
}  // namespace atomo::math
