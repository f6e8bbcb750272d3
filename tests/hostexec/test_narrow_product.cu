// SPDX-License-Identifier: Apache-2.0
// Products with few vectors: to the bit those of the tiles that any number of vectors takes.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "cuda/narrow_product.cuh"
#include "support/device_memory.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

/// A block a tile of 64 lines; `narrow` by multiply_narrow, else by multiply_tile.
__global__ void __launch_bounds__(kTileThreads)
    multiply_all(Operand<float> matrix, Operand<float> vectors, std::uint64_t depth, float* to,
                 bool narrow) {
  const TilePlace place{blockIdx.x * kTileLines, 0, 0, depth};
  const std::uint64_t length = matrix.lines;
  if (narrow) return multiply_narrow(matrix, vectors, place, to, length);
  multiply_tile(matrix, vectors, place,
                       [=](const auto& sums) { put_sums(to, length, sums); });
}

struct Sizes {
  std::uint64_t lines, depth;
  bool along;
};

std::vector<float> product(const Sizes& of, std::uint64_t rank, bool narrow) {
  std::mt19937 random(static_cast<unsigned>(of.lines + of.depth + rank));
  std::normal_distribution<float> normal;
  std::vector<float> entries(of.lines * of.depth), vectors(rank * of.depth), sums(rank * of.lines);
  for (float& x : entries) x = normal(random);
  for (float& x : vectors) x = normal(random);
  const test::Memory a(4 * entries.size()), x(4 * vectors.size()), y(4 * sums.size());
  a.put(std::as_bytes(std::span(entries)));
  x.put(std::as_bytes(std::span(vectors)));
  y.fill(0xEE);
  const test::StreamOwner stream;
  Queue queue(stream.get());
  const Operand<float> matrix{reinterpret_cast<const float*>(a.data()),
                              of.along ? of.depth : of.lines, of.lines, of.along};
  const Operand<float> other{reinterpret_cast<const float*>(x.data()), of.depth, rank, true};
  queue.launch_blocks(multiply_all, divide_up(of.lines, kTileLines), kTileThreads, 0, matrix, other,
                      of.depth, reinterpret_cast<float*>(y.data()), narrow);
  EXPECT_EQ(queue.error(), cudaSuccess);
  stream.wait();
  const auto bytes = y.get(4 * sums.size());
  std::memcpy(sums.data(), bytes.data(), bytes.size());
  return sums;
}

TEST(NarrowProducts, AreThoseOfTiles) {
  for (const bool along : {true, false}) {
    for (const auto& [lines, depth] :
         {std::pair{1, 1}, {64, 32}, {65, 31}, {63, 33}, {100, 384}, {192, 96}, {7, 130}}) {
      for (const std::uint64_t rank : {1, 2, 7, 8, 9, 15, 16}) {
        const Sizes of{static_cast<std::uint64_t>(lines), static_cast<std::uint64_t>(depth), along};
        EXPECT_EQ(product(of, rank, true), product(of, rank, false))
            << lines << " lines, " << depth << " deep, " << rank << " vectors";
      }
    }
  }
}

}  // namespace
}  // namespace atomo::cuda
