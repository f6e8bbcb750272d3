// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Drawing entries of a chunk (math/entry_shares.hpp): unbiased, in place of the largest ones.

#include <cstddef>
#include <cstdint>

#include "cpu/chunk_candidates.hpp"
#include "format/drawn_values.hpp"

namespace atomo::cpu {

/// What the draw of n <= 4,096 entries needs. `guess` is where the search for the scale begins, and
/// becomes what was found. Entries that are not finite make `largest` 0x7F800000 or more.
[[nodiscard]] format::DrawnChunk measure_chunk(const float* x, std::size_t n, std::uint32_t slots,
                                               std::uint32_t& guess) noexcept;

/// Draws at a scale from 32 random bits: places and magnitudes of at most `slots` entries, of those
/// that were not certain the scale's.
void draw_entries(const float* x, std::size_t n, std::uint32_t slots, float scale,
                  std::uint32_t random, Candidates& out) noexcept;

}  // namespace atomo::cpu
