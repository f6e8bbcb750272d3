// SPDX-License-Identifier: Apache-2.0
#include "math/selection.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "math/dither.hpp"

namespace atomo::cpu {

using namespace model;
namespace {

bool is_kept(const KeptMask& mask, std::size_t k) { return ((mask[k / 64] >> (k % 64)) & 1) != 0; }

std::size_t kept_of(const KeptMask& mask) {
  std::size_t n = 0;
  for (const std::uint64_t word : mask) n += static_cast<std::size_t>(std::popcount(word));
  return n;
}

/// With probabilities that are multiples of 2^-8, 256 values of the draw stand for all 2^32.
TEST(Selection, MarginalsAreExactForEverySizeOfChunk) {
  std::mt19937 random(1);
  for (std::size_t size = 1; size <= kSelectionChunk; size += size < 40 ? 1 : 27) {
    std::vector<double> rms(size);
    std::vector<int> expected(size), count(size);
    double sum = 0;
    for (std::size_t k = 0; k < size; ++k) {
      expected[k] = static_cast<int>(random() % 300);  // in 2^-8; 256 and above are certain
      rms[k] = expected[k] / 256.0;
      expected[k] = std::min(expected[k], 256);
      sum += expected[k] / 256.0;
    }
    for (std::uint32_t u = 0; u < 256; ++u) {
      const KeptMask mask = select_chunk(rms.data(), size, 1.0f, (u << 24) | (random() & 0xFFFFFF));
      for (std::size_t k = 0; k < size; ++k) count[k] += is_kept(mask, k) ? 1 : 0;
      const auto kept = static_cast<double>(kept_of(mask));
      ASSERT_GE(kept, std::floor(sum));
      ASSERT_LE(kept, std::ceil(sum));
    }
    EXPECT_EQ(count, expected) << "chunk of " << size;
  }
}

TEST(Selection, ZeroAtomsAreNeverKept) {
  std::vector<double> rms(256, 0.0);
  rms[17] = 0.5;
  std::size_t kept = 0;
  for (std::uint32_t u = 0; u < 16; ++u) {
    const KeptMask mask = select_chunk(rms.data(), rms.size(), 1.0f, u << 28);
    EXPECT_EQ(kept_of(mask), is_kept(mask, 17) ? 1u : 0u);
    kept += kept_of(mask);
  }
  EXPECT_EQ(kept, 8u);
}

TEST(Selection, CertainAtomsAreAlwaysKeptAndMoveNothing) {
  std::vector<double> with(200, 0.25), without(200, 0.25);
  for (std::size_t k = 3; k < 200; k += 5) {
    with[k] = 7.0;
    without[k] = 0.0;
  }
  for (std::uint32_t u = 0; u < 64; ++u) {
    const KeptMask a = select_chunk(with.data(), 200, 1.0f, u << 26),
                   b = select_chunk(without.data(), 200, 1.0f, u << 26);
    for (std::size_t k = 0; k < 200; ++k) EXPECT_EQ(is_kept(a, k), k % 5 == 3 || is_kept(b, k));
  }
}

TEST(Selection, ChoicesFollowTheRatio) {
  EXPECT_EQ(choose_atom(0.5, 1.0f).probability, 0x80000000u);
  EXPECT_EQ(choose_atom(0.5, 1.0f).atom_class, 0);
  EXPECT_EQ(choose_atom(1.0, 1.0f).atom_class, 1);
  EXPECT_EQ(choose_atom(3.0, 1.0f).atom_class, 4);
  EXPECT_EQ(choose_atom(3.0, 1.0f).probability, 0u);
  EXPECT_EQ(choose_atom(1e-40, 1.0f).probability, 1u);
}

}  // namespace
}  // namespace atomo::cpu
