// SPDX-License-Identifier: Apache-2.0
/// Tensors as sequences of tiles for chunked top-k, as they are or transformed; tile_inverse.cu has the way back.
///
/// Mathematics: X = B x B' of a tile of at most 64 x 64 entries in f32: rows and columns are folded into sums
/// and differences, then multiplied by small matrices, sums in ascending order by fused operations
/// (math/tile_transform.hpp), as the CPU does.
///
/// Mapping: a block of 128 threads a tile, or as many lower ones, one above the other,
/// as fit. A thread folds eight entries of a row in registers. Of a product it has eight rows and four
/// neighbouring columns, whose sums stay in registers: of numbers and of factors it reads four at once. Between
/// the products the tile is turned, so that both go along rows.
///
/// Traffic an entry: 4 bytes read and written. A transform of 64 x 64 entries takes 44 products an entry in f32.
///
/// Shared memory: 35 KiB. Rows are 68 numbers apart, so that eight of them are in all banks. Segments of a
/// folded vector begin at multiples of four. Workspace: the sequence. Every sum belongs to one thread, no
/// order matters.

#include "cuda/entries.cuh"
#include "cuda/tile_fold.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

/// A part's sums, in ascending order, of the rows that begin at `row` in the numbers.
__device__ __forceinline__ void multiply(const TileMemory& memory, const Part& part,
                                         const std::uint32_t (&row)[kOwn], float (&sum)[kOwn][4]) {
  const float* factors = memory.basis + part.factors;
  const float* numbers = memory.numbers + part.from;
#pragma unroll
  for (auto& four : sum) {
#pragma unroll
    for (float& v : four) v = 0.0f;
  }
  const auto add = [&](unsigned k, float number, const float4& factor) {
    sum[k][0] = fmaf(number, factor.x, sum[k][0]);
    sum[k][1] = fmaf(number, factor.y, sum[k][1]);
    sum[k][2] = fmaf(number, factor.z, sum[k][2]);
    sum[k][3] = fmaf(number, factor.w, sum[k][3]);
  };
  std::uint32_t left = part.length;
#pragma unroll 1
  for (; left >= 4; left -= 4, numbers += 4, factors += 4 * kSide) {
    float4 factor[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      factor[i] = *reinterpret_cast<const float4*>(factors + i * kSide);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      const float4 four = *reinterpret_cast<const float4*>(numbers + row[k]);
      add(k, four.x, factor[0]);
      add(k, four.y, factor[1]);
      add(k, four.z, factor[2]);
      add(k, four.w, factor[3]);
    }
  }
#pragma unroll 1
  for (; left != 0; --left, ++numbers, factors += kSide) {
    const float4 factor = *reinterpret_cast<const float4*>(factors);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) add(k, numbers[row[k]], factor);
  }
}

/// By a whole block: the first `count` rows, each of `copies` vectors of length n, times the basis, in place.
__device__ __forceinline__ void multiply_in_place(std::uint32_t count, std::uint32_t n,
                                                  std::uint32_t copies, std::uint32_t apart,
                                                  const Side& side, TileMemory& memory) {
  const Part part(n, copies, apart, side, warp_in_turn(2));
  std::uint32_t row[kOwn];
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) {
    const std::uint32_t number = part.rows + kOwn * k;
    row[k] = number < count ? number * kPitch : 0;
  }
  float sum[kOwn][4];
  multiply(memory, part, row, sum);
  __syncthreads();
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) {
    if (part.count == 0 || part.rows + kOwn * k >= count) continue;
    *reinterpret_cast<float4*>(memory.numbers + row[k] + part.position) =
        make_float4(sum[k][0], sum[k][1], sum[k][2], sum[k][3]);
  }
  __syncthreads();
}

/// What a number of a column gets added: a column of one entry is multiplied by 1, which makes 0 of -0.
[[nodiscard]] __device__ __forceinline__ float zero_of(const Stack& stack) {
  return stack.height == 1 ? 0.0f : -0.0f;
}

/// By a whole block: the stack's rows times the basis, their sums folded down the columns and turned, so that
/// each column is a row of the memory.
__device__ __forceinline__ void multiply_and_turn(const Stack& stack, TileMemory& memory) {
  const Part part(stack.width, 1, positions_of(stack.width), memory.across, warp_in_turn(0));
  const Eight own(stack.height, stack.count, part.rows);
  std::uint32_t row[kOwn];
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) row[k] = own.entry[k] * kPitch;
  float sum[kOwn][4];
  multiply(memory, part, row, sum);
  fold<false>(own.folds, sum);
  const float zero = zero_of(stack);
  __syncthreads();
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) {
    if (!own.has(k)) continue;
    float* const to = memory.numbers + part.place * kPitch + memory.down.position[own.entry[k]];
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      if (c < part.count) to[c * kPitch] = sum[k][c] + zero;
    }
  }
}

