// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a block of tile_transform.cu has in shared memory: its tiles, the tables of their sides, and the
/// factors of a product.

#include "cuda/chunk_topk.cuh"

namespace atomo::cuda::chunk_topk {

using math::Tiles;

inline constexpr std::uint32_t kSide = math::kMaxTileSide;
inline constexpr std::uint32_t kPitch = kSide + 4;  ///< from a row in the memory to the next
inline constexpr unsigned kThreads = 128;
inline constexpr unsigned kOwn = 8;  ///< rows of a product, or entries of a row, of a thread
inline constexpr unsigned kRowsAtOnce = kThreads / kOwn;  ///< whose entries a block has
inline constexpr std::uint32_t kNone = ~0u;

__device__ constexpr math::dct::Table kTable = math::dct::make_table();

/// A side's folded entries in a row of the memory, and their factors.
struct Side {
  float cosine[4 * kSide];       ///< of an angle
  std::uint8_t position[kSide];  ///< of a place; in columns, of a row of the stack
  std::uint8_t place[kSide];     ///< at a position that has one
};

/// The tiles of a block, one above the other: in columns `apart` positions from each other.
struct Stack {
  std::uint64_t first;          ///< tile
  std::uint32_t height, width;  ///< of a tile
  std::uint32_t count, rows, apart;

  Stack() = default;
  __device__ Stack(const Tiles& tiles, std::uint64_t number)
      : height(tiles.height), width(tiles.width), apart(positions_of(tiles.height)) {
    const std::uint32_t together = tiles_together(tiles);
    first = number * together;
    const std::uint64_t left = tiles.count() - first;
    count = static_cast<std::uint32_t>(left < together ? left : together);
    rows = height * count;
  }
  [[nodiscard]] __device__ std::uint64_t first_entry() const { return first * (height * width); }
  /// Where a row of it begins in the tensor.
  [[nodiscard]] __device__ std::uint64_t row_at(const Tiles& tiles, std::uint32_t row) const {
    const std::uint32_t tile = row / height;
    return tiles.first(first + tile) + (row - tile * height) * tiles.columns;
  }
};

struct TileMemory {
  Stack stack;
  alignas(16) float numbers[kSide * kPitch];
  alignas(16) float basis[kSide * kSide];
  alignas(16) std::uint32_t
      sequence_row[kSide];          ///< of a position in a column: where it begins, or kNone
  std::uint64_t tensor_row[kSide];  ///< where a row of the stack begins
  Side down, across;
  std::uint8_t column[kSide];  ///< the place of a row's frequency
};

/// By a whole block: where rows begin in the tensor.
__device__ __forceinline__ void fill_rows(const Tiles& tiles, const Stack& stack,
                                          TileMemory& memory) {
  if (threadIdx.x < stack.rows) memory.tensor_row[threadIdx.x] = stack.row_at(tiles, threadIdx.x);
}

/// Where a place stands in a row of the memory.
[[nodiscard]] __device__ __forceinline__ std::uint32_t position_of(std::uint32_t n,
                                                                   std::uint32_t place) {
  const std::uint32_t begin = math::dct::segment_of(n, place).begin;
  return begin == 0 ? place : positions_of(begin) + place - begin;
}

/// By a whole block: the tables of `count` vectors of length n, `apart` positions from each other.
__device__ __forceinline__ void fill_side(std::uint32_t n, std::uint32_t count, std::uint32_t apart,
                                          Side& side) {
  const float* const numbers = kTable.at + math::dct::begin_of(n);
#pragma unroll 1
  for (std::uint32_t angle = threadIdx.x; angle < 4 * n; angle += kThreads)
    side.cosine[angle] = math::dct::cosine(numbers, n, angle);
  if (threadIdx.x >= n * count) return;
  const std::uint32_t place = threadIdx.x % n, position = position_of(n, place);
  side.position[threadIdx.x] = static_cast<std::uint8_t>(threadIdx.x / n * apart + position);
  if (threadIdx.x < n) side.place[position] = static_cast<std::uint8_t>(place);
}

/// By a whole block: the tables of a stack that is transformed.
__device__ __forceinline__ void fill_tables(const Stack& stack, TileMemory& memory) {
  fill_side(stack.height, stack.count, stack.apart, memory.down);
  fill_side(stack.width, 1, 0, memory.across);
  if (threadIdx.x < stack.width)
    memory.column[math::dct::frequency_of(stack.width, threadIdx.x)] =
        static_cast<std::uint8_t>(threadIdx.x);
  if (threadIdx.x < kSide) memory.sequence_row[threadIdx.x] = kNone;
  __syncthreads();
  if (threadIdx.x < stack.rows) {
    const std::uint32_t tile = threadIdx.x / stack.height, place = threadIdx.x % stack.height;
    memory.sequence_row[memory.down.position[threadIdx.x]] =
        tile * stack.height * stack.width +
        math::dct::frequency_of(stack.height, place) * stack.width;
  }
}

/// By a whole block: rows of factors, one for each number that sums go over, for sums in a row. Sums of a
/// side of n entries are frequencies, or, `kBack`, entries.
template <bool kBack>
__device__ __forceinline__ void fill_basis(std::uint32_t n, const Side& side, float* basis) {
  const std::uint32_t sum = threadIdx.x % kSide, turn = 4 * n;
  if (sum >= n) return;
  constexpr std::uint32_t kStep = kThreads / kSide;
  const math::dct::Segment own = math::dct::segment_of(n, sum);
  const float constant = kTable.at[math::dct::begin_of(n) + n + 1];
  std::uint32_t i = own.begin + threadIdx.x / kSide, step;
  std::uint32_t angle = kBack ? math::dct::angle(n, own.frequency(i), own.entry(sum))
                              : math::dct::angle(n, own.frequency(sum), own.entry(i));
  if constexpr (kBack) {
    step = kStep * own.stride * (2 * own.entry(sum) + 1) % turn;
  } else {
    step = 2 * kStep * own.frequency(sum) % turn;
    if (own.begin != 0) step = turn - step;
  }
  float* to = basis + (side.position[own.begin] + i - own.begin) * kSide + side.position[sum];
#pragma unroll 4
  for (; i < own.end; i += kStep, to += kStep * kSide) {
    *to = (kBack ? i : sum) == 0 ? constant : side.cosine[angle];
    angle += step;
    angle -= angle >= turn ? turn : 0;
  }
}

}  // namespace atomo::cuda::chunk_topk
