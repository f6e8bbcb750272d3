// SPDX-License-Identifier: Apache-2.0
/// Tensor cores on the host executor (include/mma.h), and tiles of products by them
/// (cuda/tf32_product.cuh), against plain sums.
#include <gtest/gtest.h>
#include <mma.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/tf32_product.cuh"
#include "support/device_memory.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

namespace wmma = nvcuda::wmma;

// ---- rounding

TEST(Wmma, RoundsToTenBitsOfMantissa) {
  constexpr float kUnit = 0x1p-10f;  // of TF32 at 1
  const std::pair<float, float> cases[] = {{1, 1},
                                           {1 + 0.49f * kUnit, 1},
                                           {1 + 0.5f * kUnit, 1 + kUnit},  // away from zero
                                           {-1 - 0.5f * kUnit, -1 - kUnit},
                                           {1 + 1.5f * kUnit, 1 + 2 * kUnit},
                                           {1 + 1.49f * kUnit, 1 + kUnit},
                                           {2 - 0.25f * kUnit, 2},
                                           {0, 0},
                                           {0x1p-149f, 0},
                                           {INFINITY, INFINITY},
                                           {0x1.fffffep127f, INFINITY}};
  for (const auto& [value, rounded] : cases) EXPECT_EQ(wmma::__float_to_tf32(value), rounded);
  EXPECT_TRUE(std::isnan(wmma::__float_to_tf32(NAN)));
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const float value = __uint_as_float(static_cast<unsigned>(random()));
    if (!(std::fabs(value) < 1e38f)) continue;
    const float rounded = wmma::__float_to_tf32(value);
    ASSERT_EQ(tf32::rounded(value), rounded) << value;
    ASSERT_LE(std::fabs(rounded - value), std::max(0x1p-11f * std::fabs(value), 0x1p-137f))
        << value;
    const float high = tf32::upper(value), low = tf32::upper(value - high);
    ASSERT_LE(std::fabs(value - high - low), std::max(0x1p-20f * std::fabs(value), 0x1p-136f))
        << value;
  }
}

// ---- fragments

template <typename FirstLayout, typename SecondLayout>
__global__ void multiply_once(const float* a, const float* b, float* c, bool across) {
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, FirstLayout> first;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, SecondLayout> second;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sums;
  const unsigned warp = warp_in_block();
  wmma::fill_fragment(sums, static_cast<float>(warp));
  constexpr bool kRows = std::is_same_v<FirstLayout, wmma::row_major>;
  constexpr bool kSecondRows = std::is_same_v<SecondLayout, wmma::row_major>;
  for (unsigned depth = 0; depth < 16; depth += 8) {
    wmma::load_matrix_sync(first, a + (kRows ? depth : 16 * depth), 16);
    wmma::load_matrix_sync(second, b + (kSecondRows ? 24 * depth : depth), kSecondRows ? 24 : 16);
    wmma::mma_sync(sums, first, second, sums);
  }
  wmma::store_matrix_sync(c + 320 * warp, sums, 20,
                          across ? wmma::mem_col_major : wmma::mem_row_major);
}

/// Copies floats to a device, or room for them.
struct OnDevice {
  test::Memory memory;
  explicit OnDevice(const std::vector<float>& values) : memory(4 * values.size()) {
    memory.put(std::as_bytes(std::span(values)));
  }
  explicit OnDevice(std::size_t count) : memory(4 * count) { memory.fill(0xEE); }
  [[nodiscard]] float* data() const { return reinterpret_cast<float*>(memory.data()); }
  [[nodiscard]] std::vector<float> get(std::size_t count) const {
    std::vector<float> values(count);
    const auto bytes = memory.get(4 * count);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

template <typename FirstLayout, typename SecondLayout>
void expect_product(bool across) {
  // Small integers: all sums are exact, whatever their order.
  std::mt19937 random(3);
  std::vector<float> a(16 * 16), b(16 * 24);
  for (float& x : a) x = static_cast<float>(static_cast<int>(random() % 65) - 32);
  for (float& x : b) x = static_cast<float>(static_cast<int>(random() % 65) - 32);
  const OnDevice first(a), second(b), sums(640);
  const test::StreamOwner stream;
  Queue queue(stream.get());
  queue.launch_blocks(multiply_once<FirstLayout, SecondLayout>, 1, 64, 0,
                      static_cast<const float*>(first.data()),
                      static_cast<const float*>(second.data()), sums.data(), across);
  ASSERT_EQ(queue.error(), cudaSuccess);
  stream.wait();
  const std::vector<float> found = sums.get(640);
  constexpr bool kRows = std::is_same_v<FirstLayout, wmma::row_major>;
  constexpr bool kSecondRows = std::is_same_v<SecondLayout, wmma::row_major>;
  for (std::size_t warp = 0; warp < 2; ++warp) {
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 16; ++j) {
        auto sum = static_cast<float>(warp);
        for (std::size_t k = 0; k < 16; ++k)
          sum += a[kRows ? 16 * i + k : 16 * k + i] * b[kSecondRows ? 24 * k + j : 16 * j + k];
        ASSERT_EQ(found[320 * warp + (across ? 20 * j + i : 20 * i + j)], sum) << i << ", " << j;
      }
    }
  }
}
TEST(Wmma, MultipliesInEveryLayout) {
  for (const bool across : {false, true}) {
    expect_product<wmma::row_major, wmma::row_major>(across);
    expect_product<wmma::row_major, wmma::col_major>(across);
    expect_product<wmma::col_major, wmma::row_major>(across);
    expect_product<wmma::col_major, wmma::col_major>(across);
  }
}

