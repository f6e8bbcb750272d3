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

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "coding/duo_code.hpp"
#include "coding/tiles.hpp"
#include "core/bits.hpp"
#include "core/philox.hpp"
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

/// Writes groups, one behind the other.
class GroupWriter {
 public:
  GroupWriter(std::byte* begin, std::size_t capacity) noexcept : upward_(begin, capacity) {}

  /// The strands of the group. The downward one stands apart until the group ends.
  [[nodiscard]] BitWriter& upward() noexcept { return upward_; }
  [[nodiscard]] DownwardBitWriter& downward() noexcept { return downward_; }

  /// Lets the strands meet. Returns the bits of the group.
  std::uint64_t end_group() noexcept {
    constexpr std::uint64_t kEnd = 8 * sizeof strand_;
    std::uint64_t bit = kEnd - downward_.position();
    downward_.finish();
    const BitReader strand(strand_, sizeof strand_);
    while (bit < kEnd) {
      const auto some = static_cast<unsigned>(std::min<std::uint64_t>(56, kEnd - bit));
      upward_.put(strand.bits(bit, some), some);
      bit += some;
    }
    downward_ = DownwardBitWriter(strand_, sizeof strand_);
    const std::uint64_t begin = std::exchange(begin_, upward_.position());
    return begin_ - begin;
  }

  /// Pads with zero bits to a whole byte. Returns the bits of all groups, more than any buffer's when
  /// they did not fit.
  std::uint64_t finish() noexcept {
    upward_.finish();
    return upward_.overflowed() ? ~std::uint64_t{0} : begin_;
  }

 private:
  BitWriter upward_;
  std::uint64_t begin_ = 0;  ///< of the group
  std::byte strand_[sizeof(std::uint64_t) * kPieceTiles * kTileDuos];
  DownwardBitWriter downward_{strand_, sizeof strand_};
};

/// Dithers and writes a piece, its first `upward` tiles upward. `x` is its first entry, `levels` its
/// `dither_groups`.
void encode_piece(const float* x, const Piece& piece, std::uint32_t upward,
                  const VectorScale& scale, const DuoCoding& coding, const Philox& pre_round,
                  const DitherWords* levels, GroupWriter& out) noexcept;

/// rms of each atom; whether all are finite. Runs on the executor, which may be null. Squares are exact
/// in f64; element i of an atom
/// is added to lane i mod 32, lanes are folded 32, 16, .. 1. Atoms longer than 1,024 are summed in
/// segments of 1,024, the sums added as a balanced tree: level by level, neighbours, an odd last
/// one carried up.
bool atom_amplitudes(const float* x, const AtomLayout& layout, double* rms,
                     Executor* executor) noexcept;

}  // namespace atomo::cpu
