// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What encoding and decoding the content of dithered vectors share: pieces in batches, steps by class.

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/dither_kernels.hpp"

namespace atomo::cpu {

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

}  // namespace atomo::cpu
