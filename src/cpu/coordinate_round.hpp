// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Rounds a chunk of coordinates to the grid (math/grid_rounding.hpp).

#include <cstddef>
#include <cstdint>

#include "math/grid_rounding.hpp"

namespace atomo::cpu {

/// Levels of a chunk, and a bit an entry.
struct RoundedChunk {
  std::uint32_t* levels;   ///< `kCoordinateChunk` of them; those behind the last entry are 0
  std::uint64_t* nonzero;  ///< bit k % 64 of word k / 64: the level is not 0
  std::uint64_t* large;    ///< likewise: it is above 1
};

/// Rounds m entries, from 1 to a chunk, all finite, by the chunk's draw `u`. False when the step is
/// too small for one of them.
[[nodiscard]] bool round_chunk(const float* x, std::size_t m, double step, std::uint32_t u,
                               const RoundedChunk& out) noexcept;

}  // namespace atomo::cpu
