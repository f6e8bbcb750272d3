// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The body of a layer of dithered atoms: its sections and the units they are written in.
///
/// 1. marks: which atoms are kept (marks.hpp);
/// 2. a bit for each kept atom, in order: certain; then class - 1 in 5 bits for each certain atom;
/// zero bits up to an
///    even number of bytes, counted from the body's start;
/// 3. a u16 for each group: its length in bits;
/// 4. the groups' content, without gaps; zero bits up to a multiple of 4 bytes.
/// A group is what can be decoded by itself: atoms of up to 512 entries share one, floor(1024 /
/// length) kept atoms each; a longer atom is cut into pieces of 1,024 entries, each a group. When
/// no atom is kept the body has no bytes.

#include <cstddef>
#include <cstdint>

#include "atomo/atoms.hpp"
#include "cpu/dither_kernels.hpp"
#include "marks.hpp"

namespace atomo::detail {

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
};

/// Pairs of a vector: those of whole tiles, and half of the last tile rounded up.
[[nodiscard]] constexpr std::uint64_t pairs_of(std::uint64_t entries) noexcept {
  return entries / kTile * kTilePairs + (entries % kTile + 1) / 2;
}

/// Where the sections of a body are.
struct BodyIndex {
  std::uint64_t kept = 0, certain = 0, groups = 0;
  std::size_t flags = 0, lengths = 0, content = 0;  ///< first byte of each
  std::uint64_t content_bits = 0;

  /// Reads and checks everything but the gaps and the content. `body` is not empty.
  [[nodiscard]] bool open(ConstBytes body, const AtomLayout& layout, MarksReader& marks) noexcept;
};

/// Pieces whose levels are drawn together, sixteen counters at a time, and which are decoded side
/// by side.
class PieceBatch {
 public:
  static constexpr std::size_t kLevelGroups = 64;

  struct Item {
    Piece piece;
    std::size_t levels = 0;    ///< its first entry of `levels()`
    std::uint64_t offset = 0;  ///< of its first entry in the layer
    std::uint8_t atom_class = 0;
    bool ends_group = false;
  };

  [[nodiscard]] bool fits(std::uint32_t entries) const noexcept {
    return level_groups_ + level_groups(entries) <= kLevelGroups;
  }
  void add(const Item& item) noexcept {
    Item& own = items_[count_++];
    own = item;
    own.levels = level_groups_;
    const std::uint64_t base = level_base(item.piece);
    for (std::uint32_t g = 0; g < level_groups(item.piece.entries); ++g)
      bases_[level_groups_++] = base + g;
  }
  void draw(const Philox& levels) noexcept { draw_levels(levels, bases_, level_groups_, levels_); }
  void clear() noexcept { count_ = level_groups_ = 0; }

  [[nodiscard]] std::span<Item> items() noexcept { return {items_, count_}; }
  [[nodiscard]] const LevelWords* levels(const Item& item) const noexcept {
    return levels_ + item.levels;
  }

 private:
  Item items_[kLevelGroups];
  std::uint64_t bases_[kLevelGroups];
  LevelWords levels_[kLevelGroups];
  std::size_t count_ = 0, level_groups_ = 0;
};

/// Steps of every class for atoms of one length at one price.
class ClassCodings {
 public:
  /// Decoding multiplies the steps by `gain`.
  ClassCodings(std::uint64_t length, float price, float gain = 1.0f) noexcept;
  [[nodiscard]] const PairCoding& coding(std::uint8_t atom_class) const noexcept {
    return codings_[atom_class];
  }
  /// Scale of a certain atom (probability 0) or an uncertain one; decoding needs no probability.
  [[nodiscard]] VectorScale scale(std::uint8_t atom_class,
                                  std::uint32_t probability) const noexcept;

 private:
  PairCoding codings_[kAtomClassCount];
  float range_, price_, gain_;
};

/// Purposes of a family's draws.
struct FamilyPurposes {
  Purpose select, pre_round, dither;
};
[[nodiscard]] constexpr FamilyPurposes purposes_of(AtomFamily family) noexcept {
  if (family == AtomFamily::rows)
    return {Purpose::select_row, Purpose::pre_round_row, Purpose::dither_row};
  return {Purpose::select_block, Purpose::pre_round_block, Purpose::dither_block};
}

/// What every call refuses: other layouts than `blocks` and `rows` make.
[[nodiscard]] constexpr bool valid_layout(const AtomLayout& layout) noexcept {
  if (layout.count == 0) return true;
  return layout.length >= AtomLayout::kMinRow && layout.length <= AtomLayout::kMaxRow &&
         layout.last >= 1 && layout.last <= layout.length &&
         layout.count <= Shape::kMaxElements / layout.length + 1;
}

}  // namespace atomo::detail
