// SPDX-License-Identifier: Apache-2.0
/// A sketch's pairs on top of its rows, where y becomes what the message says; forms_add.cu adds it to y.
///
/// The mathematics. Entry (i, j) is v = f32(s * scale) + rest[i][j], one f32 sum; s is the sum over
/// the kept pairs, in order of k, of left[k][i] * right[k][j], each step one fused multiply-add of
/// f32 from 0. An entry beyond f32 is infinite, and the call says so.
///
/// Mapping. A block makes a tile of 64 rows by 64 columns (tile_product.cuh), a thread 8 neighbouring
/// columns of 4 rows. The rows have been decoded before, into y, whose entries are replaced where
/// they stand.
///
/// Traffic in bytes an entry: 4 read and 4 written; vectors come from the caches, 1/8 byte an entry and pair. 2
/// floating-point operations an entry and pair: with some 20 pairs or fewer the memory is what it waits for.
///
/// Shared memory: 8,704 bytes. Determinism: every entry is summed by one thread in order of k. Alignment:
/// vectors stand in the workspace at multiples of 128 bytes; y is aligned to its entries, and 16 bytes are
/// read and written at once where it allows it.

#include "cuda/entries.cuh"
#include "cuda/outer.cuh"
#include "cuda/tile_product.cuh"

namespace atomo::cuda {
namespace {

/// Four of a thread's entries at `y`, of which `left` are the tensor's; whether one is infinite.
__device__ bool put_on_four(float* y, std::uint64_t left, const float* sums, float scale) {
  float v[4];
  Entries{y, DType::f32}.four(0, left, v);
  bool infinite = false;
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    v[c] = sums[c] * scale + v[c];
    infinite = infinite || (c < left && is_infinite(v[c]));
  }
  put_four(y, 0, left, v, {});
  return infinite;
}

__global__ void __launch_bounds__(kTileThreads) put_pairs_on_rows(Frame frame, OuterPlan plan) {
  const UnitOf at = find_unit(frame, plan.sketch_tiles, blockIdx.x);
  const OuterJob& job = frame(plan.jobs)[at.job];
  const LayerState& layer = frame.layer(job.layer);
  const OuterState& state = frame(plan.states)[at.job];
  // An empty body is done: zeros are there, and nothing is added.
  if (layer.decodes == 0 || layer.bytes == 0 || form_of(layer) != job.form) return;
  const std::uint64_t rows = job.rows, columns = job.columns;
  const std::uint64_t tiles = divide_up(columns, kTileLines);
  const TilePlace place{at.index % tiles * kTileLines, at.index / tiles * kTileLines, 0,
                        state.count};
  const bool wide = rows <= columns;
  const Operand<float> right{frame(wide ? job.longer : job.shorter), vector_stride(columns),
                             columns, false};
  const Operand<float> left{frame(wide ? job.shorter : job.longer), vector_stride(rows), rows,
                            false};
  const auto scale = static_cast<float>(state.scale);
  bool infinite = false;
  multiply_tile<float>(right, left, place,
                       [&](std::uint64_t row, std::uint64_t first, const float(&sums)[8]) {
                         float* const y = layer.y + row * columns + first;
                         const std::uint64_t own = columns - first;
                         infinite = put_on_four(y, own, sums, scale) || infinite;
                         if (own > 4)
                           infinite = put_on_four(y + 4, own - 4, sums + 4, scale) || infinite;
                       });
  if (infinite) frame.notice(Status::overflow);
}

}  // namespace

std::uint64_t low_rank_tiles(const MatrixShape& shape) {
  return divide_up(shape.rows, kTileLines) * divide_up(shape.columns, kTileLines);
}

void put_low_rank(const Frame& frame, const OuterPlan& plan, Queue& queue) {
  queue.launch_blocks(put_pairs_on_rows, plan.sketch_tiles.units, kTileThreads, 0, frame, plan);
}

}  // namespace atomo::cuda
