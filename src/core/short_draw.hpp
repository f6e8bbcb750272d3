// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Draws of 16 bits, eight to a Philox block: entry i takes half i mod 2 (0: the low one) of word
/// ⌊i / 2⌋ mod 4 of block ⌊i / 8⌋. They nearly always decide; 16 further bits, at the same place of
/// another purpose, decide a tie.

#include <cstdint>

#include "core/host_device.hpp"
#include "core/philox.hpp"

namespace atomo::core {

/// Half i mod 8 of a block.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t half_of(const PhiloxWords& block,
                                                       std::uint64_t i) noexcept {
  const std::uint32_t word = word_of(block, i / 2);
  return (i & 1) == 0 ? word & 0xFFFFu : word >> 16;
}

/// The draw of one entry, whose first 16 bits are known.
struct ShortDraw {
  std::uint32_t first;
  const Philox* further;
  std::uint64_t entry;

  [[nodiscard]] ATOMO_HD std::uint32_t high() const noexcept { return first; }
  [[nodiscard]] ATOMO_HD std::uint32_t low() const noexcept {
    return half_of((*further)(entry / 8), entry);
  }
};

}  // namespace atomo::core
