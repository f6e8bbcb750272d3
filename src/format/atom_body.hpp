// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The body of a layer of dithered atoms: its sections and the units they are written in.
///
/// 1. marks: which atoms are kept (coding/marks.hpp);
/// 2. flags: a bit for each kept atom, in order, 1 where it is certain; then class - 1 in 5 bits for
///    each certain atom; zero bits up to an even number of bytes, counted from the body's start;
/// 3. lengths: a u16 for each group, its length in bits;
/// 4. content: the groups, without gaps; zero bits up to a multiple of 4 bytes.
///
/// A group is what can be decoded by itself: atoms of up to 512 entries share one,
/// floor(1024 / length) kept atoms each; a longer atom is cut into pieces of 1,024 entries, each a
/// group. It holds two *strands*, an upward stream from its first bit on and a downward one from its
/// last, which meet without a gap. When no atom is kept the body has no bytes.

#include <cstddef>
#include <cstdint>

#include "coding/marks.hpp"
#include "coding/tiles.hpp"
#include "format/atom_layout.hpp"
#include "math/dither.hpp"

namespace atomo::format {

inline constexpr unsigned kClassBits = 5;

[[nodiscard]] constexpr std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

/// How kept atoms of one nominal length fall into groups.
struct GroupShape {
  std::uint64_t atoms = 1;   ///< that share a group, or 1
  std::uint64_t pieces = 1;  ///< groups of one atom, or 1

  [[nodiscard]] static constexpr GroupShape of(std::uint64_t length) noexcept {
    if (length <= kPieceEntries / 2) return {kPieceEntries / length, 1};
    return {1, (length + kPieceEntries - 1) / kPieceEntries};
  }
  [[nodiscard]] constexpr std::uint64_t groups(std::uint64_t kept) const noexcept {
    return (kept + atoms - 1) / atoms * pieces;
  }
  /// How many of its first tiles go upward, the others going downward: of the `member`th atom of a
  /// group that atoms share, else of the group. Atoms alternate, others are halved.
  [[nodiscard]] constexpr std::uint32_t upward_tiles(std::uint64_t member,
                                                     std::uint32_t tiles) const noexcept {
    if (atoms > 1) return member % 2 == 0 ? tiles : 0;
    return (tiles + 1) / 2;
  }
};

/// The places of the sections of a body.
struct BodyIndex {
  std::uint64_t kept = 0, certain = 0, groups = 0;
  std::size_t flags = 0, lengths = 0, content = 0;  ///< first byte of each
  std::uint64_t content_bits = 0;

  /// Reads and checks everything but the gaps and the content. `body` is not empty.
  [[nodiscard]] bool open(ConstBytes body, const AtomLayout& layout, MarksReader& marks) noexcept;
};

/// Upper bound of a body, whatever the data and the price.
[[nodiscard]] std::size_t max_body_bytes(const AtomLayout& layout) noexcept;

}  // namespace atomo::format
