// SPDX-License-Identifier: Apache-2.0
/// The codebook's levels by hand, its rounding by enumeration, and the Huffman code.
#include <cmath>

#include "catalogue/catalogue_support.hpp"
#include "catalogue/codebook_levels.hpp"
#include "catalogue/huffman.hpp"

namespace atomo::test {
namespace {

using namespace catalogue;

const char* const kPlacements[] = {"quantile", "lloyd", "log", "cot", "ternary"};

std::string spec_of(const std::string& levels, const char* form) {
  return "codebook:levels=" + levels + ",form=" + form + (levels == "ternary" ? "" : ",bits=3");
}

TEST(Codebook, RoundingHasNoBias) {
  constexpr std::uint32_t kSteps = 256;
  const auto x = uneven(80, 3);
  for (const char* levels : kPlacements) {
    const auto mean = mean_over_words(*own_codec(spec_of(levels, "unbiased")), x, kSteps);
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(mean[i], x[i], 20.0 / kSteps) << levels << " " << i;
  }
}

TEST(Codebook, NearestIsTheNearest) {
  const std::vector<float> levels{-3, -1, -1, 0, 0.5f, 7};
  const Nearest nearest(levels);
  for (float x = -5; x < 9; x += 0.0625f) {
    float least = INFINITY;
    for (const float level : levels) least = std::min(least, std::fabs(x - level));
    EXPECT_EQ(std::fabs(x - levels[nearest(x)]), least) << x;
  }
}

TEST(Codebook, LevelsAreThoseOfThePapers) {
  EXPECT_EQ(log_levels(8, 3), (std::vector<float>{-8, -4, -2, 0, 2, 4, 8}));
  const auto many = log_levels(1, 8);
  ASSERT_EQ(many.size(), 255u);
  EXPECT_NEAR(many[254] / many[253], std::exp2(0.125), 1e-6);
  const auto cot = cot_levels(6, 4);
  ASSERT_EQ(cot.size(), 15u);
  for (int k = 1; k <= 7; ++k)
    EXPECT_NEAR(cot[static_cast<std::size_t>(15 - k)],
                6 * std::tan(M_PI / 28) / std::tan(k * M_PI / 28), 1e-6);
  const std::vector<float> eight{-9, -1, 0, 0, 1, 2, 3, 10};
  // Entries above a / 2 = 3.67: 9 and 10, with a = 9.5; the first a is 3.25, then 6 of the four largest, then 22 / 3.
  EXPECT_EQ(ternary_levels(eight), (std::vector<float>{-9.5f, 0, 9.5f}));
  EXPECT_EQ(quantile_levels(eight, 4), (std::vector<float>{-9, 0, 1, 10}));
  EXPECT_EQ(quantile_means(eight, 4), (std::vector<float>{-5, 0, 1.5f, 6.5f}));
}

TEST(Codebook, LloydErrsLessThanQuantiles) {
  const auto x = uneven(4000, 8);
  const auto draws = TestDraws::of({.seed = 1});
  const auto error = [&](const std::string& levels, const char* form) {
    return squared_error(x, arrives(*own_codec(spec_of(levels, form)), x, draws));
  };
  EXPECT_LT(error("lloyd", "nearest"), 0.8 * error("quantile", "nearest"));
  EXPECT_LT(error("lloyd", "unbiased"), 0.8 * error("quantile", "unbiased"));
  EXPECT_LT(error("lloyd", "nearest"), 0.5 * error("lloyd", "unbiased"));
}

TEST(Codebook, LevelsOfASampleAreThoseOfAll) {
  auto x = uneven(100000, 2);
  const auto draws = TestDraws::of({.seed = 1});
  Words words(draws, 0);
  const auto sample = sorted_sample(x, words);
  EXPECT_EQ(sample.size(), 8192u);
  std::ranges::sort(x);
  const auto few = quantile_levels(sample, 9), all = quantile_levels(x, 9);
  for (std::size_t j = 1; j < 8; ++j) EXPECT_NEAR(few[j], all[j], 0.05);
}

TEST(Huffman, LengthsAreOptimalAndAtMostTwelve) {
  std::vector<std::uint8_t> lengths(5);
  huffman_lengths(std::vector<std::uint64_t>{1, 4, 0, 2, 1}, lengths);
  EXPECT_EQ(lengths, (std::vector<std::uint8_t>{3, 1, 0, 2, 3}));
  std::vector<std::uint64_t> fibonacci{1, 1};
  while (fibonacci.size() < 40) {
    fibonacci.push_back(fibonacci.back() + *(fibonacci.end() - 2));
    lengths.assign(fibonacci.size(), 0);
    huffman_lengths(fibonacci, lengths);
    double filled = 0;
    for (const std::uint8_t length : lengths) {
      EXPECT_TRUE(length >= 1 && length <= 12) << fibonacci.size();
      filled += std::exp2(-length);
    }
    EXPECT_EQ(filled, 1);
  }
}

TEST(Huffman, CodesComeBackAndLengthsThatMakeNoCodeAreRefused) {
  std::vector<std::uint8_t> skewed(1000), equal(1000, 3), even(1000);
  for (std::size_t i = 0; i < 1000; ++i) {
    skewed[i] = static_cast<std::uint8_t>(i % 10 == 0 ? i / 10 % 16 : 7);
    even[i] = static_cast<std::uint8_t>(i * 37 % 16);
  }
  const auto bytes_of = [](const std::vector<std::uint8_t>& codes) {
    std::vector<std::byte> body(symbols_bound(codes.size(), 4));
    Writer out(body);
    put_symbols(out, codes, 4);
    body.resize(out.bytes());
    return body;
  };
  for (const auto& codes : {skewed, equal, even}) {
    const auto body = bytes_of(codes);
    Reader in(body);
    std::vector<std::uint8_t> back(1000);
    get_symbols(in, back, 4);
    in.end();
    EXPECT_EQ(back, codes);
  }
  EXPECT_LT(bytes_of(skewed).size(), 220u);
  EXPECT_EQ(bytes_of(equal).size(), 9u);
  EXPECT_EQ(bytes_of(even).size(), 501u);
  for (const auto& lengths : {std::vector<int>{1, 1, 1}, {1, 2}, {2}, {0}, {13, 1}}) {
    std::vector<std::byte> body(40);
    body[0] = std::byte{1};
    for (std::size_t s = 0; s < lengths.size(); ++s)
      body[1 + s / 2] |= static_cast<std::byte>(lengths[s] << 4 * (s % 2));
    Reader in(body);
    std::vector<std::uint8_t> back(4);
    EXPECT_THROW(get_symbols(in, back, 4), Error);
  }
}

}  // namespace
}  // namespace atomo::test
