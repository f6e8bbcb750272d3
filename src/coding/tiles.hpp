// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How a dithered vector is cut into tiles, and long ones into pieces (FORMAT.md, "Draws").

#include <cstdint>

#include "core/namespaces.hpp"

namespace atomo::coding {

inline constexpr std::uint32_t kTile = 32, kTileDuos = 16;
inline constexpr std::uint32_t kPieceTiles = 32, kPieceEntries = kPieceTiles * kTile;
/// Tiles whose levels share words.
inline constexpr std::uint32_t kDitherTiles = 8;

/// A stretch of at most 1,024 entries of one vector, from an entry that is a multiple of 1,024.
struct Piece {
  std::uint64_t vector = 0;      ///< number of the vector among those of its draws
  std::uint64_t tiles = 0;       ///< of the whole vector
  std::uint64_t first_tile = 0;  ///< a multiple of kPieceTiles
  std::uint32_t entries = 0;
};

[[nodiscard]] constexpr std::uint32_t tiles_of_piece(std::uint32_t entries) noexcept {
  return (entries + kTile - 1) / kTile;
}
[[nodiscard]] constexpr std::uint32_t dither_groups(std::uint32_t entries) noexcept {
  return (tiles_of_piece(entries) + kDitherTiles - 1) / kDitherTiles;
}
/// Index / 4 of the first level draw of a piece; its further groups of 8 tiles follow.
[[nodiscard]] constexpr std::uint64_t dither_base(const Piece& piece) noexcept {
  return piece.vector * ((piece.tiles + 7) / 8) + piece.first_tile / 8;
}

/// Pieces of a vector.
[[nodiscard]] constexpr std::uint64_t pieces_of(std::uint64_t entries) noexcept {
  return (entries + kPieceEntries - 1) / kPieceEntries;
}

/// Pairs of a vector: those of whole tiles, and half of the last tile rounded up.
[[nodiscard]] constexpr std::uint64_t duos_of(std::uint64_t entries) noexcept {
  return entries / kTile * kTileDuos + (entries % kTile + 1) / 2;
}

}  // namespace atomo::coding
