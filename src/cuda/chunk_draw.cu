// SPDX-License-Identifier: Apache-2.0
/// Drawing the entries of chunks (math/entry_shares.hpp), over all layers at once: what `select` of
/// chunk_topk.cu is where the largest are kept.
///
/// Mathematics: at a scale D an entry has the share |x| / D, at most 1, a whole number of 2^-30; the scale is
/// the least at which a chunk's shares sum to its slots at most. Where a running sum of shares, from a
/// uniform draw on, reaches a whole number, the entry is kept.
///
/// Mapping, two launches, a block of 256 threads a chunk of at most 4,096 entries, sixteen entries a thread
/// in registers:
///   measure  the scale, by three to six sums over the block, the least and the largest magnitude
///   draw     the levels of the chunk's group, then a scan of the shares of each row of 1,024 entries, and
///            a bit map of what is kept; a kept entry's rank is a count of bits
///
/// Traffic an entry: 8 bytes read; 6 bytes written a kept entry, 12 bytes written a chunk, and read for each
/// chunk of its group.
///
/// Shared memory: a scan's, 2 KiB. Workspace: 12 bytes a chunk. Determinism: integers alone are summed that
/// reach the result; a sum of magnitudes says where the search for a scale begins.

#include "core/philox.hpp"
#include "cuda/chunk_select.cuh"

namespace atomo::cuda::chunk_topk {
namespace {

using format::DrawnChunk;

struct MeasureMemory {
  std::uint32_t least, largest, nonzero, guess;
  unsigned long long sum[2];
  std::uint32_t certain[2];
};

/// By a whole block: the shares of a chunk. `side` alternates, so that one barrier is enough.
__device__ math::ShareSum sum_shares(const Own& own, math::LevelScale scale, unsigned side,
                                     MeasureMemory& memory) {
  unsigned long long sum = 0;
  std::uint32_t certain = 0;
  own.each([&](std::uint32_t, std::uint32_t entry) {
    const std::uint32_t share = math::share_of(__uint_as_float(magnitude(entry)), scale);
    sum += share;
    certain += share >> 30;
  });
  sum = warp_sum(sum);
  certain = warp_sum(certain);
  if (lane() == 0) {
    atomicAdd(&memory.sum[side], sum);
    atomicAdd(&memory.certain[side], certain);
  }
  __syncthreads();
  const math::ShareSum all{memory.sum[side], memory.certain[side]};
  __syncthreads();
  if (threadIdx.x == 0) memory.sum[side] = 0, memory.certain[side] = 0;
  return all;
}

__global__ void __launch_bounds__(kScanThreads) measure(const Frame frame, const Plan plan) {
  const UnitOf at = find_unit(frame, plan.drawn, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  auto& memory = shared<MeasureMemory>();
  const std::uint32_t n = job.body.entries_of(at.index), slots = job.body.keep_of(at.index);
  Own own;
  const bool finite = own.load(entries_of(frame, plan, job), at.index * job.body.chunk, n);
  if (threadIdx.x == 0) {
    memory.least = 0x7F800000u, memory.largest = 0, memory.nonzero = 0;
    memory.sum[0] = memory.sum[1] = 0;
    memory.certain[0] = memory.certain[1] = 0;
  }
  __syncthreads();
  std::uint32_t least = 0x7F800000u, largest = 0, nonzero = 0;
  own.each([&](std::uint32_t, std::uint32_t entry) {
    const std::uint32_t m = magnitude(entry);
    least = m != 0 && m < least ? m : least;
    largest = m > largest ? m : largest;
    nonzero += m != 0 ? 1 : 0;
  });
  nonzero = warp_sum(nonzero);
  atomicMin(&memory.least, least);
  atomicMax(&memory.largest, largest);
  if (lane() == 0) atomicAdd(&memory.nonzero, nonzero);
  const bool all_finite = __syncthreads_and(finite ? 1 : 0) != 0;
  if (!all_finite) {
    if (threadIdx.x == 0) frame.mark_non_finite(job.layer);
    if (threadIdx.x == 0) frame(plan.measured)[job.first_chunk + at.index] = {};
    return;
  }
  DrawnChunk found{1, memory.least, memory.largest};
  if (memory.nonzero > slots) {
    // From the largest magnitude on: the first sum's slope leads to about the scale.
    math::ScaleSearch search(slots, memory.largest >> 16);
    for (unsigned side = 0; !search.done(); side ^= 1)
      search.take(sum_shares(own, math::share_scale(search.word()), side, memory));
    found.scale = search.word();
  }
  if (threadIdx.x == 0) frame(plan.measured)[job.first_chunk + at.index] = found;
}

struct DrawMemory {
  std::uint32_t kept[kWords], before[kWords];
};

__global__ void __launch_bounds__(kScanThreads) draw(const Frame frame, const Plan plan) {
  const UnitOf at = find_unit(frame, plan.drawn, blockIdx.x);
  const Job& job = frame(plan.jobs)[at.job];
  auto& memory = shared<DrawMemory>();
  const std::uint32_t n = job.body.entries_of(at.index), slots = job.body.keep_of(at.index);
  Own own;
  own.load(entries_of(frame, plan, job), at.index * job.body.chunk, n);
  for (unsigned w = threadIdx.x; w < kWords; w += kScanThreads) memory.kept[w] = 0;
  const format::DrawnCoder coder(job.config.values,
                                 drawn_group(frame, plan, job, at.index / job.body.group_chunks));
  const float scale = coder.scale(frame(plan.measured)[job.first_chunk + at.index]);
  const math::LevelScale factors = math::level_scale(scale, static_cast<float>(math::kWholeShare));
  std::uint32_t sum = Philox(frame.key(job.layer), Purpose::select_entry)(at.index)[0] >> 2;
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
    if (row * kRow >= n) break;
    std::uint32_t share[4], four = 0;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      share[k] = math::share_of(__uint_as_float(magnitude(own.entry[row][k])), factors);
      four += share[k];
    }
    // Sums wrap at 2^32, a whole number of shares.
    std::uint32_t total;
    std::uint32_t running = sum + block_exclusive_sum<std::uint32_t>(four, total);
    sum += total;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint32_t within = running & (math::kWholeShare - 1);
      running += share[k];
      if (within + share[k] < math::kWholeShare) continue;
      const std::uint32_t place = Own::place(row, k);
      atomicOr(&memory.kept[place / 32], 1u << place % 32);
      if (share[k] < math::kWholeShare)
        own.entry[row][k] = __float_as_uint(scale) | (own.entry[row][k] & 0x80000000u);
    }
  }
  __syncthreads();
  if (warp_in_block() == 0) {
    const std::uint32_t count = count_before(memory.kept, memory.before);
    // Slots are short at the largest scale alone.
    if (lane() == 0) frame(plan.counts)[job.first_chunk + at.index] = count < slots ? count : slots;
  }
  __syncthreads();
  const std::uint64_t first = job.first_slot + at.index * job.body.keep;
  own.each([&](std::uint32_t place, std::uint32_t entry) {
    if ((memory.kept[place / 32] >> place % 32 & 1u) == 0) return;
    const std::uint32_t slot = rank_of(memory.kept, memory.before, place);
    if (slot >= slots) return;
    frame(plan.places)[first + slot] = static_cast<std::uint16_t>(place);
    frame(plan.kept)[first + slot] = entry;
  });
}

}  // namespace

void draw_entries(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_blocks(measure, plan.drawn.units, kScanThreads, 0, frame, plan);
  queue.launch_blocks(draw, plan.drawn.units, kScanThreads, 0, frame, plan);
}

}  // namespace atomo::cuda::chunk_topk
