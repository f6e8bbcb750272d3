// SPDX-License-Identifier: Apache-2.0
// What kernels may rely on: warps, barriers, shared memory, atomic operations and waiting, in every
// order of threads and blocks. A kernel that sees something else traps.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cuda/gpu.cuh"
#include "support/device_memory.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

using test::Memory;
using test::StreamOwner;

__device__ void expect(bool seen, hostexec::Location where = hostexec::Location::current()) {
  if (!seen) __trap(where);
}

template <typename... P, typename... A>
void launch_and_wait(void (*kernel)(P...), dim3 grid, dim3 block, A... arguments) {
  const StreamOwner stream;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream.get();
  ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
  stream.wait();
}

__global__ void shuffles() {
  const int t = static_cast<int>(threadIdx.x), warp = t / 32 * 32;
  for (int width = 1; width <= 32; width *= 2) {
    const int first = t / width * width;
    for (int d = 0; d < width; ++d) {
      const unsigned delta = static_cast<unsigned>(d);
      expect(__shfl_sync(kAllLanes, t, d, width) == first + d);
      expect(__shfl_sync(kAllLanes, t, d + width, width) == first + d);
      expect(__shfl_down_sync(kAllLanes, t, delta, width) == (t + d < first + width ? t + d : t));
      expect(__shfl_up_sync(kAllLanes, t, delta, width) == (t - d >= first ? t - d : t));
      expect(__shfl_xor_sync(kAllLanes, t, d, width) == (t ^ d));
    }
  }
  expect(__shfl_sync(kAllLanes, 0.5 + t, 7) == 0.5 + warp + 7);
}
TEST(Semantics, Shuffles) { launch_and_wait(shuffles, 3, 64); }

__global__ void votes() {
  const unsigned t = threadIdx.x;
  expect(__ballot_sync(kAllLanes, t & 1) == 0xAAAAAAAAu);
  expect(__any_sync(kAllLanes, t % 32 == 5) && !__any_sync(kAllLanes, t > 1000));
  expect(__all_sync(kAllLanes, t < 64) && !__all_sync(kAllLanes, t % 32 != 5));
  expect(__match_any_sync(kAllLanes, t & 3) == 0x11111111u << (t & 3));
  expect(__reduce_max_sync(kAllLanes, t) == (t | 31));
  expect(__reduce_add_sync(kAllLanes, -1) == -32);
  expect(__reduce_xor_sync(kAllLanes, 1u << t % 32) == kAllLanes);
  expect(__syncthreads_count(t % 3 == 0) == 22);
  expect(__syncthreads_and(t < 64) != 0 && __syncthreads_or(t > 63) == 0);
}
TEST(Semantics, Votes) { launch_and_wait(votes, 3, 64); }

// Halves of a warp may go their own ways with masks of their own, and meet again.
__global__ void halves() {
  const unsigned t = threadIdx.x;
  unsigned seen;
  if (t % 32 < 16) {
    seen = __shfl_sync(0x0000FFFFu, t, 3);
    __syncwarp(0x0000FFFFu);
  } else {
    seen = __shfl_sync(0xFFFF0000u, t, 20);
  }
  expect(seen == t / 32 * 32 + (t % 32 < 16 ? 3 : 20));
  expect(__ballot_sync(kAllLanes, 1) == kAllLanes);
}
TEST(Semantics, HalvesOfAWarp) { launch_and_wait(halves, 2, 96); }

// Nobody waits for threads that returned, nor for lanes that a last, short warp does not have.
__global__ void leavers() {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  expect(__ballot_sync(kAllLanes, 1) == (threadIdx.x < 32 ? kAllLanes : 0xFFu));
}
__global__ void short_warp() {
  const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  expect(__ballot_sync(kAllLanes, 1) == (t < 32 ? kAllLanes : 0xFFFFu));
  __syncthreads();
}
TEST(Semantics, ThreadsThatReturned) {
  launch_and_wait(leavers, 3, 64);
  launch_and_wait(short_warp, 2, 48);
  launch_and_wait(short_warp, 2, dim3(8, 3, 2));
}

struct Reversed {
  unsigned value[128];
};
__global__ void reverse_in_shared(unsigned rounds) {
  unsigned* const value = shared<Reversed>().value;
  const unsigned t = threadIdx.x;
  for (unsigned round = 0; round < rounds; ++round) {
    value[t] = t + round + blockIdx.x;
    __syncthreads();
    expect(value[127 - t] == 127 - t + round + blockIdx.x);
    __syncthreads();
  }
}
TEST(Semantics, SharedMemoryBetweenBarriers) { launch_and_wait(reverse_in_shared, 9, 128, 5u); }

