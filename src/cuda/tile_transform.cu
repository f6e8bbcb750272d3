// SPDX-License-Identifier: Apache-2.0
/// Tensors as sequences of tiles for chunked top-k, as they are or transformed, and back.
///
/// Mathematics: X = B x B' of a tile of at most 64 x 64 entries in f32: rows and columns are folded into sums
/// and differences, then multiplied by small matrices, sums in ascending order by fused operations
/// (math/tile_transform.hpp), as the CPU does.
///
/// Mapping, one launch each way: a block of 256 threads a tile, or as many lower ones, one above the other,
/// as have 64 rows together. A thread has up to sixteen entries of a column, four rows apart, whose sums stay
/// in registers; the tiles and a basis are in shared memory.
///
/// Traffic an entry: 4 bytes read and written, 8 read and 4 written when adding. A transform of 64 x 64
/// entries takes 44 products an entry in f32.
///
/// Shared memory: 32 KiB. Workspace: the sequence. Every sum belongs to one thread, no order matters.

#include "cuda/chunk_topk.cuh"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

using math::Tiles;

constexpr std::uint32_t kSide = math::kMaxTileSide;
constexpr unsigned kRowsApart = kScanThreads / kSide, kRows = kSide / kRowsApart;

__device__ constexpr math::dct::Table kTable = math::dct::make_table();

struct TileMemory {
  float tile[kSide * kSide], basis[kSide * kSide];
};

/// By a whole block: the factors of places of length n, each row a place's, or, `across`, each column.
__device__ __forceinline__ void fill_basis(std::uint32_t n, bool across, float* basis) {
  for (std::uint32_t i = threadIdx.x; i < n * n; i += kScanThreads) {
    const std::uint32_t place = i / n, inner = i % n;
    const math::dct::Segment own = math::dct::segment_of(n, place);
    if (inner < own.begin || inner >= own.end) continue;
    basis[across ? inner * kSide + place : place * kSide + inner] =
        math::dct::factor(kTable, n, place, inner);
  }
}

/// The tiles of a block, one above the other in its memory.
struct Stack {
  const Tiles& tiles;
  std::uint64_t first;  ///< tile
  std::uint32_t rows;   ///< of all of them

  __device__ Stack(const Tiles& of, std::uint64_t number) : tiles(of) {
    const std::uint32_t together = tiles_together(of);
    first = number * together;
    const std::uint64_t left = of.count() - first;
    rows = of.height * static_cast<std::uint32_t>(left < together ? left : together);
  }

  /// By a whole block: `visit(row, column, entry of the tensor, entry of the sequence)` for all entries.
  template <typename Visit>
  __device__ void each_entry(Visit visit) const {
    const std::uint64_t at = first * tiles.entries();
    for (std::uint32_t i = threadIdx.x; i < rows * tiles.width; i += kScanThreads) {
      const std::uint32_t row = i / tiles.width, column = i % tiles.width;
      const std::uint64_t from = tiles.first(first + row / tiles.height);
      visit(row, column, from + row % tiles.height * tiles.columns + column, at + i);
    }
  }
};

/// By a whole block: sums and differences on both sides of the middles of vectors of `2 * half` entries, in
/// the columns of each tile (kColumns) or in its rows.
template <bool kColumns>
__device__ __forceinline__ void fold(const Stack& stack, std::uint32_t half, float* tile) {
  const Tiles& tiles = stack.tiles;
  const std::uint32_t across = kColumns ? tiles.width : half;
  const std::uint32_t down = kColumns ? stack.rows / tiles.height * half : stack.rows;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < across * down; i += kScanThreads) {
    const std::uint32_t row = i / across, column = i % across;
    std::uint32_t before, behind;
    if constexpr (kColumns) {
      const std::uint32_t middle = row / half * tiles.height + half;
      before = (middle - 1 - row % half) * kSide + column;
      behind = (middle + row % half) * kSide + column;
    } else {
      before = row * kSide + half - 1 - column;
      behind = row * kSide + half + column;
    }
    const float a = tile[before], b = tile[behind];
    tile[before] = a + b;
    tile[behind] = a - b;
  }
}
template <bool kColumns>
__device__ __forceinline__ void fold_all(const Stack& stack, float* tile) {
  std::uint32_t n = kColumns ? stack.tiles.height : stack.tiles.width;
  for (; math::dct::folds(n); n /= 2) fold<kColumns>(stack, n / 2, tile);
}
template <bool kColumns>
__device__ __forceinline__ void unfold_all(const Stack& stack, float* tile) {
  const std::uint32_t n = kColumns ? stack.tiles.height : stack.tiles.width;
  for (std::uint32_t half = math::dct::folded_length(n); half < n; half *= 2)
    fold<kColumns>(stack, half, tile);
}

