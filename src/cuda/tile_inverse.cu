// SPDX-License-Identifier: Apache-2.0
/// Transformed tiles of chunked top-k (tile_transform.cu), back into the tensor, of all messages of a call.
///
/// Mathematics: X = B' x B in f32, sums in ascending order by fused operations (math/tile_transform.hpp), as
/// the CPU does. Few entries are kept, so of most sums most terms are 0 times a factor, which change nothing
/// unless the sum is -0. It never is where kept entries are 0 or at least 2^-52: then all numbers are
/// multiples of 2^-145, so that no sum is rounded to 0. Terms of entries that are not kept are left out, then
/// those of columns without a kept entry; a tile with a smaller entry has all of its terms added.
///
/// Mapping, one launch: a block of 128 threads a tile, or as many lower ones, one above the other, as fit. Its
/// entries in the tensor stay in registers, 32 a thread, while one message after the other is added: the
/// message's slots, a thread each, put what they hold into columns; eight threads a column sum and unfold it
/// and turn it into a row; then a thread has of a product eight rows and four neighbouring sums; eight threads
/// unfold a row. The next message's slots are asked for before the product.
///
/// Traffic an entry: 4 bytes written (8 read and written when adding), whatever the number of messages.
///
/// Shared memory: 38 KiB, laid out as in tile_transform.cu. Every sum belongs to one thread, no order matters.

#include "cuda/chunk_kept.cuh"
#include "cuda/entries.cuh"
#include "cuda/row_sums.cuh"
#include "cuda/tile_fold.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

/// Where in the factors the one of a column of one entry stands. No side has a factor there.
constexpr std::uint32_t kOneAt = kSide - 1;
/// A scaled entry that is smaller may make a sum that is rounded to -0.
constexpr float kLeast = 0x1p-60f;

/// An entry of a vector as one of eight threads has it: a byte each.
struct Own {
  std::uint8_t entry;     ///< its number; kNoEntry: there is none
  std::uint8_t position;  ///< in a column or row of the memory
  std::uint8_t factor;    ///< the position within its vector
  std::uint8_t segment;   ///< where the positions begin that its sum goes over
  static constexpr std::uint8_t kNoEntry = 255;
};

struct InverseMemory {
  TileMemory tile;
  Own down[kOwn][kOwn], across[kOwn][kOwn];  ///< of each of eight threads the k-th: [k][thread]
  Own at[kSide];                             ///< of a position in a column
  std::uint32_t kept[kSide][2];              ///< of a column: a bit a position
  std::uint32_t all[2];                      ///< the positions that there are in a column
  std::uint32_t filled[2];  ///< columns with a kept entry, by their position in a row
  std::uint32_t small;      ///< 1: there is an entry below kLeast
  float one;
  std::uint8_t row_position[kSide];  ///< of a row of the sequence: its position in a column
};

/// An entry of `count` vectors of length n, `apart` positions from each other.
__device__ __forceinline__ Own own_of(std::uint32_t n, std::uint32_t apart, std::uint32_t entry) {
  const std::uint32_t vector = entry / n, place = entry - vector * n, begin = vector * apart;
  const std::uint32_t factor = position_of(n, place),
                      segment = position_of(n, math::dct::segment_of(n, place).begin);
  return {static_cast<std::uint8_t>(entry), static_cast<std::uint8_t>(begin + factor),
          static_cast<std::uint8_t>(factor), static_cast<std::uint8_t>(begin + segment)};
}