/// By a whole block: `visit(rows, exist, column, four)` for four neighbouring numbers of a column, where the
/// sequence's rows that hold them begin, and how many of these exist.
template <typename Visit>
__device__ __forceinline__ void each_four(const Stack& stack, TileMemory& memory, Visit visit) {
  for (std::uint32_t position = 4 * warp_in_block(); position < stack.count * stack.apart;
       position += 4 * kThreads / kLanes) {
    const uint4 four = *reinterpret_cast<const uint4*>(memory.sequence_row + position);
    const std::uint32_t rows[4] = {four.x, four.y, four.z, four.w};
    unsigned exist = 0;
#pragma unroll
    for (const std::uint32_t row : rows) exist += row != kNone ? 1 : 0;
    for (std::uint32_t column = lane(); column < stack.width; column += kLanes)
      visit(rows, exist, column,
            *reinterpret_cast<float4*>(memory.numbers + memory.column[column] * kPitch + position));
  }
}

/// By a whole block: `visit(row, column)` for all entries of a stack.
template <typename Visit>
__device__ __forceinline__ void each_entry(const Stack& stack, Visit visit) {
  for (std::uint32_t row = warp_in_block(); row < stack.rows; row += kThreads / kLanes) {
    for (std::uint32_t column = lane(); column < stack.width; column += kLanes) visit(row, column);
  }
}

/// By a whole block: the stack's rows, folded, in the memory. False where this thread met an entry that is
/// not finite.
__device__ __forceinline__ bool read_rows(const Stack& stack, const Entries& entries,
                                          TileMemory& memory) {
  const Eight own(stack.width, 1, threadIdx.x % kOwn);
  std::uint32_t to[kOwn];
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) to[k] = memory.across.position[own.entry[k]];
  bool finite = true;
#pragma unroll 1
  for (unsigned turn = 0; turn < kSide / kRowsAtOnce; ++turn) {
    const std::uint32_t row = own_row(turn);
    if (row >= stack.rows) break;
    float x[kOwn];
    const std::uint64_t from = memory.tensor_row[row];
    if (entries.dtype == DType::f32) {
      const float* const at = static_cast<const float*>(entries.x) + from;
#pragma unroll
      for (unsigned k = 0; k < kOwn; ++k) x[k] = own.has(k) ? at[own.entry[k]] : 0.0f;
    } else {
#pragma unroll
      for (unsigned k = 0; k < kOwn; ++k) x[k] = own.has(k) ? entries(from + own.entry[k]) : 0.0f;
    }
    finite &= drop_non_finite(x);
    float scaled[kOwn][1];
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) scaled[k][0] = x[k] * math::dct::kScaleIn;
    fold<false>(own.folds, scaled);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if (own.has(k)) memory.numbers[row * kPitch + to[k]] = scaled[k][0];
    }
  }
  return finite;
}

__global__ void __launch_bounds__(kThreads, 5) to_tiles(const Frame frame, const Plan plan) {
  const UnitOf at = find_unit_together(frame, plan.tiles, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  auto& memory = shared<TileMemory>();
  if (threadIdx.x == 0) memory.stack = Stack(job.tiles, at.index);
  __syncthreads();
  const Stack& stack = memory.stack;
  float* const sequence = frame(plan.sequence) + job.first_entry + stack.first_entry();
  fill_rows(job.tiles, stack, memory);
  if (!job.transforms()) {
    __syncthreads();
    const Entries x = frame.entries(job.layer);
    bool finite = true;
    each_entry(stack, [&](std::uint32_t row, std::uint32_t column) {
      const float v = x(memory.tensor_row[row] + column);
      finite &= is_finite(v);
      sequence[row * stack.width + column] = is_finite(v) ? v : 0.0f;
    });
    if (!finite) frame.mark_non_finite(job.layer);
    return;
  }
  fill_tables(stack, memory);
  fill_basis<false>(stack.width, memory.across, memory.basis);
  if (!read_rows(stack, frame.entries(job.layer), memory)) frame.mark_non_finite(job.layer);
  __syncthreads();
  multiply_and_turn(stack, memory);
  if (stack.height != stack.width) fill_basis<false>(stack.height, memory.down, memory.basis);
  __syncthreads();
  if (stack.height > 1)
    multiply_in_place(stack.width, stack.height, stack.count, stack.apart, memory.down, memory);
  each_four(stack, memory,
            [&](const std::uint32_t(&rows)[4], unsigned exist, std::uint32_t column,
                const float4& numbers) {
              float* const to = in_one(sequence + column);
              const float4 four = numbers;
              const float v[4] = {four.x, four.y, four.z, four.w};
              if (exist == 4) {
#pragma unroll
                for (unsigned k = 0; k < 4; ++k) to[rows[k]] = math::dct::scaled_out(v[k]);
                return;
              }
#pragma unroll
              for (unsigned k = 0; k < 3; ++k) {
                if (k < exist) to[rows[k]] = math::dct::scaled_out(v[k]);
              }
            });
}

}  // namespace

void make_sequences(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_blocks(to_tiles, plan.tiles.units, kThreads, 0, frame, plan);
}

}  // namespace atomo::cuda::chunk_topk
