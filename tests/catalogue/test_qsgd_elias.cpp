// SPDX-License-Identifier: Apache-2.0
/// QSGD's levels by enumeration, and that its three codes say the same with the bits that the paper counts.
#include <cmath>

#include "catalogue/catalogue_support.hpp"

namespace atomo::test {
namespace {

TEST(QsgdElias, RoundingHasNoBiasAndTheErrorOfThePaper) {
  constexpr std::uint32_t kSteps = 512;
  const auto x = uneven(100, 2);
  for (const char* norm : {"l2", "max"}) {
    const auto codec = own_codec(std::string("qsgd-elias:levels=3,bucket=64,norm=") + norm);
    const auto mean = mean_over_words(*codec, x, kSteps);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(mean[i], x[i], 20.0 / kSteps) << norm;
  }
}

TEST(QsgdElias, CodesSayTheSame) {
  const auto x = uneven(3000, 5);
  const auto draws = TestDraws::of({.seed = 2});
  for (const char* levels : {"1", "3", "255"}) {
    const auto of = [&](const char* code) {
      return arrives(*own_codec(std::string("qsgd-elias:levels=") + levels + ",code=" + code), x,
                     draws);
    };
    EXPECT_EQ(of("gamma"), of("gaps"));
    EXPECT_EQ(of("gamma"), of("huffman"));
  }
}

TEST(QsgdElias, BitsAreThoseOfTheGammaCode) {
  // Norm 4 and levels 4, 0, 1, 3: words of 5 (level + 1 = 5), 1, 3, 5 bits and three signs.
  const std::vector<float> x{4, 0, -1, 3};
  const TestDraws draws([](std::uint64_t) { return 0xFFFFFFFFu; });
  const auto body = body_of(*own_codec("qsgd-elias:levels=4,norm=max"), x, draws);
  ASSERT_EQ(body.size(), 4u + 3u);
  // 00101 0, 1, 010 1, 00100 0, first bits lowest; a word's low bits follow its unary part.
  EXPECT_EQ(static_cast<int>(body[4]), 0b01001100);
  // Without the zero: 1 + 3 in 5 bits, then (1, +, 4), (2, -, 1), (1, +, 3) in 1+1+5, 3+1+1, 1+1+3.
  EXPECT_EQ(body_of(*own_codec("qsgd-elias:levels=4,norm=max,code=gaps"), x, draws).size(),
            4u + 3u);
}

TEST(QsgdElias, LessThanPackedLevelsWhereMostAreZero) {
  const auto x = uneven(4096, 9);
  const auto draws = TestDraws::of({.seed = 2});
  const auto bits = [&](const std::string& keys) {
    return 8.0 *
           static_cast<double>(
               body_of(*own_codec("qsgd-elias:levels=1,bucket=512," + keys), x, draws).size()) /
           4096;
  };
  // One level in 23 is not 0: 0.26 bits of entropy and a sign, 32 / 512 of the norm.
  EXPECT_LT(bits("code=gaps"), 0.55);
  EXPECT_GT(bits("code=gamma"), 1.0);
}

}  // namespace
}  // namespace atomo::test
