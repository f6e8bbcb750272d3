// SPDX-License-Identifier: Apache-2.0
// The stand-ins for CUB against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <numeric>
#include <vector>

#include "cuda/cub.cuh"
#include "support/device_memory.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

using test::Memory;
using test::StreamOwner;

constexpr unsigned kThreads = 96, kItems = 3, kRounds = 2;
constexpr std::size_t kValues = std::size_t{kThreads} * kItems;

/// Values and what a kernel makes of them.
class Cub : public testing::Test {
 protected:
  Cub() {
    for (std::size_t i = 0; i < kValues; ++i)
      values_[i] = static_cast<unsigned>(i * 2654435761u >> 20);
    in_.put(std::as_bytes(std::span(values_)));
  }
  void launch(void (*kernel)(const unsigned*, unsigned*)) {
    out_.fill(0);
    Queue queue(stream_.get());
    queue.launch_blocks(kernel, 1, kThreads, 0, reinterpret_cast<const unsigned*>(in_.data()),
                        reinterpret_cast<unsigned*>(out_.data()));
    ASSERT_EQ(queue.error(), cudaSuccess);
    stream_.wait();
    const auto bytes = out_.get(out_.bytes().size());
    std::memcpy(result_.data(), bytes.data(), bytes.size());
  }
  /// Sum of `count` values from `first` on.
  [[nodiscard]] unsigned sum(std::size_t first, std::size_t count) const {
    return std::accumulate(values_.begin() + static_cast<std::ptrdiff_t>(first),
                           values_.begin() + static_cast<std::ptrdiff_t>(first + count), 0u);
  }

  std::vector<unsigned> values_ = std::vector<unsigned>(kValues);
  std::vector<unsigned> result_ = std::vector<unsigned>(4 * kValues);
  Memory in_{kValues * 4}, out_{4 * kValues * 4};
  StreamOwner stream_;
};

struct WarpMemory {
  cub::WarpScan<unsigned>::TempStorage scan[kThreads / 32];
  cub::WarpScan<unsigned, 8>::TempStorage eights[kThreads / 8];
  cub::WarpReduce<unsigned>::TempStorage reduce[kThreads / 32];
};
__global__ void warps(const unsigned* in, unsigned* out) {
  WarpMemory& memory = shared<WarpMemory>();
  const unsigned t = threadIdx.x;
  for (unsigned round = 0; round < kRounds; ++round) {
    unsigned inclusive, exclusive, total, eight;
    __syncwarp();
    cub::WarpScan<unsigned> scan(memory.scan[t / 32]);
    scan.InclusiveSum(in[t], inclusive);
    __syncwarp();
    scan.ExclusiveSum(in[t], exclusive, total);
    cub::WarpScan<unsigned, 8>(memory.eights[t / 8]).InclusiveSum(in[t], eight);
    const unsigned sum = cub::WarpReduce<unsigned>(memory.reduce[t / 32]).Sum(in[t]);
    if (t % 32 == 0 && sum != total) __trap();
    out[t] = inclusive;
    out[kThreads + t] = exclusive;
    out[2 * kThreads + t] = total;
    out[3 * kThreads + t] = eight;
  }
}
TEST_F(Cub, Warps) {
  launch(warps);
  for (std::size_t t = 0; t < kThreads; ++t) {
    const std::size_t warp = t / 32 * 32;
    EXPECT_EQ(result_[t], sum(warp, t - warp + 1));
    EXPECT_EQ(result_[kThreads + t], sum(warp, t - warp));
    EXPECT_EQ(result_[2 * kThreads + t], sum(warp, 32));
    EXPECT_EQ(result_[3 * kThreads + t], sum(t / 8 * 8, t % 8 + 1));
  }
}

