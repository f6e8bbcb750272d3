// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The loops over the entries of dithered vectors (rows, blocks, factors of pairs), compiled for
/// several instruction sets and chosen at run time; every one gives the same bytes.
///
/// A vector of L entries is cut into tiles of 32; the last may be shorter. A tile of r entries
/// holds h = ceil(r / 2) pairs: pair l is its entries l and h + l. The last pair's second entry is
/// missing when r is odd; it is dithered as a zero and dropped. The draws for vector t of T tiles and
/// pair l of its tile u are
/// - level: nibble u mod 8 of word l / 4 at index 4 (t ceil(T / 8) + u / 8) + l mod 4, that of the
///   pair's first entry; its second takes level xor 8;
/// - pre-rounding: word u mod 4 at index 16 (t ceil(T / 4) + u / 4) + l, the low half for the first
///   entry, the high half for the second.
///
/// Words are used whole and lanes need no shuffles: 36 generator calls a block of 256, of which a
/// decoder draws 4.

#include <cstddef>
#include <cstdint>

#include "coding/duo_code.hpp"
#include "coding/tiles.hpp"
#include "core/bits.hpp"
#include "core/philox.hpp"
#include "cpu/decode_mode.hpp"
#include "format/atom_layout.hpp"
#include "math/dither.hpp"

namespace atomo::cpu {

/// The levels of 8 tiles: nibble u of word l.
struct alignas(64) DitherWords {
  std::uint32_t word[kTileDuos];
};

/// How the content of a vector is scaled: entries are multiplied by `range` (a power of two), then
/// dithered.
struct VectorScale {
  float range = 1, step = 1, inverse = 1;
};

/// Draws the levels at `count` values of index / 4.
void draw_dither(const Philox& draws, const std::uint64_t* bases, std::size_t count,
                 DitherWords* levels) noexcept;

/// Dithers and writes a piece. `x` is its first entry, `levels` its `dither_groups`.
void encode_piece(const float* x, const Piece& piece, const VectorScale& scale,
                  const DuoCoding& coding, const Philox& pre_round, const DitherWords* levels,
                  BitWriter& out) noexcept;

/// A piece to decode: where its bits begin (and, decoded, where they end), what they mean, where
/// its first entry goes.
struct PieceStream {
  std::uint64_t bit = 0;
  std::uint32_t entries = 0;
  VectorScale scale;
  const DuoCoding* coding = nullptr;
  const DitherWords* levels = nullptr;
  float* y = nullptr;
};

/// Decodes pieces whose first bits are known. They are read side by side, so neighbours should be
/// of the same size.
void decode_pieces(const BitReader& in, PieceStream* pieces, std::size_t count,
                   cpu::DecodeMode mode) noexcept;

/// Reads a piece from `bit` on, which it moves. `y` is its first entry.
void decode_piece(const BitReader& in, std::uint64_t& bit, std::uint32_t entries,
                  const VectorScale& scale, const DuoCoding& coding, const DitherWords* levels,
                  cpu::DecodeMode mode, float* y) noexcept;

/// rms of each atom; whether all are finite. Runs on the executor, which may be null. Squares are exact
/// in f64; element i of an atom
/// is added to lane i mod 32, lanes are folded 32, 16, .. 1. Atoms longer than 1,024 are summed in
/// segments of 1,024, the sums added as a balanced tree: level by level, neighbours, an odd last
/// one carried up.
bool atom_amplitudes(const float* x, const AtomLayout& layout, double* rms,
                     Executor* executor) noexcept;

}  // namespace atomo::cpu