struct Counters {
  unsigned sum, largest, smallest, bits;
  unsigned long long wide;
  int owner;
};
__global__ void count_atomically() {
  Counters& c = shared<Counters>();
  const unsigned t = threadIdx.x;
  if (t == 0) c = {0, 0, ~0u, 0, 0, -1};
  __syncthreads();
  atomicAdd(&c.sum, t);
  atomicMax(&c.largest, t);
  atomicMin(&c.smallest, t + 7);
  atomicOr(&c.bits, 1u << t % 32);
  atomicMax(&c.wide, static_cast<unsigned long long>(t) << 40);
  atomicCAS(&c.owner, -1, static_cast<int>(t));
  __syncthreads();
  expect(c.sum == 63 * 64 / 2 && c.largest == 63 && c.smallest == 7 && c.bits == ~0u);
  expect(c.wide == 63ull << 40 && c.owner >= 0 && c.owner < 64);
}
TEST(Semantics, AtomicOperations) { launch_and_wait(count_atomically, 3, 64); }

// One thread waits for the others of its block, which may come later.
__global__ void wait_for_others(unsigned* arrived, bool sleeps) {
  if (threadIdx.x != 0) {
    atomicAdd(arrived, 1);
    return;
  }
  while (atomicAdd(arrived, 0) != blockDim.x - 1) {
    if (sleeps) __nanosleep(20);
  }
}
TEST(Semantics, WaitingForOtherThreads) {
  for (const bool sleeps : {false, true}) {
    const Memory arrived(sizeof(unsigned));
    arrived.fill(0);
    launch_and_wait(wait_for_others, 1, 64, reinterpret_cast<unsigned*>(arrived.data()), sleeps);
  }
}

// The block that comes last sums what all have left.
__global__ void last_block_sums(unsigned* tickets, unsigned* left, unsigned* sum) {
  if (threadIdx.x != 0) return;
  left[blockIdx.x] = blockIdx.x + 1;
  __threadfence();
  if (atomicAdd(tickets, 1) != gridDim.x - 1) return;
  __threadfence();
  for (unsigned i = 0; i < gridDim.x; ++i) *sum += left[i];
}
TEST(Semantics, LastBlock) {
  const Memory memory(64 * sizeof(unsigned));
  memory.fill(0);
  unsigned* const words = reinterpret_cast<unsigned*>(memory.data());
  launch_and_wait(last_block_sums, 10, 32, words, words + 2, words + 1);
  unsigned values[2];
  ASSERT_EQ(cudaMemcpy(values, words, sizeof values, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(values[0], 10u);
  EXPECT_EQ(values[1], 55u);
}

__global__ void number_threads(unsigned* seen) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  atomicAdd(&seen[block * blockDim.x * blockDim.y * blockDim.z + t], 1);
}
TEST(Semantics, EveryThreadOfEveryBlockRunsOnce) {
  constexpr unsigned kThreads = 5 * 3 * 7 * 4 * 2 * 3;
  const Memory memory(kThreads * sizeof(unsigned));
  memory.fill(0);
  launch_and_wait(number_threads, dim3(5, 3, 7), dim3(4, 2, 3),
                  reinterpret_cast<unsigned*>(memory.data()));
  const auto bytes = memory.get(kThreads * sizeof(unsigned));
  for (unsigned i = 0; i < kThreads; ++i)
    ASSERT_EQ(reinterpret_cast<const unsigned*>(bytes.data())[i], 1u) << i;
}

TEST(Semantics, BitIntrinsics) {
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x7250u), 0x77225500u);
  EXPECT_EQ(__byte_perm(0x00008000u, 0, 0x9u), 0x000000FFu);
  EXPECT_EQ(__funnelshift_l(0x80000001u, 0x12345678u, 4), 0x23456788u);
  EXPECT_EQ(__funnelshift_r(0x80000001u, 0x12345678u, 4), 0x88000000u);
  EXPECT_EQ(__funnelshift_r(0x80000001u, 0x12345678u, 32), 0x80000001u);
  EXPECT_EQ(__funnelshift_rc(0x80000001u, 0x12345678u, 32), 0x12345678u);
  EXPECT_EQ(__brev(1u), 0x80000000u);
  EXPECT_EQ(__umul64hi(~0ull, ~0ull), ~0ull - 1);
  EXPECT_EQ(__float2int_rz(3e9f), 2147483647);
  EXPECT_EQ(__float2uint_rn(-1.0f), 0u);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__ffs(0), 0);
}

}  // namespace
}  // namespace atomo::cuda
