// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the tiles of QSGD and TernGrad share outside the SIMD loops: scales and ties.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/philox.hpp"
#include "math/stochastic_level.hpp"

namespace atomo::cpu {

inline constexpr std::size_t kLevelTile =
    128;  ///< entries of a tile: 16 bits each of 16 Philox blocks

/// Scales of the entries of one tile.
struct LevelTileScales {
  alignas(64) float pre[kLevelTile];
  alignas(64) float inv[kLevelTile];

  void set(std::size_t begin, std::size_t end, LevelScale scale) noexcept {
    for (std::size_t i = begin; i < end; ++i) pre[i] = scale.pre;
    for (std::size_t i = begin; i < end; ++i) inv[i] = scale.inv;
  }
};

/// The draw of one entry: the first 16 bits from the tile's words, 16 more from another purpose on
/// a tie: half i mod 2 of word (i / 2) mod 4 of block i / 8.
struct LevelDraw {
  const std::uint32_t* words;
  const Philox* low_draws;
  std::uint64_t entry;

  [[nodiscard]] std::uint32_t high() const noexcept {
    const std::size_t e = entry % kLevelTile;
    return (words[e / 32 * 16 + e % 16] >> (e % 32 / 16 * 16)) & 0xFFFFu;
  }
  [[nodiscard]] std::uint32_t low() const noexcept {
    const PhiloxWords block = (*low_draws)(entry / 8);
    return (block[entry / 2 % 4] >> (entry % 2 * 16)) & 0xFFFFu;
  }
};

/// Codes the whole tile again with its ties decided. `first` is the tile's first entry, a multiple
/// of 128.
void resolve_ties(const float* x, const LevelTileScales& scales, float limit, int bits,
                  const std::uint32_t* words, const Philox& low_draws, std::uint64_t first,
                  std::uint8_t* codes) noexcept;

}  // namespace atomo::cpu
