// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the tiles of QSGD and TernGrad share outside the SIMD loops: scales, ties, packing.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "atomo/philox.hpp"
#include "level_math.hpp"

namespace atomo::detail {

inline constexpr std::size_t kLevelTile = 128;  ///< entries of a tile: 16 bits each of 16 Philox blocks

/// Scales of the entries of one tile.
struct LevelTileScales {
  alignas(64) float pre[kLevelTile];
  alignas(64) float inv[kLevelTile];

  void set(std::size_t begin, std::size_t end, LevelScale scale) noexcept {
    for (std::size_t i = begin; i < end; ++i) pre[i] = scale.pre;
    for (std::size_t i = begin; i < end; ++i) inv[i] = scale.inv;
  }
};

/// The draw of one entry: the first 16 bits from the tile's words, 16 more from another purpose on a tie: half i mod 2
/// of word (i / 2) mod 4 of block i / 8.
struct EntryDraw {
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

/// Codes the whole tile again with its ties decided. `first` is the tile's first entry, a multiple of 128.
void resolve_ties(const float* x, const LevelTileScales& scales, float limit, int bits, const std::uint32_t* words,
                  const Philox& low_draws, std::uint64_t first, std::uint8_t* codes) noexcept;

/// Codes of `bits` bits, one a byte, to a bit stream: code i at bits [i * bits, (i + 1) * bits), least significant bit
/// first. 8 * groups codes in, bits * groups bytes out.
inline void pack_codes(const std::uint8_t* codes, std::size_t groups, int bits, std::byte* out) noexcept {
  const int gap = 8 - bits;
  const auto width = static_cast<std::size_t>(bits);
  for (std::size_t g = 0; g < groups; ++g) {
    std::uint64_t v;
    std::memcpy(&v, codes + 8 * g, 8);
    v = (v & 0x00FF00FF00FF00FFu) | ((v & 0xFF00FF00FF00FF00u) >> gap);
    v = (v & 0x0000FFFF0000FFFFu) | ((v & 0xFFFF0000FFFF0000u) >> (2 * gap));
    v = (v & 0x00000000FFFFFFFFu) | ((v & 0xFFFFFFFF00000000u) >> (4 * gap));
    std::memcpy(out + width * g, &v, width);
  }
}

/// The inverse of `pack_codes`.
inline void unpack_codes(const std::byte* in, std::size_t groups, int bits, std::uint8_t* codes) noexcept {
  const int gap = 8 - bits;
  const auto width = static_cast<std::size_t>(bits);
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1, mask2 = (std::uint64_t{1} << (2 * bits)) - 1,
                      mask4 = (std::uint64_t{1} << (4 * bits)) - 1;
  const std::uint64_t pairs = mask2 | (mask2 << 32), singles = mask * 0x0001000100010001u;
  for (std::size_t g = 0; g < groups; ++g) {
    std::uint64_t v = 0;
    std::memcpy(&v, in + width * g, width);
    v = (v & mask4) | ((v & ~mask4) << (4 * gap));
    v = (v & pairs) | ((v & ~pairs) << (2 * gap));
    v = (v & singles) | ((v & ~singles) << gap);
    std::memcpy(codes + 8 * g, &v, 8);
  }
}

}  // namespace atomo::detail
