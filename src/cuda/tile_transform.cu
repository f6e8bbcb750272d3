// SPDX-License-Identifier: Apache-2.0
/// Tensors as sequences of tiles for chunked top-k, as they are or transformed, and back.
///
/// Mathematics: X = B x B' of a tile of at most 64 x 64 entries, two products whose sums are in f64 of exact
/// products of f32, in ascending order (math/tile_transform.hpp); with or without fused operations the same.
///
/// Mapping, one launch each way: a block of 256 threads a tile, or as many lower ones, one above the other,
/// as have 64 rows together. A thread has sixteen entries of a column, four rows apart, whose sums stay in
/// registers; the tiles and a basis are in shared memory.
///
/// Traffic an entry: 4 bytes read and written, 8 read and 4 written when adding. A transform takes 2 side
/// products an entry in f64.
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

/// By a whole block: the basis of length n, or its transpose.
__device__ void fill_basis(std::uint32_t n, bool transposed, float* basis) {
  for (std::uint32_t i = threadIdx.x; i < n * n; i += kScanThreads) {
    const std::uint32_t a = i / n, b = i % n;
    basis[a * kSide + b] =
        transposed ? math::dct::basis(kTable, n, b, a) : math::dct::basis(kTable, n, a, b);
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

/// By a whole block: each tile becomes tile * basis, of h x w and w x w entries, or basis * tile, of h x h
/// and h x w.
template <bool kFromLeft>
__device__ void multiply(const Stack& stack, TileMemory& memory) {
  const Tiles& tiles = stack.tiles;
  const std::uint32_t column = threadIdx.x % kSide, first = threadIdx.x / kSide;
  const std::uint32_t inner = kFromLeft ? tiles.height : tiles.width;
  const bool alone = stack.rows == tiles.height;
  double sum[kRows] = {};
  __syncthreads();
  for (std::uint32_t i = 0; i < inner && column < tiles.width; ++i) {
    double factor = (kFromLeft ? memory.tile : memory.basis)[i * kSide + column];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      const std::uint32_t row = first + r * kRowsApart;
      if (row >= stack.rows) break;
      if constexpr (kFromLeft) {
        const std::uint32_t within = alone ? row : row % tiles.height;
        if (!alone) factor = memory.tile[(row - within + i) * kSide + column];
        sum[r] += memory.basis[within * kSide + i] * factor;
      } else {
        sum[r] += memory.tile[row * kSide + i] * factor;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
    const std::uint32_t row = first + r * kRowsApart;
    if (row < stack.rows && column < tiles.width)
      memory.tile[row * kSide + column] = math::dct::cut_to_f32(sum[r]);
  }
}

__global__ void __launch_bounds__(kScanThreads) to_tiles(const Frame frame, const Plan plan) {
  const UnitOf at = find_unit(frame, plan.tiles, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  const Stack stack(job.tiles, at.index);
  auto& memory = shared<TileMemory>();
  const Entries x = frame.entries(job.layer);
  float* const sequence = frame(plan.sequence) + job.first_entry;
  bool finite = true;
  stack.each_entry([&](std::uint32_t row, std::uint32_t column, std::uint64_t from, std::uint64_t) {
    const float v = x(from);
    finite = finite && is_finite(v);
    memory.tile[row * kSide + column] = is_finite(v) ? v : 0.0f;
  });
  if (!finite) frame.mark_non_finite(job.layer);
  if (job.transforms()) {
    fill_basis(job.tiles.width, true, memory.basis);
    multiply<false>(stack, memory);
    __syncthreads();
    fill_basis(job.tiles.height, false, memory.basis);
    multiply<true>(stack, memory);
  }
  __syncthreads();
  stack.each_entry([&](std::uint32_t row, std::uint32_t column, std::uint64_t, std::uint64_t to) {
    sequence[to] = memory.tile[row * kSide + column];
  });
}

__global__ void __launch_bounds__(kScanThreads)
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
  stack.each_entry([&](std::uint32_t row, std::uint32_t column, std::uint64_t, std::uint64_t from) {
    memory.tile[row * kSide + column] = sequence[from];
  });
  if (job.transforms()) {
    fill_basis(job.tiles.height, true, memory.basis);
    multiply<true>(stack, memory);
    __syncthreads();
    fill_basis(job.tiles.width, false, memory.basis);
    multiply<false>(stack, memory);
  }
  __syncthreads();
  stack.each_entry([&](std::uint32_t row, std::uint32_t column, std::uint64_t to, std::uint64_t) {
    put(y + to, memory.tile[row * kSide + column], into);
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
