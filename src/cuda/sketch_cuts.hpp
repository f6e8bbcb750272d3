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

/// The largest rank whose small matrices a block has by itself, in registers and shared memory.
inline constexpr std::uint32_t kSharedRank = 64;

/// Small matrices of f32 in the workspace for larger ranks while eigenvectors are found, as values of f64: reflections,
/// and vectors that are joined.
[[nodiscard]] constexpr std::uint64_t eigen_values(std::uint32_t rank) noexcept {
  return rank <= kSharedRank ? 0 : std::uint64_t{rank} * rank;
}

/// The leaves of a tridiagonal matrix that is larger than kSharedRank: all of the same size but for the last, up to
/// kSharedRank.
struct Leaves {
  std::uint32_t count = 1, size = 0, rows = 0;
  /// The first row of a leaf, or the end.
  [[nodiscard]] constexpr std::uint32_t begin(std::uint32_t leaf) const noexcept {
    return leaf * size < rows ? leaf * size : rows;
  }
};
[[nodiscard]] constexpr Leaves leaves_of(std::uint32_t rows) noexcept {
  const std::uint32_t wanted = (rows + kSharedRank - 1) / kSharedRank,
                      count = wanted < 2 ? 2 : wanted;
  return {count, ((rows + count - 1) / count + 3) / 4 * 4, rows};
}
/// At most, of a rank's Gram matrix.
[[nodiscard]] constexpr std::uint32_t most_leaves(std::uint32_t rank) noexcept {
  return rank <= kSharedRank ? 1 : leaves_of(rank).count;
}
inline constexpr std::uint32_t kMostLeaves = 4;

/// Joints of leaves: of two, then of twice two. Eigenvalues that a block finds, a warp each.
inline constexpr std::uint32_t kJoinLevels = 2, kRootsTogether = 8;
[[nodiscard]] constexpr std::uint32_t join_levels(std::uint32_t leaves) noexcept {
  return leaves > 2 ? 2 : 1;
}
/// Units of one level: of eigenvalues, and tiles of vectors. A joint of the first level has up to two leaves.
inline constexpr std::uint32_t kRootUnits = 2 * kSharedRank / kRootsTogether, kJoinTiles = 4;
[[nodiscard]] constexpr std::uint32_t root_units(std::uint32_t rank) noexcept {
  return most_leaves(rank) > 2 ? 2 * kRootUnits : kRootUnits;
}
[[nodiscard]] constexpr std::uint32_t join_tiles(std::uint32_t rank) noexcept {
  return most_leaves(rank) > 2 ? 4 * kJoinTiles : kJoinTiles;
}

/// Sweeps of rotations over a small matrix, at most, and how many rotations these are of a leaf.
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
/// Tiles of a Gram matrix on and below the diagonal.
[[nodiscard]] constexpr std::uint64_t gram_tiles(std::uint64_t rank) noexcept {
  return strips_of(rank) * (strips_of(rank) + 1) / 2;
}
/// Tiles of `rank` vectors of `length` values.
[[nodiscard]] constexpr std::uint64_t turned_tiles(std::uint64_t length,
                                                   std::uint64_t rank) noexcept {
  return divide_up(length, 64) * strips_of(rank);
}

/// Words of the start, entries of a vector that a warp has.
inline constexpr std::uint64_t kDrawnUnit = 1024, kSquaresUnit = 4096;

}  // namespace atomo::cuda
