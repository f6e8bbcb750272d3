// SPDX-License-Identifier: Apache-2.0
/// Tiles of products in f64 on tensor cores (cuda/f64_product.cuh) against plain sums.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/f64_product.cuh"
#include "support/device_memory.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

/// Stores the sums that are there, and that each was called for once.
struct Put {
  double* sums;
  unsigned* calls;
  std::uint64_t lines, others;
  __device__ void operator()(std::uint64_t of, std::uint64_t line, const double (&pair)[2]) const {
    for (unsigned i = 0; i < 2; ++i) {
      if (of >= others || line + i >= lines) continue;
      sums[of * lines + line + i] = pair[i];
      atomicAdd(&calls[of * lines + line + i], 1u);
    }
  }
};

/// A block a tile of 64 lines by 64 others.
template <bool kAlong>
__global__ void __launch_bounds__(kTileThreads)
    multiply_all(Operand<float> first, Operand<double> second, std::uint64_t depth, Put put) {
  const std::uint64_t across = divide_up(first.lines, kTileLines);
  const TilePlace place{blockIdx.x % across * kTileLines, blockIdx.x / across * kTileLines, 0,
                        depth};
  multiply_tile_f64<kAlong>(first, second, place, put);
}

__global__ void __launch_bounds__(kTileThreads)
    multiply_square(Operand<float> lines, std::uint64_t depth, Put put) {
  multiply_triangle_f64(lines, {0, 0, 0, depth}, put);
}

struct Sizes {
  std::uint64_t lines, others, depth;
};

template <typename T>
std::vector<T> normal(std::uint64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<T> draw;
  std::vector<T> values(count);
  for (T& v : values) v = draw(random);
  return values;
}

/// Memory of the device with so many values.
template <typename T>
struct Values {
  test::Memory memory;
  explicit Values(const std::vector<T>& of) : memory(sizeof(T) * of.size()) {
    memory.put(std::as_bytes(std::span(of)));
  }
  explicit Values(std::size_t count) : memory(sizeof(T) * count) { memory.fill(0); }
  T* at() const { return reinterpret_cast<T*>(memory.data()); }
  std::vector<T> get(std::size_t count) const {
    std::vector<T> values(count);
    const auto bytes = memory.get(sizeof(T) * count);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

void expect_products(const Sizes& of, bool along) {
  SCOPED_TRACE(std::to_string(of.lines) + " lines with " + std::to_string(of.others) + ", " +
               std::to_string(of.depth) + " deep");
  const auto seed = static_cast<unsigned>(of.lines * 31 + of.others * 7 + of.depth);
  const auto lines = normal<float>(of.lines * of.depth, seed);
  const auto others = normal<double>(of.others * of.depth, seed + 1);
  const Values<float> a(lines);
  const Values<double> b(others), sums(of.lines * of.others);
  const Values<unsigned> calls(of.lines * of.others);
  const test::StreamOwner stream;
  Queue queue(stream.get());
  const Operand<float> first{a.at(), along ? of.depth : of.lines, of.lines, along};
  queue.launch_blocks(along ? multiply_all<true> : multiply_all<false>,
                      divide_up(of.lines, kTileLines) * divide_up(of.others, kTileLines),
                      kTileThreads, 0, first, Operand<double>{b.at(), of.depth, of.others, true},
                      of.depth, Put{sums.at(), calls.at(), of.lines, of.others});
  EXPECT_EQ(queue.error(), cudaSuccess);
  stream.wait();
  const auto found = sums.get(of.lines * of.others);
  const auto times = calls.get(of.lines * of.others);
  for (std::uint64_t o = 0; o < of.others; ++o) {
    for (std::uint64_t l = 0; l < of.lines; ++l) {
      double sum = 0, size = 0;
      for (std::uint64_t k = 0; k < of.depth; ++k) {
        const double term =
            static_cast<double>(lines[along ? l * of.depth + k : k * of.lines + l]) *
            others[o * of.depth + k];
        sum += term;
        size += std::abs(term);
      }
      ASSERT_EQ(times[o * of.lines + l], 1u) << l << ", " << o;
      ASSERT_NEAR(found[o * of.lines + l], sum, 0x1p-50 * size) << l << ", " << o;
    }
  }
}

TEST(F64Products, AreSums) {
  for (const bool along : {true, false}) {
    for (const auto& [lines, others, depth] : {Sizes{1, 1, 1},
                                               {64, 64, 64},
                                               {65, 17, 31},
                                               {63, 33, 16},
                                               {100, 16, 48},
                                               {72, 130, 20},
                                               {8, 64, 4},
                                               {64, 32, 0}})
      expect_products({lines, others, depth}, along);
  }
}

TEST(F64Products, TrianglesAreTheLowerBlocksOfSquares) {
  constexpr std::uint64_t kDepth = 50;
  for (const std::uint64_t count : {64, 61, 33, 8, 1}) {
    const auto lines = normal<float>(count * kDepth, static_cast<unsigned>(count));
    const Values<float> a(lines);
    const Values<double> sums(count * count);
    const Values<unsigned> calls(count * count);
    const test::StreamOwner stream;
    Queue queue(stream.get());
    queue.launch_blocks(multiply_square, 1, kTileThreads, 0,
                        Operand<float>{a.at(), kDepth, count, true}, kDepth,
                        Put{sums.at(), calls.at(), count, count});
    EXPECT_EQ(queue.error(), cudaSuccess);
    stream.wait();
    const auto found = sums.get(count * count);
    const auto times = calls.get(count * count);
    for (std::uint64_t row = 0; row < count; ++row) {
      for (std::uint64_t column = 0; column < count; ++column) {
        ASSERT_EQ(times[row * count + column], row / 8 >= column / 8 ? 1u : 0u)
            << row << ", " << column;
        if (row / 8 < column / 8) continue;
        double sum = 0;
        for (std::uint64_t k = 0; k < kDepth; ++k)
          sum += static_cast<double>(lines[row * kDepth + k]) * lines[column * kDepth + k];
        ASSERT_NEAR(found[row * count + column], sum, 0x1p-42) << row << ", " << column;
      }
    }
  }
}

}  // namespace
}  // namespace atomo::cuda