// ---- tiles

template <TensorVectors kind>
__global__ void __launch_bounds__(kTileThreads)
    multiply_tiles(Operand<float> matrix, Operand<float> vectors, std::uint64_t depth, float* to) {
  const TilePlace place{blockIdx.x * kTileLines, blockIdx.y * kTileLines, 0, depth};
  multiply_tile_tf32<kind>(matrix, vectors, place, to, matrix.lines);
}

struct Sizes {
  std::uint64_t lines, depth, rank;
  bool along;
};
constexpr std::size_t kBehind = 8;  // values that nothing may write to

template <TensorVectors kind>
void expect_tiles(const Sizes& of, bool integers) {
  SCOPED_TRACE(std::to_string(of.lines) + " lines, " + std::to_string(of.depth) + " deep, " +
               std::to_string(of.rank) + " vectors");
  std::mt19937 random(static_cast<unsigned>(of.lines + of.depth + of.rank));
  std::normal_distribution<float> normal;
  const auto draw = [&] {
    return integers ? static_cast<float>(static_cast<int>(random() % 33) - 16) : normal(random);
  };
  std::vector<float> entries(of.lines * of.depth), vectors(of.rank * of.depth);
  std::generate(entries.begin(), entries.end(), draw);
  std::generate(vectors.begin(), vectors.end(), draw);
  const OnDevice a(entries), x(vectors), y(of.rank * of.lines + kBehind);
  const test::StreamOwner stream;
  const Operand<float> matrix{a.data(), of.along ? of.depth : of.lines, of.lines, of.along};
  const Operand<float> other{x.data(), of.depth, of.rank, true};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(divide_up(of.lines, kTileLines)),
                        static_cast<unsigned>(divide_up(of.rank, kTileLines)));
  config.blockDim = dim3(kTileThreads);
  config.stream = stream.get();
  ASSERT_EQ(cudaLaunchKernelEx(&config, multiply_tiles<kind>, matrix, other, of.depth, y.data()),
            cudaSuccess);
  stream.wait();
  const std::vector<float> sums = y.get(of.rank * of.lines + kBehind);
  for (std::uint64_t v = 0; v < of.rank; ++v) {
    for (std::uint64_t i = 0; i < of.lines; ++i) {
      double sum = 0, sizes = 0;
      for (std::uint64_t k = 0; k < of.depth; ++k) {
        const float entry = entries[of.along ? i * of.depth + k : k * of.lines + i];
        const float value = vectors[v * of.depth + k];
        const double term =
            static_cast<double>(entry) * static_cast<double>(kind == TensorVectors::whole
                                                                 ? value
                                                                 : wmma::__float_to_tf32(value));
        sum += term;
        sizes += std::fabs(term);
      }
      ASSERT_NEAR(sums[v * of.lines + i], sum, integers ? 0 : 0x1p-19 * sizes) << v << ", " << i;
    }
  }
  for (std::size_t i = 0; i < kBehind; ++i)
    ASSERT_EQ(__float_as_uint(sums[of.rank * of.lines + i]), 0xEEEEEEEEu);
}
template <TensorVectors kind>
void expect_all_tiles() {
  for (const bool along : {true, false}) {
    for (const auto& [lines, depth] :
         {std::pair{1, 1}, {64, 32}, {65, 31}, {63, 33}, {100, 112}, {128, 96}, {7, 130}}) {
      for (const std::uint64_t rank : {1, 8, 15, 16, 17, 32, 33, 64, 65, 100}) {
        for (const bool integers : {true, false})
          expect_tiles<kind>(
              {static_cast<std::uint64_t>(lines), static_cast<std::uint64_t>(depth), rank, along},
              integers);
      }
    }
  }
}
TEST(Tf32Products, AreSumsOfWholeEntriesTimesRoundedVectors) {
  expect_all_tiles<TensorVectors::rounded>();
}
TEST(Tf32Products, AreSumsOfWholeEntriesTimesWholeVectors) {
  expect_all_tiles<TensorVectors::whole>();
  wmma::truncates = true;
  expect_all_tiles<TensorVectors::whole>();
  wmma::truncates = false;
}

/// The roundings of vectors are not the matrix's: with vectors that TF32 has, small differences of
/// entries are kept.
TEST(Tf32Products, KeepTheSmallBitsOfEntries) {
  constexpr std::size_t kDepth = 48;
  std::vector<float> entries(16 * kDepth), vectors(kDepth);
  for (std::size_t i = 0; i < entries.size(); ++i)
    entries[i] = 1 + static_cast<float>(i % 16) * 0x1p-19f;
  for (std::size_t k = 0; k < kDepth; ++k) vectors[k] = k % 2 == 0 ? 1 : -1;
  const OnDevice a(entries), x(vectors), y(16);
  const test::StreamOwner stream;
  Queue queue(stream.get());
  queue.launch_blocks(multiply_tiles<TensorVectors::rounded>, 1, kTileThreads, 0,
                      Operand<float>{a.data(), kDepth, 16, true},
                      Operand<float>{x.data(), kDepth, 1, true}, kDepth, y.data());
  stream.wait();
  const float whole = -24 * 0x1p-19f;  // of pairs of neighbours, which stand one step apart
  for (const float sum : y.get(16)) EXPECT_NEAR(sum, whole, 1e-3f * -whole);
}

}  // namespace
}  // namespace atomo::cuda
