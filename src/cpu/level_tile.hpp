// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the tiles of QSGD and TernGrad share outside the SIMD loops: scales and ties.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/short_draw.hpp"
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

/// Codes the whole tile again with its ties decided. `first` is the tile's first entry, a multiple
/// of 128.
void resolve_ties(const float* x, const LevelTileScales& scales, float limit, int bits,
                  const std::uint16_t* draws, const Philox& further, std::uint64_t first,
                  std::uint8_t* codes) noexcept;

}  // namespace atomo::cpu
