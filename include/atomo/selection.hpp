// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Systematic selection of atoms: which are kept is decided in chunks of 256 by one 32-bit draw a
/// chunk.
///
/// Each uncertain atom has a probability P / 2^32. Starting from the draw u, the atoms are visited
/// in a scrambled order and a running 32-bit sum takes their P; an atom is kept when the sum wraps.
/// An interval of length P shifted by a uniform u holds a multiple of 2^32 with probability exactly
/// P / 2^32, so every marginal is exact, and a chunk keeps the floor or the ceiling of its expected
/// number. Certain atoms are always kept and add nothing, zero atoms neither.
///
/// ```cpp
/// atomo::cpu::KeptMask kept = atomo::cpu::select_chunk(rms, 256, price, draws(chunk)[0]);
/// ```

#include <array>
#include <cstddef>
#include <cstdint>

namespace [[gnu::visibility("default")]] atomo {
namespace cpu {

/// Atoms that share one draw.
inline constexpr std::size_t kSelectionChunk = 256;
/// Place i of the order in which a chunk is walked is atom kSelectionStride * i mod
/// kSelectionChunk: odd, a permutation, neighbours far apart.
inline constexpr std::size_t kSelectionStride = 157;

/// How an atom stands at a price.
struct AtomChoice {
  std::uint32_t probability = 0;  ///< of an uncertain atom, in 2^-32; 0 when certain or zero
  std::uint8_t atom_class = 0;    ///< 1..31 when certain
};

/// `rms > 0` is not above 1.5 * 2^15 times the price.
[[nodiscard]] AtomChoice choose_atom(double rms, float price) noexcept;

/// Bit k % 64 of word k / 64: atom k of the chunk is kept.
using KeptMask = std::array<std::uint64_t, kSelectionChunk / 64>;

/// Selects among `count <= 256` atoms of one chunk from the 32-bit draw `u`.
[[nodiscard]] KeptMask select_chunk(const double* rms, std::size_t count, float price,
                                    std::uint32_t u) noexcept;

}  // namespace cpu
}  // namespace atomo
