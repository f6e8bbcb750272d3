// SPDX-License-Identifier: Apache-2.0
/// Decides the ties of a tile: the entries whose first 16 random bits equal their threshold.
#include "cpu/level_tile.hpp"

#include <algorithm>
#include <cmath>

namespace atomo::cpu {
namespace {

std::uint8_t level_code(float x, float pre, float inv, float limit, int bits,
                        const ShortDraw& draw) noexcept {
  if (bits == 1)
    return round_to_sign(std::clamp((x * pre) * inv, -32768.0f, 32768.0f), draw) ? 0 : 1;
  const std::uint32_t level = round_to_level(std::min((std::abs(x) * pre) * inv, limit), draw);
  const std::uint32_t sign = level > 0 && std::signbit(x) ? 1u << (bits - 1) : 0u;
  return static_cast<std::uint8_t>(level | sign);
}

}  // namespace

void resolve_ties(const float* x, const LevelTileScales& scales, float limit, int bits,
                  const std::uint16_t* draws, const Philox& further, std::uint64_t first,
                  std::uint8_t* codes) noexcept {
  for (std::size_t e = 0; e < kLevelTile; ++e) {
    codes[e] = level_code(x[e], scales.pre[e], scales.inv[e], limit, bits,
                          ShortDraw{draws[e], &further, first + e});
  }
}

}  // namespace atomo::cpu
