// SPDX-License-Identifier: Apache-2.0
/// Tensors as sequences of tiles for chunked top-k, as they are or transformed, and back.
///
/// Mathematics: X = B x B' of a tile of at most 64 x 64 entries in f32: rows and columns are folded into sums
/// and differences, then multiplied by small matrices, sums in ascending order by fused operations
/// (math/tile_transform.hpp), as the CPU does.
///
/// Mapping, one launch each way: a block of 128 threads a tile, or as many lower ones, one above the other,
/// as fit. A thread folds eight entries of a row in registers. Of a product it has eight rows and four
/// neighbouring columns, whose sums stay in registers: of numbers and of factors it reads four at once. Between
/// the products the tile is turned, so that both go along rows.
///
/// Traffic an entry: 4 bytes read and written, 8 read and 4 written when adding. A transform of 64 x 64
/// entries takes 44 products an entry in f32.
///
/// Shared memory: 35 KiB. Rows are 68 numbers apart, so that eight of them are in all banks. Segments of a
/// folded vector begin at multiples of four. Workspace: the sequence. Every sum belongs to one thread, no
/// order matters.

#include "cuda/entries.cuh"
#include "cuda/tile_tables.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

/// Eight of the entries of `count` vectors of length n, one after the other: whole groups of those that are
/// folded together. Eight threads have 64 entries.
struct Eight {
  std::uint32_t folds, valid = 0;  ///< of which those of the lowest bits exist
  std::uint32_t entry[kOwn];       ///< the first, where one does not exist

  __device__ Eight(std::uint32_t n, std::uint32_t count, std::uint32_t thread) {
    std::uint32_t left = n;
    for (folds = 0; math::dct::folds(left); left /= 2) ++folds;
    const std::uint32_t groups = left * count;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      const std::uint32_t group = thread + kOwn * (k >> folds);
      if (group >= groups) {
        entry[k] = 0;
        continue;
      }
      valid |= 1u << k;
      const std::uint32_t vector = count == 1 ? 0 : group / left;
      std::uint32_t own = group - vector * left;
#pragma unroll
      for (unsigned bit = 0; bit < math::dct::kMaxFolds; ++bit) {
        if (bit < folds && (k >> bit & 1) != 0) own = (left << (bit + 1)) - 1 - own;
      }
      entry[k] = vector * n + own;
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
  __device__ Part(std::uint32_t n, std::uint32_t copies, std::uint32_t apart, const Side& side) {
    rows = threadIdx.x / 2 % kOwn;
    position = 4 * (threadIdx.x / kLanes * 4 + threadIdx.x / 16 % 2 * 2 + threadIdx.x % 2);
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
  const Part part(n, copies, apart, side);
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
  const Part part(stack.width, 1, positions_of(stack.width), memory.across);
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

/// By a whole block: a tile's columns, rows of the memory, unfolded and turned back.
__device__ __forceinline__ void unfold_and_turn(const Stack& stack, TileMemory& memory) {
  const Eight own(stack.height, stack.count, threadIdx.x % kOwn);
  constexpr unsigned kTurns = kSide / kRowsAtOnce;
  float x[kTurns][kOwn][1];
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const std::uint32_t column = own_row(turn);
    if (column >= stack.width) continue;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k)
      x[turn][k][0] = memory.numbers[column * kPitch + memory.down.position[own.entry[k]]];
    fold<true>(own.folds, x[turn]);
  }
  const float zero = zero_of(stack);
  __syncthreads();
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const std::uint32_t column = own_row(turn);
    if (column >= stack.width) continue;
    const std::uint32_t to = memory.across.position[column];
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if (own.has(k)) memory.numbers[own.entry[k] * kPitch + to] = x[turn][k][0] + zero;
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

/// By a whole block: the memory's rows, unfolded, to the tensor.
__device__ __forceinline__ void write_rows(const Stack& stack, const TileMemory& memory, float* y,
                                           DecodeInto into) {
  const Eight own(stack.width, 1, threadIdx.x % kOwn);
  std::uint32_t from[kOwn];
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) from[k] = memory.across.position[own.entry[k]];
#pragma unroll 1
  for (unsigned turn = 0; turn < kSide / kRowsAtOnce; ++turn) {
    const std::uint32_t row = own_row(turn);
    if (row >= stack.rows) break;
    float x[kOwn][1];
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) x[k][0] = memory.numbers[row * kPitch + from[k]];
    fold<true>(own.folds, x);
    float* const to = y + memory.tensor_row[row];
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if (own.has(k)) put(to + own.entry[k], math::dct::scaled_out(x[k][0]), into);
    }
  }
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

__global__ void __launch_bounds__(kThreads, 5)
    from_tiles(const Frames frames, const std::uint32_t m, const DecodePlan plan,
               const DecodeInto into) {
  const Frame frame = frames[m];
  const UnitOf at = find_unit_together(frame, plan.tiles, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  if (frame.layer(job.layer).decodes == 0 || frame(plan.readable)[at.job] == 0 ||
      frame(plan.broken)[at.job] != 0) {
    return;
  }
  auto& memory = shared<TileMemory>();
  if (threadIdx.x == 0) memory.stack = Stack(job.tiles, at.index);
  __syncthreads();
  const Stack& stack = memory.stack;
  const float* const sequence = frames.first(plan.sequence) + job.first_entry + stack.first_entry();
  float* const y = frames.first.layer(job.layer).y;
  fill_rows(job.tiles, stack, memory);
  if (!job.transforms()) {
    __syncthreads();
    each_entry(stack, [&](std::uint32_t row, std::uint32_t column) {
      put(y + memory.tensor_row[row] + column, sequence[row * stack.width + column], into);
    });
    return;
  }
  fill_tables(stack, memory);
  fill_basis<true>(stack.height, memory.down, memory.basis);
  __syncthreads();
  each_four(
      stack, memory,
      [&](const std::uint32_t(&rows)[4], unsigned exist, std::uint32_t column, float4& numbers) {
        const float* const from = in_one(sequence + column);
        float v[4] = {};
        if (exist == 4) {
#pragma unroll
          for (unsigned k = 0; k < 4; ++k) v[k] = from[rows[k]];
        } else {
#pragma unroll
          for (unsigned k = 0; k < 3; ++k) v[k] = k < exist ? from[rows[k]] : 0.0f;
        }
        constexpr float kScale = math::dct::kScaleIn;
        numbers = make_float4(v[0] * kScale, v[1] * kScale, v[2] * kScale, v[3] * kScale);
      });
  __syncthreads();
  if (stack.height > 1)
    multiply_in_place(stack.width, stack.height, stack.count, stack.apart, memory.down, memory);
  unfold_and_turn(stack, memory);
  if (stack.height != stack.width) fill_basis<true>(stack.width, memory.across, memory.basis);
  __syncthreads();
  multiply_in_place(stack.rows, stack.width, 1, positions_of(stack.width), memory.across, memory);
  write_rows(stack, memory, y, into);
}

}  // namespace

void make_sequences(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_blocks(to_tiles, plan.tiles.units, kThreads, 0, frame, plan);
}

void add_sequences(const Frames& frames, std::uint32_t m, const DecodePlan& plan, DecodeInto into,
                   Queue& queue) {
  queue.launch_blocks(from_tiles, plan.tiles.units, kThreads, 0, frames, m, plan, into);
}

}  // namespace atomo::cuda::chunk_topk