/// By a whole block: each row of a tile becomes row * basis.
__device__ __forceinline__ void multiply_rows(const Stack& stack, TileMemory& memory) {
  const std::uint32_t column = threadIdx.x % kSide, first = threadIdx.x / kSide;
  float sum[kRows] = {};
  __syncthreads();
  if (column < stack.tiles.width) {
    const math::dct::Segment own = math::dct::segment_of(stack.tiles.width, column);
    for (std::uint32_t i = own.begin; i < own.end; ++i) {
      const float factor = memory.basis[i * kSide + column];
#pragma unroll
      for (unsigned r = 0; r < kRows; ++r) {
        const std::uint32_t row = first + r * kRowsApart;
        if (row >= stack.rows) break;
        sum[r] = fmaf(memory.tile[row * kSide + i], factor, sum[r]);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
    const std::uint32_t row = first + r * kRowsApart;
    if (row < stack.rows && column < stack.tiles.width) memory.tile[row * kSide + column] = sum[r];
  }
}

/// By a whole block: the rows [begin, end) of each tile become basis * rows.
__device__ __forceinline__ void multiply_segment(const Stack& stack, std::uint32_t begin,
                                                 std::uint32_t end, TileMemory& memory) {
  const Tiles& tiles = stack.tiles;
  const std::uint32_t column = threadIdx.x % kSide, first = threadIdx.x / kSide;
  const std::uint32_t size = end - begin, count = stack.rows / tiles.height * size;
  const bool alone = stack.rows == tiles.height;
  float sum[kRows] = {};
  for (std::uint32_t i = begin; i < end && column < tiles.width; ++i) {
    float factor = memory.tile[i * kSide + column];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      const std::uint32_t row = first + r * kRowsApart;
      if (row >= count) break;
      const std::uint32_t within = alone ? row : row % size;
      if (!alone) factor = memory.tile[(row / size * tiles.height + i) * kSide + column];
      sum[r] = fmaf(memory.basis[(begin + within) * kSide + i], factor, sum[r]);
    }
  }
  __syncthreads();
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
    const std::uint32_t row = first + r * kRowsApart;
    if (row < count && column < tiles.width)
      memory.tile[(row / size * tiles.height + begin + row % size) * kSide + column] = sum[r];
  }
}
__device__ __forceinline__ void multiply_columns(const Stack& stack, TileMemory& memory) {
  const std::uint32_t n = stack.tiles.height;
  __syncthreads();
  for (std::uint32_t begin = 0, end = math::dct::folded_length(n); begin < n;) {
    multiply_segment(stack, begin, end, memory);
    begin = end;
    end *= 2;
  }
}

/// By a whole block: to frequencies at their places, and back.
__device__ __forceinline__ void transform(const Stack& stack, TileMemory& memory) {
  fill_basis(stack.tiles.width, true, memory.basis);
  fold_all<false>(stack, memory.tile);
  multiply_rows(stack, memory);
  __syncthreads();
  fill_basis(stack.tiles.height, false, memory.basis);
  fold_all<true>(stack, memory.tile);
  multiply_columns(stack, memory);
}
__device__ __forceinline__ void restore(const Stack& stack, TileMemory& memory) {
  fill_basis(stack.tiles.height, true, memory.basis);
  multiply_columns(stack, memory);
  unfold_all<true>(stack, memory.tile);
  __syncthreads();
  fill_basis(stack.tiles.width, false, memory.basis);
  multiply_rows(stack, memory);
  unfold_all<false>(stack, memory.tile);
}

