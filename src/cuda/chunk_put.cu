// SPDX-License-Identifier: Apache-2.0
/// Entries of chunked top-k that are not transformed, into the tensor, of all messages of a call.
///
/// Mapping, two launches:
///   put        a block of 256 threads 4,096 entries, whole chunks
///   put_tiles  a block the tiles that stand in a stack (tile_tables.cuh), of up to 4,096 entries
/// Sums are in shared memory. The slots of all messages follow each other, two a thread at a time, so that
/// their loads are on their way together; then, message by message, threads add what their slots hold.
/// What no slot holds is 0, which is added to all at the end.
///
/// Traffic an entry: 4 bytes written (8 read and written when adding), the least, whatever the number of
/// messages; 2 bytes a slot, and the values.
///
/// Shared memory: 21 KiB. Within a message no two slots hold one entry, and messages are added in their
/// order. The messages have any alignment, y that of f32.

#include "cuda/chunk_kept.cuh"
#include "cuda/cub.cuh"
#include "cuda/kept_sums.cuh"
#include "cuda/tile_tables.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

constexpr unsigned kRows = 4, kRow = 4 * kScanThreads;
static_assert(kRows * kRow == kSpan && kSpan == kKeptSegment);

struct TileRows {
  Stack stack;
  std::uint64_t tensor_row[kSide];  ///< where a row of the stack begins
};

/// By a whole block: adds what the messages of `sound` hold of the range to its sums.
__device__ void add_kept(const Frames& frames, const DecodePlan& plan, const Job& job,
                         const SlotRange& range, std::uint32_t sound, KeptSums& sums,
                         DecodeInto into) {
  constexpr unsigned kEach = 2;  // slots of a thread at a time
  const std::uint32_t slots = range.count(), all = frames.count * slots;
#pragma unroll 1
  for (std::uint32_t begin = 0; begin < all; begin += kEach * kScanThreads) {
    SlotLoad loads[kEach];
    std::uint32_t message[kEach], slot[kEach];
#pragma unroll
    for (unsigned k = 0; k < kEach; ++k) {
      const std::uint32_t number = begin + k * kScanThreads + threadIdx.x;
      const bool there = number < all;
      message[k] = there ? number / slots : 0;
      slot[k] = number - message[k] * slots;
      if (there && (sound >> message[k] & 1u) != 0)
        loads[k] = range.load(frames[message[k]], plan, job, slot[k]);
    }
    KeptEntry kept[kEach];
#pragma unroll
    for (unsigned k = 0; k < kEach; ++k)
      kept[k] = range.entry(frames[message[k]], job, slot[k], loads[k]);
    const std::uint32_t end =
        begin + kEach * kScanThreads < all ? begin + kEach * kScanThreads : all;
    const std::uint32_t last = (end - 1) / slots;
#pragma unroll 1
    for (std::uint32_t m = begin / slots; m <= last; ++m) {
      if ((sound >> m & 1u) == 0) continue;
      __syncthreads();
#pragma unroll
      for (unsigned k = 0; k < kEach; ++k) {
        if (message[k] != m || kept[k].place == KeptEntry::kNowhere) continue;
        sums.add(kept[k].place, kept[k].value, into);
      }
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kScanThreads)
    put(const Frames frames, const DecodePlan plan, const DecodeInto into) {
  const UnitOf unit = find_unit_together(frames.first, plan.spans, blockIdx.x);
  const Job& job = frames.first(plan.jobs)[unit.job];
  float* const y = frames.first.layer(job.layer).y;
  const std::uint64_t n = job.body.n, begin = unit.index * kSpan;
  const std::uint64_t end = n - begin < kSpan ? n : begin + kSpan;
  auto& sums = shared<KeptSums>();
  if (y == nullptr) return;  // a layer without a memory beside others with one
  float own[kRows][4];
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row)
    load_four(y, begin + row * kRow + 4 * threadIdx.x, end, into, own[row]);
  const std::uint32_t sound = sound_messages(frames, plan, unit.job);
  if (sound == 0) return;
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) sums.begin(row * kRow + 4 * threadIdx.x, own[row]);
  add_kept(frames, plan, job, SlotRange(job.body, begin, end), sound, sums, into);
  const Absent absent(static_cast<std::uint32_t>(__popc(sound)), into);
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
    const std::uint32_t i = row * kRow + 4 * threadIdx.x;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) own[row][k] = absent.sum(sums, i + k);
    // From an address made of terms the compiler would store the four one by one.
    if (begin + i < end) put_four(in_one(y + begin + i), 0, end - begin - i, own[row], {});
  }
}