/// By a whole block: the tables that the inverse alone has. Those of tile_tables.cuh stand.
__device__ __forceinline__ void fill_inverse(const Stack& stack, InverseMemory& memory) {
  const std::uint32_t thread = threadIdx.x % kOwn, k = threadIdx.x / kOwn % kOwn;
  const bool down = threadIdx.x < kOwn * kOwn;
  const std::uint32_t n = down ? stack.height : stack.width, count = down ? stack.count : 1;
  const std::uint32_t apart = down ? stack.apart : 0;
  const std::uint32_t entry = Folding(n, count).entry(thread, k);
  const Own none{Own::kNoEntry, 0, 0, Own::kNoEntry};
  (down ? memory.down : memory.across)[k][thread] =
      entry != Folding::kNoEntry ? own_of(n, apart, entry) : none;
  if (threadIdx.x < 2) memory.all[threadIdx.x] = memory.filled[threadIdx.x] = 0;
  if (threadIdx.x == 0) memory.small = 0;
  memory.kept[threadIdx.x / 2][threadIdx.x % 2] = 0;
  for (std::uint32_t i = 4 * threadIdx.x; i < kSide * kPitch; i += 4 * kThreads)
    *reinterpret_cast<float4*>(memory.tile.numbers + i) = float4{};
  __syncthreads();
  if (threadIdx.x >= stack.rows) return;
  const Own own = own_of(stack.height, stack.apart, threadIdx.x);
  const std::uint32_t tile = threadIdx.x / stack.height, place = threadIdx.x - tile * stack.height;
  memory.at[own.position] = own;
  memory.row_position[tile * stack.height + math::dct::frequency_of(stack.height, place)] =
      own.position;
  atomicOr(&memory.all[own.position / 32], 1u << own.position % 32);
}
static_assert(kThreads == 2 * kSide && kSide == kOwn * kOwn);

/// What a slot holds goes to its column.
__device__ __forceinline__ void put_kept(const KeptEntry& kept, const Stack& stack,
                                         InverseMemory& memory) {
  if (kept.place == KeptEntry::kNowhere) return;
  const std::uint32_t row = kept.place / stack.width;
  const std::uint32_t column = memory.tile.column[kept.place - row * stack.width];
  const std::uint32_t position = memory.row_position[row];
  const std::uint32_t across = memory.tile.across.position[column];
  const float v = kept.value * math::dct::kScaleIn;
  memory.tile.numbers[column * kPitch + position] = v;
  atomicOr(&memory.kept[column][position / 32], 1u << position % 32);
  atomicOr(&memory.filled[across / 32], 1u << across % 32);
  if (v != 0 && fabsf(v) < kLeast) atomicOr(&memory.small, 1u);
}

/// Calls `visit(number)` for the bits of two words, the lowest first.
template <typename Visit>
__device__ __forceinline__ void each_bit(std::uint32_t low, std::uint32_t high, Visit visit) {
#pragma unroll 1
  for (std::uint32_t first = 0; first < 2 * kLanes; first += kLanes) {
#pragma unroll 1
    for (; low != 0; low &= low - 1)
      visit(first + static_cast<std::uint32_t>(__ffs(static_cast<int>(low)) - 1));
    low = high;
  }
}

/// A thread's eight entries of a column.
struct OwnOfColumn {
  std::uint32_t factor[kOwn];  ///< of the first position, in bytes from the basis
  std::uint32_t segment[kOwn], entry[kOwn];

  __device__ OwnOfColumn(const InverseMemory& memory, std::uint32_t first) {
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      const Own own = memory.down[k][threadIdx.x % kOwn];
      factor[k] = not_ahead(sizeof(float) * (first + own.factor));
      segment[k] = not_ahead(own.segment);
      entry[k] = own.entry;
    }
  }
};

/// By a whole block: what is not kept counts as kept, and is 0.
__device__ __forceinline__ void keep_all(InverseMemory& memory) {
  const std::uint32_t column = threadIdx.x / 2, half = threadIdx.x % 2;
  float* const numbers = memory.tile.numbers + column * kPitch + half * kLanes;
  std::uint32_t& kept = memory.kept[column][half];
  each_bit(memory.all[half] & ~kept, 0, [&](std::uint32_t i) { numbers[i] = 0; });
  kept = memory.all[half];
}