/// Where an entry of a stack's sequence stands in its memory: a frequency at its place.
struct Places {
  std::uint8_t row[kSide], column[kSide];
};
__device__ void fill_places(const Tiles& tiles, Places& places) {
  if (threadIdx.x < tiles.height)
    places.row[math::dct::frequency_of(tiles.height, threadIdx.x)] =
        static_cast<std::uint8_t>(threadIdx.x);
  if (threadIdx.x < tiles.width)
    places.column[math::dct::frequency_of(tiles.width, threadIdx.x)] =
        static_cast<std::uint8_t>(threadIdx.x);
}
[[nodiscard]] __device__ std::uint32_t place_of(const Tiles& tiles, const Places& places,
                                                std::uint32_t row, std::uint32_t column) {
  const std::uint32_t within = row % tiles.height;
  return (row - within + places.row[within]) * kSide + places.column[column];
}

__global__ void __launch_bounds__(kScanThreads, 4) to_tiles(const Frame frame, const Plan plan) {
  const UnitOf at = find_unit(frame, plan.tiles, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  const Stack stack(job.tiles, at.index);
  auto& memory = shared<TileMemory>();
  const Entries x = frame.entries(job.layer);
  float* const sequence = frame(plan.sequence) + job.first_entry;
  const bool transforms = job.transforms();
  bool finite = true;
  stack.each_entry([&](std::uint32_t row, std::uint32_t column, std::uint64_t from, std::uint64_t) {
    const float v = x(from), kept = is_finite(v) ? v : 0.0f;
    finite = finite && is_finite(v);
    memory.tile[row * kSide + column] = transforms ? kept * math::dct::kScaleIn : kept;
  });
  if (!finite) frame.mark_non_finite(job.layer);
  auto& places = shared<Places>();
  if (transforms) {
    fill_places(job.tiles, places);
    transform(stack, memory);
  }
  __syncthreads();
  stack.each_entry([&](std::uint32_t row, std::uint32_t column, std::uint64_t, std::uint64_t to) {
    sequence[to] =
        transforms ? math::dct::scaled_out(memory.tile[place_of(job.tiles, places, row, column)])
                   : memory.tile[row * kSide + column];
  });
}

__global__ void __launch_bounds__(kScanThreads, 4)
    from_tiles(const Frames frames, const std::uint32_t m, const DecodePlan plan,
               const DecodeInto into) {
  const Frame frame = frames[m];
  const UnitOf at = find_unit(frame, plan.tiles, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  if (frame.layer(job.layer).decodes == 0 || frame(plan.readable)[at.job] == 0 ||
      frame(plan.broken)[at.job] != 0) {
    return;
  }
  const Stack stack(job.tiles, at.index);
  auto& memory = shared<TileMemory>();
  const float* const sequence = frames.first(plan.sequence) + job.first_entry;
  float* const y = frames.first.layer(job.layer).y;
  const bool transforms = job.transforms();
  auto& places = shared<Places>();
  if (transforms) fill_places(job.tiles, places);
  __syncthreads();
  stack.each_entry([&](std::uint32_t row, std::uint32_t column, std::uint64_t, std::uint64_t from) {
    if (transforms)
      memory.tile[place_of(job.tiles, places, row, column)] = sequence[from] * math::dct::kScaleIn;
    else
      memory.tile[row * kSide + column] = sequence[from];
  });
  if (transforms) restore(stack, memory);
  __syncthreads();
  stack.each_entry([&](std::uint32_t row, std::uint32_t column, std::uint64_t to, std::uint64_t) {
    const float v = memory.tile[row * kSide + column];
    put(y + to, transforms ? math::dct::scaled_out(v) : v, into);
  });
}

}  // namespace

void make_sequences(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_blocks(to_tiles, plan.tiles.units, kScanThreads, 0, frame, plan);
}

void add_sequences(const Frames& frames, std::uint32_t m, const DecodePlan& plan, DecodeInto into,
                   Queue& queue) {
  queue.launch_blocks(from_tiles, plan.tiles.units, kScanThreads, 0, frames, m, plan, into);
}

}  // namespace atomo::cuda::chunk_topk