using BlockScan = cub::BlockScan<unsigned, kThreads>;
using BlockReduce = cub::BlockReduce<unsigned, kThreads>;
struct BlockMemory {
  BlockScan::TempStorage scan;
  BlockReduce::TempStorage reduce;
};
struct Largest {
  __device__ unsigned operator()(unsigned a, unsigned b) const { return a < b ? b : a; }
};
__global__ void blocks(const unsigned* in, unsigned* out) {
  BlockMemory& memory = shared<BlockMemory>();
  unsigned mine[kItems], inclusive[kItems], before, total, all;
  for (unsigned k = 0; k < kItems; ++k) mine[k] = in[threadIdx.x * kItems + k];
  BlockScan(memory.scan).InclusiveSum(mine, inclusive, total);
  __syncthreads();
  BlockScan(memory.scan).ExclusiveSum(mine[0], before, all);
  __syncthreads();
  unsigned exclusive[kItems];
  BlockScan(memory.scan).ExclusiveSum(mine, exclusive);
  const unsigned largest = BlockReduce(memory.reduce).Reduce(mine, Largest{});
  __syncthreads();
  const unsigned sum = BlockReduce(memory.reduce).Sum(mine);
  for (unsigned k = 0; k < kItems; ++k) {
    out[threadIdx.x * kItems + k] = inclusive[k];
    out[kValues + threadIdx.x * kItems + k] = exclusive[k];
  }
  out[2 * kValues + threadIdx.x] = before;
  if (threadIdx.x != 0) return;
  unsigned* const totals = out + 3 * kValues;
  totals[0] = total;
  totals[1] = all;
  totals[2] = largest;
  totals[3] = sum;
}
TEST_F(Cub, Blocks) {
  launch(blocks);
  unsigned firsts = 0;
  for (std::size_t t = 0; t < kThreads; ++t) {
    EXPECT_EQ(result_[2 * kValues + t], firsts);
    firsts += values_[t * kItems];
  }
  for (std::size_t i = 0; i < kValues; ++i) {
    EXPECT_EQ(result_[i], sum(0, i + 1));
    EXPECT_EQ(result_[kValues + i], sum(0, i));
  }
  const unsigned* const totals = &result_[3 * kValues];
  EXPECT_EQ(totals[0], sum(0, kValues));
  EXPECT_EQ(totals[1], firsts);
  EXPECT_EQ(totals[2], *std::max_element(values_.begin(), values_.end()));
  EXPECT_EQ(totals[3], sum(0, kValues));
}

using Sort = cub::BlockRadixSort<unsigned, kThreads, kItems, unsigned>;
struct SortMemory {
  Sort::TempStorage sort;
};
__global__ void sorts(const unsigned* in, unsigned* out) {
  auto& memory = shared<SortMemory>().sort;
  for (unsigned round = 0; round < 2; ++round) {
    unsigned keys[kItems], places[kItems];
    for (unsigned k = 0; k < kItems; ++k) {
      places[k] = threadIdx.x * kItems + k;
      keys[k] = in[places[k]];
    }
    if (round == 0)
      Sort(memory).Sort(keys, places);
    else
      Sort(memory).SortDescending(keys, places, 4, 8);
    for (unsigned k = 0; k < kItems; ++k) {
      out[2 * round * kValues + threadIdx.x * kItems + k] = keys[k];
      out[(2 * round + 1) * kValues + threadIdx.x * kItems + k] = places[k];
    }
    __syncthreads();
  }
}
TEST_F(Cub, Sorts) {
  launch(sorts);
  std::vector<unsigned> places(kValues);
  for (const bool descending : {false, true}) {
    const auto key = [&](unsigned i) { return descending ? ~values_[i] >> 4 & 15 : values_[i]; };
    std::iota(places.begin(), places.end(), 0u);
    std::stable_sort(places.begin(), places.end(),
                     [&](unsigned a, unsigned b) { return key(a) < key(b); });
    const std::size_t at = descending ? 2 * kValues : 0;
    for (std::size_t i = 0; i < kValues; ++i) {
      EXPECT_EQ(result_[at + i], values_[places[i]]);
      EXPECT_EQ(result_[at + kValues + i], places[i]);
    }
  }
}

}  // namespace
}  // namespace atomo::cuda
