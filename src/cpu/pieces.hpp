// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The content of kept atoms, cut into the pieces and the groups that it is written in, and batches
/// of pieces: what encoding and decoding share.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "cpu/atom_vectors.hpp"
#include "format/atom_body.hpp"

namespace atomo::cpu {

/// A piece of a vector of a kept atom.
struct AtomPiece {
  Piece piece;
  std::size_t vector = 0;    ///< of the atom
  std::uint64_t offset = 0;  ///< of its first entry among the entries of all such vectors
  VectorScale scale;
  const DuoCoding* coding = nullptr;
  std::uint32_t upward = 0;  ///< of its tiles, the first
  bool ends_group = false;
  std::size_t levels = 0;  ///< its first entry among the levels of a batch
};

/// Cuts atoms, one after the other, into pieces.
template <typename Vectors>
class PieceCutter {
 public:
  /// `vectors` outlives the cutter.
  explicit PieceCutter(const Vectors& vectors) noexcept
      : vectors_(vectors), groups_(GroupShape::of(vectors.frame().length)) {}

  /// Calls `visit(piece)` for each piece of `atom` until it returns false; whether it never did.
  /// The atom's entries stand in the `place`th vectors of the caller's.
  template <typename Visit>
  bool cut(std::uint64_t atom, std::uint64_t place, const AtomChoice& choice,
           Visit visit) noexcept {
    std::uint32_t upward = groups_.upward_tiles(in_group_, tiles_of(atom));
    for (std::size_t v = 0; v < Vectors::kCount; ++v) {
      const VectorShape& shape = vectors_.shape(v);
      const std::uint64_t length = length_of(v, atom);
      AtomPiece piece;
      piece.vector = v;
      piece.scale = vectors_.scale(v, choice);
      piece.coding = &vectors_.coding(v, atom, choice);
      for (std::uint64_t from = 0; from < length; from += kPieceEntries) {
        const auto entries =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(kPieceEntries, length - from));
        // Draws are laid out by the tiles of a whole vector: a short last one must not reach into
        // another's.
        piece.piece = {atom, (shape.length + kTile - 1) / kTile, from / kTile, entries};
        piece.offset = place * shape.length + from;
        const std::uint32_t tiles = tiles_of_piece(entries);
        if (groups_.pieces > 1) upward = groups_.upward_tiles(0, tiles);
        piece.upward = std::min(upward, tiles);
        upward -= piece.upward;
        const bool ends_atom = v + 1 == Vectors::kCount && from + kPieceEntries >= length;
        piece.ends_group = groups_.pieces > 1 || (ends_atom && ++in_group_ == groups_.atoms);
        if (piece.ends_group) in_group_ = 0;
        if (!visit(piece)) return false;
      }
    }
    return true;
  }
  /// The last atom did not end its group.
  [[nodiscard]] bool in_group() const noexcept { return in_group_ != 0; }

 private:
  [[nodiscard]] std::uint64_t length_of(std::size_t vector, std::uint64_t atom) const noexcept {
    const VectorShape& shape = vectors_.shape(vector);
    return atom + 1 == vectors_.frame().count ? shape.last : shape.length;
  }
  [[nodiscard]] std::uint32_t tiles_of(std::uint64_t atom) const noexcept {
    std::uint64_t tiles = 0;
    for (std::size_t v = 0; v < Vectors::kCount; ++v)
      tiles += (length_of(v, atom) + kTile - 1) / kTile;
    return static_cast<std::uint32_t>(tiles);
  }

  const Vectors& vectors_;
  GroupShape groups_;
  std::uint64_t in_group_ = 0;
};

/// The draws of one purpose for each vector of an atom.
template <typename Vectors>
[[nodiscard]] std::array<Philox, Vectors::kCount> draws_of(const Vectors& vectors, const Key& key,
                                                           Purpose VectorShape::*purpose) noexcept {
  return [&]<std::size_t... v>(std::index_sequence<v...>) {
    return std::array{Philox(key, vectors.shape(v).*purpose)...};
  }
  (std::make_index_sequence<Vectors::kCount>());
}

/// Pieces whose levels are drawn together, sixteen counters at a time, and which are decoded side
/// by side. The levels of centred layers, of which nothing is drawn, are 0.
template <typename Vectors>
class PieceBatch {
 public:
  static constexpr std::size_t kDitherGroups = 64;

  PieceBatch(const Vectors& vectors, const Key& key) noexcept
      : draws_(draws_of(vectors, key, &VectorShape::dither)), centred_(vectors.centred()) {
    if (!centred_) return;
    for (Levels& of : levels_) std::fill_n(of.words, kDitherGroups, DitherWords{});
  }

  [[nodiscard]] bool fits(const AtomPiece& piece) const noexcept {
    return dither_groups_ + dither_groups(piece.piece.entries) <= kDitherGroups;
  }
  void add(const AtomPiece& piece) noexcept {
    Levels& levels = levels_[piece.vector];
    AtomPiece& own = pieces_[count_++];
    own = piece;
    own.levels = levels.count;
    const std::uint64_t base = dither_base(piece.piece);
    const std::uint32_t groups = dither_groups(piece.piece.entries);
    for (std::uint32_t g = 0; g < groups; ++g) levels.bases[levels.count++] = base + g;
    dither_groups_ += groups;
  }
  void draw() noexcept {
    if (centred_) return;
    for (std::size_t v = 0; v < Vectors::kCount; ++v)
      draw_dither(draws_[v], levels_[v].bases, levels_[v].count, levels_[v].words);
  }
  void clear() noexcept {
    count_ = dither_groups_ = 0;
    for (Levels& of : levels_) of.count = 0;
  }

  [[nodiscard]] std::span<const AtomPiece> pieces() const noexcept { return {pieces_, count_}; }
  [[nodiscard]] const DitherWords* levels(const AtomPiece& piece) const noexcept {
    return levels_[piece.vector].words + piece.levels;
  }

 private:
  struct Levels {
    std::size_t count = 0;
    std::uint64_t bases[kDitherGroups];
    DitherWords words[kDitherGroups];
  };

  std::array<Philox, Vectors::kCount> draws_;
  bool centred_;
  AtomPiece pieces_[kDitherGroups];
  std::array<Levels, Vectors::kCount> levels_;
  std::size_t count_ = 0, dither_groups_ = 0;
};

}  // namespace atomo::cpu
