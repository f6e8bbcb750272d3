// SPDX-License-Identifier: Apache-2.0
/// XXH3 as it is compiled for the device, against the xxHash library.

#include "core/xxh3.hpp"

#define XXH_INLINE_ALL
#include <gtest/gtest.h>
#include <xxhash.h>

#include <vector>

#include "wire/format_cases.hpp"

namespace atomo::test {

using namespace model;
namespace {

namespace xxh3 = core::xxh3;

constexpr std::uint64_t kSeeds[] = {0, 1, 77, 0x80000000, 0x123456789ABCDEF0, ~std::uint64_t{0}};

std::vector<std::byte> bytes(std::size_t n, std::uint64_t seed) {
  SplitMix draw(seed);
  std::vector<std::byte> data(n);
  for (auto& b : data) b = static_cast<std::byte>(draw());
  return data;
}

void expect_the_same(const std::byte* data, std::size_t n) {
  for (const std::uint64_t seed : kSeeds) {
    ASSERT_EQ(xxh3::hash(xxh3::kSecret.data(), data, n, seed), XXH3_64bits_withSeed(data, n, seed))
        << n << " bytes, seed " << seed;
  }
}

TEST(Xxh3, IsTheLibrarysAtEveryShortLength) {
  const auto data = bytes(2003, 5);
  for (std::size_t n = 0; n <= 2000; ++n) expect_the_same(data.data() + n % 4, n);
}

TEST(Xxh3, IsTheLibrarysAtLongerLengths) {
  const auto data = bytes(1u << 20, 6);
  for (const std::size_t n :
       {2048, 3071, 3072, 3073, 4095, 4096, 4097, 8192, 65536, 100003, (1 << 20) - 1, 1 << 20}) {
    expect_the_same(data.data(), n);
  }
}

TEST(Xxh3, IsTheLibrarysOnUniformBytes) {
  for (const auto value : {std::byte{0}, std::byte{255}}) {
    const std::vector<std::byte> data(1100, value);
    for (std::size_t n = 0; n <= data.size(); ++n) expect_the_same(data.data(), n);
  }
}

// What a warp does: eight accumulators whose stripes are added in any order within a region.
TEST(Xxh3, SumsStripesOfARegionInAnyOrder) {
  const auto data = bytes(4096, 7);
  constexpr std::uint64_t kSeed = 99;
  const std::uint64_t* const secret = xxh3::kSecret.data();
  std::uint64_t end = 4096 * xxh3::kPrime64_1, sums[xxh3::kAccumulators];
  for (unsigned i = 0; i < xxh3::kAccumulators; ++i) {
    sums[i] = xxh3::initial(i);
    for (unsigned region = 0; region < 4; ++region) {
      for (unsigned s = xxh3::kRegionStripes; s-- > 0;) {
        const std::byte* const stripe = data.data() + 1024 * region + 64 * s;
        const bool last = region == 3 && s == 15;
        sums[i] += xxh3::load<std::uint64_t>(stripe + 8 * (i ^ 1));
        sums[i] +=
            xxh3::product(xxh3::load<std::uint64_t>(stripe + 8 * i),
                          xxh3::seeded_at(secret, (last ? xxh3::kLastKey : 8 * s) + 8 * i, kSeed));
      }
      if (region < 3) {
        sums[i] =
            xxh3::scramble(sums[i], xxh3::seeded_at(secret, xxh3::kScrambleKey + 8 * i, kSeed));
      }
    }
  }
  for (unsigned i = 0; i < xxh3::kAccumulators; i += 2) {
    end += xxh3::fold(sums[i] ^ xxh3::seeded_at(secret, xxh3::kEndKey + 8 * i, kSeed),
                      sums[i + 1] ^ xxh3::seeded_at(secret, xxh3::kEndKey + 8 * i + 8, kSeed));
  }
  EXPECT_EQ(xxh3::avalanche(end), XXH3_64bits_withSeed(data.data(), 4096, kSeed));
}

}  // namespace
}  // namespace atomo::test
