// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Systematic selection of atoms: which are kept is decided in chunks of 256 by one 32-bit draw a
/// chunk.
///
/// Each uncertain atom has a probability P / 2^32. Starting from the draw u, the atoms are visited
/// column by column (systematic_sampling.hpp) and a running 32-bit sum takes their P; an atom is kept when the sum wraps.
/// An interval of length P shifted by a uniform u holds a multiple of 2^32 with probability exactly
/// P / 2^32, so every marginal is exact, and a chunk keeps the floor or the ceiling of its expected
/// number. Certain atoms are always kept and add nothing, zero atoms neither.
///
/// ```cpp
/// atomo::KeptMask kept = atomo::select_chunk(rms, 256, price, draws(chunk)[0]);
/// ```

#include <array>
#include <cstddef>
#include <cstdint>

#include "math/dither.hpp"
#include "math/systematic_sampling.hpp"

namespace atomo::math {

/// Atoms that share one draw.
inline constexpr std::size_t kSelectionChunk = 256;
/// Columns in which a chunk is visited (systematic_sampling.hpp).
inline constexpr std::size_t kSelectionColumns = 32;

/// The class and the probability of an atom at a price.
struct AtomChoice {
  std::uint32_t probability = 0;  ///< of an uncertain atom, in 2^-32; 0 when certain or zero
  std::uint8_t atom_class = 0;    ///< 1..31 when certain
};

/// `rms > 0` is not above 1.5 * 2^15 times the price.
[[nodiscard]] inline AtomChoice choose_atom(double rms, float price) noexcept {
  const double ratio = rms / static_cast<double>(price);
  if (ratio < 1.0) return {probability_of_ratio(ratio), 0};
  return {0, static_cast<std::uint8_t>(certain_class(ratio))};
}

/// How it is decided which atoms are kept.
enum class Selection : std::uint8_t {
  drawn,    ///< those below the price by a draw: the estimate is unbiased
  nearest,  ///< those that lower the error by more than their bits cost, without a draw
};
/// Without draws the atoms of this class and above are kept, whose rms is at least 1.5 times the price:
/// about where what an atom takes off the error is worth its bits (docs/specs.md, "Without draws").
inline constexpr int kNearestClass = 2;
/// The ratio of rms and price from which on an atom is certain to be kept.
[[nodiscard]] ATOMO_HD constexpr double least_certain_ratio(Selection selection) noexcept {
  return selection == Selection::nearest ? 1.5 : 1.0;
}

/// Bit k % 64 of word k / 64: atom k of the chunk is kept.
using KeptMask = std::array<std::uint64_t, kSelectionChunk / 64>;

/// Selects among `count <= 256` atoms of one chunk from the 32-bit draw `u`.
[[nodiscard]] inline KeptMask select_chunk(const double* rms, std::size_t count, float price,
                                           std::uint32_t u) noexcept {
  KeptMask kept{};
  std::array<std::uint32_t, kSelectionChunk> probability;
  for (std::size_t k = 0; k < count; ++k) {
    const double ratio = rms[k] / static_cast<double>(price);
    const bool certain = ratio >= 1.0;
    const std::uint32_t p = probability_of_ratio(certain ? 0.5 : ratio);
    probability[k] = rms[k] > 0 && !certain ? p : 0u;
    kept[k / 64] |= std::uint64_t{certain} << (k % 64);
  }
  systematic_draw<kSelectionChunk, kSelectionColumns>(
      count, u, [&](std::size_t k) { return probability[k]; },
      [&](std::size_t k, std::uint32_t carried) {
        kept[k / 64] |= std::uint64_t{carried} << (k % 64);
      });
  return kept;
}

/// The same without a draw.
[[nodiscard]] inline KeptMask select_nearest(const double* rms, std::size_t count,
                                             float price) noexcept {
  KeptMask kept{};
  for (std::size_t k = 0; k < count; ++k) {
    const bool stays =
        rms[k] / static_cast<double>(price) >= least_certain_ratio(Selection::nearest);
    kept[k / 64] |= std::uint64_t{stays} << (k % 64);
  }
  return kept;
}

}  // namespace atomo::math