/// A thread's sums of a column, unfolded.
__device__ __forceinline__ void sum_column(const InverseMemory& memory, std::uint32_t column,
                                           const OwnOfColumn& own, float (&x)[kOwn][1]) {
  const float* const numbers = memory.tile.numbers + column * kPitch;
  const auto* const basis = reinterpret_cast<const std::byte*>(memory.tile.basis);
  each_bit(memory.kept[column][0], memory.kept[column][1], [&](std::uint32_t position) {
    const Own at = memory.at[position];
    const float number = numbers[position];
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if (own.segment[k] != at.segment) continue;
      const std::uint32_t factor = at.factor * (kSide * sizeof(float)) + own.factor[k];
      x[k][0] = fmaf(number, *reinterpret_cast<const float*>(basis + factor), x[k][0]);
    }
  });
}

/// By a whole block: the columns times the basis, unfolded, each in a row of the memory's.
__device__ __forceinline__ void multiply_columns(const Stack& stack, InverseMemory& memory) {
  const OwnOfColumn own(memory, stack.height == 1 ? kOneAt : 0);
  const std::uint32_t folds = Folding(stack.height, 1).folds;
  float x[kTurns][kOwn][1] = {};
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const std::uint32_t column = own_row(turn);
    if (column >= stack.width) continue;
    sum_column(memory, column, own, x[turn]);
    fold<true>(folds, x[turn]);
  }
  __syncthreads();
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const std::uint32_t column = own_row(turn);
    if (column >= stack.width) continue;
    const std::uint32_t to = memory.tile.across.position[column];
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if (own.entry[k] != Own::kNoEntry)
        memory.tile.numbers[own.entry[k] * kPitch + to] = x[turn][k][0];
    }
  }
  memory.kept[threadIdx.x / 2][threadIdx.x % 2] = 0;  // for the next message
}

/// By a whole block: the rows times the basis, in place.
__device__ __forceinline__ void multiply_rows(const Stack& stack, const Part& part,
                                              InverseMemory& memory) {
  float sum[kOwn][4] = {};
  std::uint64_t depths = ~std::uint64_t{0};
  if (memory.small == 0) depths = memory.filled[0] | std::uint64_t{memory.filled[1]} << 32;
  depths = depths >> part.from & ((std::uint64_t{1} << part.length) - 1);
  const float* const numbers = memory.tile.numbers + part.from + part.rows * kPitch;
  const float* const factors = memory.tile.basis + part.factors;
  each_bit(static_cast<std::uint32_t>(depths), static_cast<std::uint32_t>(depths >> 32),
           [&](std::uint32_t depth) {
             const float4 factor = *reinterpret_cast<const float4*>(factors + depth * kSide);
#pragma unroll
             for (unsigned k = 0; k < kOwn; ++k) {
               const float number = numbers[depth + k * kOwn * kPitch];
               sum[k][0] = fmaf(number, factor.x, sum[k][0]);
               sum[k][1] = fmaf(number, factor.y, sum[k][1]);
               sum[k][2] = fmaf(number, factor.z, sum[k][2]);
               sum[k][3] = fmaf(number, factor.w, sum[k][3]);
             }
           });
  __syncthreads();
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) {
    const std::uint32_t row = part.rows + kOwn * k;
    if (part.count == 0 || row >= stack.rows) continue;
    *reinterpret_cast<float4*>(memory.tile.numbers + row * kPitch + part.position) =
        make_float4(sum[k][0], sum[k][1], sum[k][2], sum[k][3]);
  }
  if (threadIdx.x < 2) memory.filled[threadIdx.x] = 0;  // for the next message
  if (threadIdx.x == 0) memory.small = 0;
  __syncthreads();
}

/// By a whole block: `visit(turn, k, row, entry)` for the thread's entries of the stack in the tensor.
template <typename Visit>
__device__ __forceinline__ void each_own(const Stack& stack, const InverseMemory& memory,
                                         Visit visit) {
  Own own[kOwn];
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) own[k] = memory.across[k][threadIdx.x % kOwn];
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const std::uint32_t row = own_row(turn);
    if (row >= stack.rows) continue;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k)
      if (own[k].entry != Own::kNoEntry) visit(turn, k, memory.tile.tensor_row[row], own[k].entry);
  }
}

