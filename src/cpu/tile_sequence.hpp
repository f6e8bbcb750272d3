// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A tensor as a sequence of tiles, as they are or transformed (math/tile_transform.hpp), and back, a tile
/// at a time. FORMAT.md ("Layouts") has the arithmetic. Nothing allocates; threads may share both.

#include <cstdint>
#include <optional>
#include <span>

#include "math/tile_transform.hpp"

namespace atomo::cpu {

/// The most entries of a tile.
inline constexpr std::size_t kMaxTile = std::size_t{math::kMaxTileSide} * math::kMaxTileSide;

/// Rows kStride apart, those behind a row's end any numbers.
struct alignas(64) TileMatrix {
  static constexpr std::size_t kStride = math::kMaxTileSide;
  float at[kStride * kStride];
};

/// What tiles are multiplied by from the left and from the right, and of the places of folded sides their
/// frequencies, or, of an inverse, of frequencies their places.
struct TileFactors {
  TileFactors(const math::Tiles& tiles, bool inverse) noexcept;

  TileMatrix left, right;  ///< 0 between segments
  std::uint8_t row_of[TileMatrix::kStride], column_of[TileMatrix::kStride];
};

class TileReader {
 public:
  TileReader(const math::Tiles& tiles, bool transforms, const float* x) noexcept
      : tiles_(tiles), x_(x) {
    if (transforms) factors_.emplace(tiles, false);
  }

  /// Writes a tile's part of the sequence; false where it is transformed and an entry is not finite.
  bool read(std::uint64_t tile, float* sequence) const noexcept;
  [[nodiscard]] std::uint64_t tile_entries() const noexcept { return tiles_.entries(); }

 private:
  math::Tiles tiles_;
  const float* x_;
  std::optional<TileFactors> factors_;  ///< where tiles are transformed
};

/// An entry of a tile that is kept, by its place in the tile's part of the sequence.
struct KeptEntry {
  std::uint32_t place;
  float value;
};

class TileWriter {
 public:
  /// y[i] = v, or y[i] + (alpha * v) where `add`.
  TileWriter(const math::Tiles& tiles, bool transforms, bool add, float alpha, float* y) noexcept
      : tiles_(tiles), add_(add), alpha_(alpha), y_(y) {
    if (transforms) factors_.emplace(tiles, true);
  }

  /// A tile of which these entries are kept, at most one a place; the others are 0.
  void write(std::uint64_t tile, std::span<const KeptEntry> kept) const noexcept;
  [[nodiscard]] const math::Tiles& tiles() const noexcept { return tiles_; }

 private:
  math::Tiles tiles_;
  bool add_;
  float alpha_;
  float* y_;
  std::optional<TileFactors> factors_;  ///< where tiles are transformed
};

}  // namespace atomo::cpu
