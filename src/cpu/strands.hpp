// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Decodes the strands of groups (format/atom_body.hpp), compiled for several instruction sets and
/// chosen at run time; every one gives the same values.
///
/// Where a word begins is known only when the one before it has been read, so strands are read side
/// by side, a pair of each in turn. Each group gives two. Lanes of a vector in their place, with a
/// gather from the table, are not faster where a gather takes as long as its loads one by one.

#include <cstddef>
#include <cstdint>

#include "coding/duo_code.hpp"
#include "cpu/decode_mode.hpp"
#include "cpu/dither_kernels.hpp"

namespace atomo::cpu {

/// Most entries of a piece on one strand: an atom that shares a group, or half of one that does not.
inline constexpr std::uint32_t kStrandEntries = kPieceEntries / 2;

/// The tiles of a piece that are on one strand.
struct StrandPiece {
  std::uint64_t bit = 0;         ///< where they begin; decoded, where they end
  std::uint32_t first_tile = 0;  ///< of the piece
  std::uint32_t entries = 0;     ///< at least 1
  VectorScale scale;
  const DuoCoding* coding = nullptr;
  const DitherWords* levels = nullptr;  ///< of the piece
  float* y = nullptr;                   ///< for the first entry
};

/// Decodes pieces of strands in one direction. Neighbours should be of the same size, and of codes
/// with raw bits or without. Whatever the bits are, nothing outside of the buffer is read, and what lies outside counts as zeros.
void decode_strands(const BitReader& in, Direction direction, StrandPiece* pieces,
                    std::size_t count, DecodeMode mode) noexcept;

}  // namespace atomo::cpu
