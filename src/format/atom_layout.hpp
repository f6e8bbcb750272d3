// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How a layer is cut into rows or blocks, and which draws are theirs.

#include <cstdint>

#include "atomo/types.hpp"
#include "core/philox.hpp"
#include "format/family.hpp"

namespace atomo::format {

/// How a layer of `elements()` entries is cut into atoms, in order.
struct AtomLayout {
  static constexpr std::uint64_t kBlock = 256;  ///< entries of a block
  /// Rows that can be atoms; a layer with other rows takes blocks.
  static constexpr std::uint64_t kMinRow = 16;
  static constexpr std::uint64_t kMaxRow = std::uint64_t{1} << 22;  ///< see kMinRow

  Family family = Family::blocks;  ///< blocks or rows
  std::uint64_t count = 0;         ///< atoms
  std::uint64_t length = 0;        ///< entries of each but the last
  std::uint64_t last = 0;          ///< entries of the last, 1..length

  /// Blocks of 256, the last shorter.
  [[nodiscard]] static constexpr AtomLayout blocks(std::uint64_t elements) noexcept {
    const std::uint64_t count = elements / kBlock + (elements % kBlock != 0 ? 1 : 0);
    return {Family::blocks, count, kBlock, count == 0 ? kBlock : elements - (count - 1) * kBlock};
  }
  /// `count` rows of `length` entries, kMinRow..kMaxRow; their product is at most
  /// Shape::kMaxElements.
  [[nodiscard]] static constexpr AtomLayout rows(std::uint64_t count,
                                                 std::uint64_t length) noexcept {
    return {Family::rows, count, length, length};
  }

  /// Entries of all atoms.
  [[nodiscard]] constexpr std::uint64_t elements() const noexcept {
    return count == 0 ? 0 : (count - 1) * length + last;
  }
  /// Entries of one atom.
  [[nodiscard]] constexpr std::uint64_t length_of(std::uint64_t atom) const noexcept {
    return atom + 1 == count ? last : length;
  }

  /// Cut in the same way.
  friend constexpr bool operator==(const AtomLayout&, const AtomLayout&) = default;
};

/// Purposes of a family's draws.
struct FamilyPurposes {
  Purpose select, pre_round, dither;
};
[[nodiscard]] constexpr FamilyPurposes purposes_of(Family family) noexcept {
  if (family == Family::rows)
    return {Purpose::select_row, Purpose::pre_round_row, Purpose::dither_row};
  return {Purpose::select_block, Purpose::pre_round_block, Purpose::dither_block};
}

/// Whether `blocks` or `rows` made the layout; every call refuses others.
[[nodiscard]] constexpr bool valid_layout(const AtomLayout& layout) noexcept {
  if (layout.count == 0) return true;
  return layout.length >= AtomLayout::kMinRow && layout.length <= AtomLayout::kMaxRow &&
         layout.last >= 1 && layout.last <= layout.length &&
         layout.count <= Shape::kMaxElements / layout.length + 1;
}

}  // namespace atomo::format
