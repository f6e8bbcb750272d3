// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How the products of a sketch are cut into units, for the plan and for the kernels.

#include <algorithm>
#include <cstdint>

#include "cuda/plan.hpp"
#include "math/sparse_start.hpp"

namespace atomo::cuda {

/// Terms of a sum that a unit takes, about.
inline constexpr std::uint64_t kProductStretch = 384, kGramStretch = 128, kStartStretch = 1024;
/// A sum has at most so many stretches, and adding them up stays little work.
inline constexpr std::uint64_t kMostStretches = 128;

/// A sum of `count` stretches of `depth` terms, but for the last.
struct Cut {
  std::uint64_t depth = 0, count = 0;
};
/// `multiple`: that stretches begin at multiples of.
[[nodiscard]] constexpr Cut cut_of(std::uint64_t terms, std::uint64_t stretch,
                                   std::uint64_t multiple = 16) noexcept {
  const std::uint64_t wanted = divide_up(terms, stretch);
  const std::uint64_t count = wanted < kMostStretches ? wanted : kMostStretches;
  const std::uint64_t depth = divide_up(divide_up(terms, count), multiple) * multiple;
  return {depth, divide_up(terms, depth)};
}
/// Of the columns, times the start; and the most stretches and groups that there are whatever the
/// rank.
[[nodiscard]] constexpr std::uint64_t most_starts(std::uint64_t columns) noexcept {
  return std::min(divide_up(columns, kStartStretch), kMostStretches);
}
[[nodiscard]] constexpr std::uint64_t most_groups(std::uint64_t columns) noexcept {
  return divide_up(columns, 64);
}
/// Rows whose products with one vector of the start a lane has.
inline constexpr std::uint32_t kStartRows = 2;
[[nodiscard]] constexpr Cut cut_of_start(std::uint64_t columns, std::uint64_t rank) noexcept {
  return cut_of(columns, kStartStretch, math::start_width(rank));
}

/// Values of a sum of `stretches` stretches that a warp adds up: whole rounds of its lanes, few loads each, as
/// a warp waits for them one after the other.
[[nodiscard]] constexpr std::uint64_t fold_values(std::uint64_t stretches) noexcept {
  constexpr std::uint64_t kLoads = 16;
  return 32 * (stretches < kLoads ? kLoads / stretches : 1);
}
/// Units that add up sums of `values` values.
[[nodiscard]] constexpr std::uint64_t fold_units(std::uint64_t stretches,
                                                 std::uint64_t values) noexcept {
  return stretches == 1 ? 0 : divide_up(values, fold_values(stretches));
}

/// The largest rank whose small matrices are kept in shared memory.
inline constexpr std::uint32_t kSharedRank = 64;

/// Values of f64 in the workspace for those of the other ranks while eigenvectors are found.
[[nodiscard]] constexpr std::uint64_t eigen_values(std::uint32_t rank) noexcept {
  return rank <= kSharedRank ? 0 : divide_up(std::uint64_t{rank + 1} * (rank + 2), 2);
}

/// Sweeps of rotations over a small matrix, at most, and how many rotations these are.
inline constexpr std::uint32_t kMostSweeps = 12;
[[nodiscard]] constexpr std::uint64_t most_turns(std::uint32_t rank) noexcept {
  return kMostSweeps * divide_up(rank * (std::uint64_t{rank} + 1), 2);
}
/// Entries of eigenvectors that a block takes, a warp each.
inline constexpr std::uint32_t kEigenEntries = 8;

/// Tiles across the vectors, 64 a tile.
[[nodiscard]] constexpr std::uint64_t strips_of(std::uint64_t rank) noexcept {
  return divide_up(rank, 64);
}
/// Tiles of `rank` vectors of `length` values.
[[nodiscard]] constexpr std::uint64_t turned_tiles(std::uint64_t length,
                                                   std::uint64_t rank) noexcept {
  return divide_up(length, 64) * strips_of(rank);
}

/// Words of the start, entries of a vector that a warp has.
inline constexpr std::uint64_t kDrawnUnit = 1024, kSquaresUnit = 4096;

}  // namespace atomo::cuda