/// Neighbours that are moved together.
template <unsigned kCount>
struct alignas(4 * kCount) Neighbours {
  float at[kCount];
};

/// The entries of a stack in the tensor, `kCount` neighbours a thread at a time: `visit(k, place, in the
/// tensor)` of the k-th ones.
template <unsigned kCount, typename Visit>
__device__ __forceinline__ void visit_rows(const TileRows& rows, Visit visit) {
  const std::uint32_t width = rows.stack.width / kCount;
  const std::uint32_t down = kScanThreads / width, right = kScanThreads - down * width;
  std::uint32_t row = threadIdx.x / width, column = threadIdx.x - row * width;
#pragma unroll
  for (unsigned k = 0; k < kSpan / kCount / kScanThreads; ++k) {
    if (row < rows.stack.rows)
      visit(k, kCount * (row * width + column), rows.tensor_row[row] + kCount * column);
    row += down, column += right;
    if (column >= width) column -= width, ++row;
  }
}

template <unsigned kCount>
__device__ void put_stack(const Frames& frames, const DecodePlan& plan, const Job& job,
                          const TileRows& rows, std::uint32_t sound, float* y, DecodeInto into) {
  using Own = Neighbours<kCount>;
  auto& sums = shared<KeptSums>();
  Own own[kSpan / kCount / kScanThreads] = {};
  if (into.add) {
    visit_rows<kCount>(rows, [&](unsigned k, std::uint32_t, std::uint64_t at) {
      own[k] = *reinterpret_cast<const Own*>(y + at);
    });
  }
  visit_rows<kCount>(rows, [&](unsigned k, std::uint32_t place, std::uint64_t) {
    *reinterpret_cast<Own*>(sums.at + place) = own[k];
  });
  const std::uint64_t first = rows.stack.first_entry();
  const SlotRange range(job.body, first, first + rows.stack.rows * rows.stack.width);
  add_kept(frames, plan, job, range, sound, sums, into);
  const Absent absent(static_cast<std::uint32_t>(__popc(sound)), into);
  visit_rows<kCount>(rows, [&](unsigned, std::uint32_t place, std::uint64_t at) {
    Own sum;
#pragma unroll
    for (unsigned c = 0; c < kCount; ++c) sum.at[c] = absent.sum(sums, place + c);
    // From an address made of terms the compiler would store them one by one.
    *reinterpret_cast<Own*>(in_one(y + at)) = sum;
  });
}

__global__ void __launch_bounds__(kScanThreads)
    put_tiles(const Frames frames, const DecodePlan plan, const DecodeInto into) {
  const UnitOf unit = find_unit_together(frames.first, plan.tiles, blockIdx.x);
  const Job& job = frames.first(plan.jobs)[unit.job];
  const std::uint32_t sound = sound_messages(frames, plan, unit.job);
  if (sound == 0) return;
  auto& rows = shared<TileRows>();
  auto& sums = shared<KeptSums>();
  const Stack stack(job.tiles, unit.index);
  if (threadIdx.x == 0) rows.stack = stack;
  if (threadIdx.x < stack.rows) rows.tensor_row[threadIdx.x] = stack.row_at(job.tiles, threadIdx.x);
  for (std::uint32_t i = 4 * threadIdx.x; i < kSpan; i += kRow)
    *reinterpret_cast<std::uint32_t*>(sums.kept + i) = 0;
  __syncthreads();
  float* const y = frames.first.layer(job.layer).y;
  const std::uint64_t side = stack.width | job.tiles.columns;  // what both are a multiple of
  const auto address = reinterpret_cast<std::uintptr_t>(y);
  if (side % 4 == 0 && address % 16 == 0)
    put_stack<4>(frames, plan, job, rows, sound, y, into);
  else if (side % 2 == 0 && address % 8 == 0)
    put_stack<2>(frames, plan, job, rows, sound, y, into);
  else
    put_stack<1>(frames, plan, job, rows, sound, y, into);
}

}  // namespace

void put_entries(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  queue.launch_blocks(put, plan.spans.units, kScanThreads, 0, frames, plan, into);
  queue.launch_blocks(put_tiles, plan.tiles.units, kScanThreads, 0, frames, plan, into);
}

}  // namespace atomo::cuda::chunk_topk