/// By a whole block: the memory's rows, unfolded, to the sums.
__device__ __forceinline__ void add_rows(const Stack& stack, const InverseMemory& memory,
                                         DecodeInto into, float (&sum)[kTurns][kOwn]) {
  std::uint32_t from[kOwn];
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k) from[k] = memory.across[k][threadIdx.x % kOwn].position;
  const std::uint32_t folds = Folding(stack.width, 1).folds;
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const std::uint32_t row = own_row(turn);
    if (row >= stack.rows) continue;
    float x[kOwn][1];
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) x[k][0] = memory.tile.numbers[row * kPitch + from[k]];
    fold<true>(folds, x);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k)
      cuda::put(&sum[turn][k], math::dct::scaled_out(x[k][0]), into);
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    from_tiles(const Frames frames, const DecodePlan plan, const DecodeInto into) {
  const UnitOf unit = find_unit_together(frames.first, plan.transforms, blockIdx.x);
  const Job& job = frames.first(plan.jobs)[unit.job];
  std::uint32_t left = sound_messages(frames, plan, unit.job);
  if (left == 0) return;
  auto& memory = shared<InverseMemory>();
  TileMemory& tile = memory.tile;
  if (threadIdx.x == 0) tile.stack = Stack(job.tiles, unit.index);
  __syncthreads();
  const Stack& stack = tile.stack;
  const std::uint64_t first = stack.first_entry();
  const SlotRange range(job.body, first, first + stack.rows * stack.width);
  const auto load = [&](std::uint32_t m) {
    return threadIdx.x < range.count() ? range.load(frames[m], plan, job, threadIdx.x) : SlotLoad{};
  };
  std::uint32_t m = take_message(left);
  SlotLoad ahead = load(m);
  fill_rows(job.tiles, stack, tile);
  fill_tables(stack, tile);
  fill_inverse(stack, memory);
  const bool refills = stack.height != stack.width && stack.height > 1;
  fill_basis<true>(stack.width, tile.across, tile.basis);
  if (threadIdx.x == 0 && stack.height == 1) tile.basis[kOneAt] = 1.0f;
  float* const y = frames.first.layer(job.layer).y;
  float sum[kTurns][kOwn] = {};
  if (into.add) {
    each_own(stack, memory, [&](unsigned turn, unsigned k, std::uint64_t row, std::uint32_t entry) {
      sum[turn][k] = y[row + entry];
    });
  }
  const Part part(stack.width, 1, positions_of(stack.width), tile.across, warp_in_turn(0));
#pragma unroll 1
  for (;;) {
    __syncthreads();
    if (refills) fill_basis<true>(stack.height, tile.down, tile.basis);
    const Frame frame = frames[m];
    put_kept(range.entry(frame, job, threadIdx.x, ahead), stack, memory);
    for (std::uint32_t i = threadIdx.x + kThreads; i < range.count(); i += kThreads)
      put_kept(range.entry(frame, job, i, range.load(frame, plan, job, i)), stack, memory);
    __syncthreads();
    if (memory.small != 0) {
      keep_all(memory);
      __syncthreads();
    }
    multiply_columns(stack, memory);
    if (refills) fill_basis<true>(stack.width, tile.across, tile.basis);
    const bool last = left == 0;
    if (!last) {
      m = take_message(left);
      ahead = load(m);
    }
    __syncthreads();
    multiply_rows(stack, part, memory);
    add_rows(stack, memory, into, sum);
    if (last) break;
  }
  each_own(stack, memory, [&](unsigned turn, unsigned k, std::uint64_t row, std::uint32_t entry) {
    y[row + entry] = sum[turn][k];
  });
}

}  // namespace

void put_transforms(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  queue.launch_blocks(from_tiles, plan.transforms.units, kThreads, 0, frames, plan, into);
}

}  // namespace atomo::cuda::chunk_topk
