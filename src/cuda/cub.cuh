// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The one place that includes CUB: scans and sums of a warp, scans of a whole block.

#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

#include "cuda/gpu.cuh"

namespace atomo::cuda {

/// Threads of a block that scans (`scan_blockwide`).
inline constexpr unsigned kScanThreads = 256;
/// Of one that scans thousands of parts: each round waits for the one before.
inline constexpr unsigned kLongScanThreads = 512;

template <typename T>
struct WarpSums {
  typename cub::WarpScan<T>::TempStorage warp[kMaxWarps];
};

/// Of the lanes before this one; `total` becomes the sum of all. Integers.
template <typename T>
__device__ inline T warp_exclusive_sum(T value, T& total) {
  T before;
  auto& memory = shared<WarpSums<T>>().warp[warp_in_block()];
  __syncwarp();
  cub::WarpScan<T>(memory).ExclusiveSum(value, before, total);
  return before;
}

/// The same value in every lane. Integers.
template <typename T>
__device__ inline T warp_sum(T value) {
  for (unsigned step = kLanes / 2; step != 0; step /= 2)
    value += __shfl_xor_sync(kAllLanes, value, static_cast<int>(step));
  return value;
}
template <typename T>
__device__ inline T warp_max(T value) {
  for (unsigned step = kLanes / 2; step != 0; step /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, static_cast<int>(step));
    value = value < other ? other : value;
  }
  return value;
}

/// Of the threads before this one, called by all kScanThreads threads of a block. Integers.
template <typename T>
__device__ inline T block_exclusive_sum(T value) {
  using Scan = cub::BlockScan<T, kScanThreads>;
  auto& memory = shared<typename Scan::TempStorage>();
  T before;
  __syncthreads();  // the memory is free
  Scan(memory).ExclusiveSum(value, before);
  return before;
}
/// The same; `total` becomes the sum of all threads.
template <typename T>
__device__ inline T block_exclusive_sum(T value, T& total) {
  using Scan = cub::BlockScan<T, kScanThreads>;
  auto& memory = shared<typename Scan::TempStorage>();
  T before;
  __syncthreads();  // the memory is free
  Scan(memory).ExclusiveSum(value, before, total);
  return before;
}

/// Called by all kThreads threads of a block: `put(i, sum of get(j) over j < i)` for every
/// i < count, in no order; returns the sum of all, to every thread. Integers of T. `get` is called
/// once for each i, by the thread that calls `put` for it.
template <typename T, unsigned kThreads = kScanThreads, typename Get, typename Put>
__device__ inline T scan_blockwide(std::uint64_t count, Get get, Put put) {
  constexpr unsigned kItems = 4;
  using Scan = cub::BlockScan<T, kThreads>;
  auto& memory = shared<typename Scan::TempStorage>();
  T carried = 0, next[kItems];
  const auto load = [&](std::uint64_t first) {  // of the round after: on its way during a scan
    for (unsigned k = 0; k < kItems; ++k) next[k] = first + k < count ? get(first + k) : T{0};
  };
  load(threadIdx.x * kItems);
  for (std::uint64_t base = 0; base < count; base += kItems * kThreads) {
    const std::uint64_t first = base + threadIdx.x * kItems;
    T values[kItems], before[kItems], total;
    for (unsigned k = 0; k < kItems; ++k) values[k] = next[k];
    load(first + kItems * kThreads);
    __syncthreads();  // the memory of the round before is free
    Scan(memory).ExclusiveSum(values, before, total);
    for (unsigned k = 0; k < kItems; ++k) {
      if (first + k < count) put(first + k, carried + before[k]);
    }
    carried += total;
  }
  return carried;
}

}  // namespace atomo::cuda
