// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How the threads of a block share a tile (tile_transform.cu, tile_inverse.cu): eight entries of a vector
/// that are folded together, and a part of a product.

#include "cuda/tile_tables.cuh"

namespace atomo::cuda::chunk_topk {

inline constexpr unsigned kTurns = kSide / kRowsAtOnce;

/// A warp of the block; others take its part in the blocks beside this one.
[[nodiscard]] __device__ inline std::uint32_t warp_in_turn(std::uint32_t turn) {
  return (warp_in_block() + turn + blockIdx.x) % (kThreads / kLanes);
}

/// Which of the entries of `count` vectors of length n, one after the other, eight threads have, eight each:
/// whole groups of those that are folded together.
struct Folding {
  static constexpr std::uint32_t kNoEntry = ~0u;
  std::uint32_t n, left, folds = 0, groups;

  __device__ Folding(std::uint32_t length, std::uint32_t count) : n(length), left(length) {
    for (; math::dct::folds(left); left /= 2) ++folds;
    groups = left * count;
  }
  /// The k-th one of a thread, or kNoEntry.
  [[nodiscard]] __device__ std::uint32_t entry(std::uint32_t thread, unsigned k) const {
    const std::uint32_t group = thread + kOwn * (k >> folds);
    if (group >= groups) return kNoEntry;
    const std::uint32_t vector = groups == left ? 0 : group / left;
    std::uint32_t own = group - vector * left;
#pragma unroll
    for (unsigned bit = 0; bit < math::dct::kMaxFolds; ++bit) {
      if (bit < folds && (k >> bit & 1) != 0) own = (left << (bit + 1)) - 1 - own;
    }
    return vector * n + own;
  }
};

/// A thread's.
struct Eight {
  std::uint32_t folds, valid = 0;  ///< of which those of the lowest bits exist
  std::uint32_t entry[kOwn];       ///< the first, where one does not exist

  __device__ Eight(std::uint32_t n, std::uint32_t count, std::uint32_t thread) {
    const Folding folding(n, count);
    folds = folding.folds;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      const std::uint32_t own = folding.entry(thread, k);
      valid |= own != Folding::kNoEntry ? 1u << k : 0u;
      entry[k] = own != Folding::kNoEntry ? own : 0;
    }
  }
  [[nodiscard]] __device__ bool has(unsigned k) const { return (valid >> k & 1) != 0; }
};

/// The row whose entries eight threads have, `turn` by turn: a warp has every other one of eight, whose
/// numbers are in different banks.
[[nodiscard]] __device__ __forceinline__ std::uint32_t own_row(unsigned turn) {
  return 2 * (threadIdx.x / kOwn) + turn % 2 + 2 * kRowsAtOnce * (turn / 2);
}

/// Sums and differences of the mirrored entries of groups of 2^kFolds, in each column: those of a whole vector
/// first, then those of its sums, or, `kBack`, the other way round.
template <unsigned kFolds, bool kBack, unsigned kColumns>
__device__ __forceinline__ void fold_groups(float (&x)[kOwn][kColumns]) {
#pragma unroll
  for (unsigned turn = 0; turn < kFolds; ++turn) {
    const unsigned half = 1u << (kBack ? turn : kFolds - 1 - turn);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if (k % (1u << kFolds) >= half) continue;
#pragma unroll
      for (unsigned c = 0; c < kColumns; ++c) {
        const float a = x[k][c], b = x[k + half][c];
        x[k][c] = a + b;
        x[k + half][c] = a - b;
      }
    }
  }
}
template <bool kBack, unsigned kColumns>
__device__ __forceinline__ void fold(std::uint32_t folds, float (&x)[kOwn][kColumns]) {
  static_assert(math::dct::kMaxFolds == 3);
  if (folds == 3) {
    fold_groups<3, kBack>(x);
  } else if (folds == 2) {
    fold_groups<2, kBack>(x);
  } else if (folds == 1) {
    fold_groups<1, kBack>(x);
  }
}

/// A thread's part of a product of rows with a basis: eight rows, four neighbouring sums of each.
struct Part {
  std::uint32_t rows;                  ///< the first of the thread's, or of their group
  std::uint32_t position;              ///< of the sums, in rows
  std::uint32_t place = 0, count = 0;  ///< of the sums, of which `count` exist
  std::uint32_t from = 0, length = 0,
                factors = 0;  ///< of the numbers that they go over, of their factors

  /// Of rows that hold `copies` vectors of length n, `apart` positions from each other. Lanes are in an order
  /// in which four and four of them read eight rows and two sums' factors.
  /// Segments differ in length: `warp` goes round from block to block, so that the long ones are not all one
  /// scheduler's.
  __device__ Part(std::uint32_t n, std::uint32_t copies, std::uint32_t apart, const Side& side,
                  std::uint32_t warp) {
    rows = threadIdx.x / 2 % kOwn;
    position = 4 * (warp * 4 + threadIdx.x / 16 % 2 * 2 + threadIdx.x % 2);
    if (position >= copies * apart) return;
    const std::uint32_t within = copies == 1 ? position : position % apart;
    place = side.place[within];
    const math::dct::Segment own = math::dct::segment_of(n, place);
    const std::uint32_t before = place - own.begin;
    count = own.end - place < 4 ? own.end - place : 4;
    length = own.end - own.begin;
    from = position - before;
    factors = (within - before) * kSide + within;
  }
};

}  // namespace atomo::cuda::chunk_topk
