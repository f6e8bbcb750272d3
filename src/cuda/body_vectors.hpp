// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The vectors that atoms are made of, as both directions code them: a block or a row is one
/// vector, a pair is two.
///
/// The vectors of an atom follow one another on the strands of its group (format/atom_body.hpp);
/// where an atom has several groups, each holds a piece of 1,024 entries of one of them.

#include <algorithm>
#include <cmath>

#include "coding/duo_code.hpp"
#include "coding/tiles.hpp"
#include "cuda/atom_forms.hpp"
#include "math/dither.hpp"

namespace atomo::cuda::atoms {

/// Words of pairs that are stored at once.
inline constexpr unsigned kDuosTogether = 8;

/// One vector of each atom of a job.
struct AtomVector {
  std::uint64_t length = 0, last = 0;  ///< entries, of every atom but the last, of the last
  std::uint32_t tiles = 0, pieces = 0;
  Purpose dither = Purpose::dither_block, pre_round = Purpose::pre_round_block;
  // By class:
  float size[math::kAtomClassCount] = {};                   ///< of the step
  std::uint8_t step[math::kAtomClassCount] = {};            ///< of kCodingSteps
  std::uint8_t escape_bits[2][math::kAtomClassCount] = {};  ///< of all atoms but the last, of it

  /// Room for the words of its pairs, two bytes each: those of every atom begin at 16 bytes.
  [[nodiscard]] __host__ __device__ std::uint64_t duos() const {
    return divide_up(length, std::uint64_t{2} * kDuosTogether) * kDuosTogether;
  }
  /// Tiles that share their level draws go together.
  [[nodiscard]] __host__ __device__ std::uint64_t chunks() const {
    return divide_up(tiles, coding::kDitherTiles);
  }
  /// A quarter of the first index of the level draws of the eight tiles around a tile.
  [[nodiscard]] __host__ __device__ std::uint64_t level_base(std::uint64_t atom,
                                                             std::uint64_t tile) const {
    return atom * divide_up(tiles, coding::kDitherTiles) + tile / coding::kDitherTiles;
  }
};

/// A piece of an atom: of which vector, and which of its tiles.
struct VectorPiece {
  std::uint32_t vector = 0, first_tile = 0, tiles = 0;
};

struct AtomVectors {
  AtomVector of[2];         ///< the second has no tiles where there is none
  std::uint32_t count = 1;  ///< 1 or 2
  std::uint64_t atoms = 0;

  /// The steps of the only or second vector are in units of the price; others are as they stand.
  [[nodiscard]] __host__ __device__ bool priced(std::uint32_t vector) const {
    return vector + 1 == count;
  }
  [[nodiscard]] __host__ __device__ bool is_last(std::uint64_t atom) const {
    return atom + 1 == atoms;
  }
  /// Entries of an atom's vector.
  [[nodiscard]] __host__ __device__ std::uint64_t length_of(std::uint32_t vector,
                                                            std::uint64_t atom) const {
    return is_last(atom) ? of[vector].last : of[vector].length;
  }
  /// Tiles of an atom.
  [[nodiscard]] __host__ __device__ std::uint32_t tiles() const {
    return of[0].tiles + of[1].tiles;
  }
  /// Of an atom that has a group for each piece.
  [[nodiscard]] __host__ __device__ VectorPiece piece(std::uint32_t number) const {
    const std::uint32_t vector = number < of[0].pieces ? 0 : 1;
    const std::uint32_t first =
        (vector == 0 ? number : number - of[0].pieces) * coding::kPieceTiles;
    const std::uint32_t left = of[vector].tiles - first;
    return {vector, first, left < coding::kPieceTiles ? left : coding::kPieceTiles};
  }
};

/// A vector without its steps.
[[nodiscard]] inline AtomVector plan_vector(std::uint64_t length, std::uint64_t last,
                                            Purpose dither, Purpose pre_round) noexcept {
  AtomVector vector;
  vector.length = length;
  vector.last = last;
  vector.tiles = static_cast<std::uint32_t>(divide_up(length, coding::kTile));
  vector.pieces = static_cast<std::uint32_t>(coding::pieces_of(length));
  vector.dither = dither;
  vector.pre_round = pre_round;
  return vector;
}

/// The vectors of a family's atoms.
[[nodiscard]] inline AtomVectors plan_vectors(const LayerAtoms& atoms) noexcept {
  AtomVectors vectors;
  vectors.atoms = atoms.layout.count;
  if (!atoms.has_pairs()) {
    const AtomLayout& layout = atoms.layout;
    const format::FamilyPurposes purposes = format::purposes_of(layout.family);
    AtomVector& only = vectors.of[0];
    only = plan_vector(layout.length, layout.last, purposes.dither, purposes.pre_round);
    for (std::size_t c = 0; c < math::kAtomClassCount; ++c) {
      const coding::AtomClass& of = coding::kAtomClasses[c];
      only.size[c] = of.delta;
      only.step[c] = of.step;
      only.escape_bits[0][c] =
          static_cast<std::uint8_t>(coding::escape_bits(layout.length, of.reach));
      only.escape_bits[1][c] =
          static_cast<std::uint8_t>(coding::escape_bits(layout.last, of.reach));
    }
    return vectors;
  }
  const MatrixShape& shape = atoms.pairs.view;
  const std::uint64_t m = shape.shorter(), n = shape.longer();
  vectors.count = 2;
  vectors.of[0] = plan_vector(m, m, Purpose::dither_u, Purpose::pre_round_u);
  vectors.of[1] = plan_vector(n, n, Purpose::dither_v, Purpose::pre_round_v);
  for (std::size_t c = 0; c < math::kAtomClassCount; ++c) {
    const format::PairStep pair = format::pair_step(shape, c);
    for (unsigned v = 0; v < 2; ++v) {
      const format::FactorStep& step = v == 0 ? pair.shorter : pair.longer;
      vectors.of[v].size[c] = step.size;
      vectors.of[v].step[c] = static_cast<std::uint8_t>(step.step);
      vectors.of[v].escape_bits[0][c] = vectors.of[v].escape_bits[1][c] =
          static_cast<std::uint8_t>(step.escape_bits);
    }
  }
  return vectors;
}

}  // namespace atomo::cuda::atoms
