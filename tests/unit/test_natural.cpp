// SPDX-License-Identifier: Apache-2.0
/// Natural compression: its two outcomes are exact in expectation and variance, and its codes are
/// those of the format.
#include <cmath>
#include <limits>

#include "core/philox.hpp"
#include "math/natural_rounding.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

/// Magnitudes of every exponent, with mantissas at both ends and between.
std::vector<float> magnitudes() {
  std::vector<float> x = {0.0f, 1.0f, 1.5f, 0x1p-149f, 0x1.8p-148f, 0x1p-126f, 0x1.fffffcp-127f};
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa : {0u, 1u, 0x2AAAAAu, 0x400000u, 0x7FFFFFu})
      x.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
  }
  return x;
}

TEST(Natural, OutcomesAreExactInExpectationAndVariance) {
  for (const float x : magnitudes()) {
    const auto step = math::natural_step(x);
    const double p = std::ldexp(step.chance, -23), exact = static_cast<double>(x),
                 down = static_cast<double>(math::natural_value(step.code, 0)),
                 up = p > 0 ? static_cast<double>(math::natural_value(step.code + 1, 0)) : down;
    const double mean = (1 - p) * down + p * up,
                 variance = (1 - p) * (down - mean) * (down - mean) + p * (up - mean) * (up - mean);
    // In f64 all of it is exact, but for the one value that f32 has not.
    EXPECT_NEAR(mean, exact, x >= 0x1p127f ? 0x1p-24 * exact : 0) << x;
    if (x >= 0x1p-126f) {
      EXPECT_LE(variance, exact * exact / 8 * (1 + 1e-6)) << x;
    }
  }
}

/// Draws whose upper 23 bits are below the chance go up, all others down: exactly `chance` of 2^23.
TEST(Natural, AsManyDrawsGoUpAsTheChanceSays) {
  for (const float x : magnitudes()) {
    const auto [code, chance] = math::natural_step(x);
    if (chance > 0) {
      EXPECT_EQ(math::natural_code(x, (chance << 9) - 1), code + 1) << x;
    }
    EXPECT_EQ(math::natural_code(x, chance << 9), code) << x;
    EXPECT_EQ(math::natural_code(x, ~0u), code) << x;
  }
}

TEST(Natural, BodyIsWhatTheFormatSays) {
  const auto codec = codec::parse_spec("natural");
  for (const std::size_t n : {1u, 31u, 32u, 33u, 1009u, 70001u}) {
    auto x = normal_entries(n, n);
    x[n / 2] = -0.0f;
    const Key key{.seed = 3, .step = 9};
    const Body body = encode_body(codec, x, key);
    const std::size_t signs = (n + 31) / 32 * 4;
    ASSERT_EQ(body.bytes.size(), signs + n);
    const Philox draws(key, Purpose::natural);
    const Values decoded = decode_body(kind_of(codec, n), body.bytes, key);
    ASSERT_EQ(decoded.status, Status::ok);
    for (std::size_t i = 0; i < n; ++i) {
      const bool negative = (std::to_integer<unsigned>(body.bytes[i / 8]) >> (i % 8) & 1) != 0;
      ASSERT_EQ(negative, x[i] < 0) << i;
      const auto code = std::to_integer<std::uint32_t>(body.bytes[signs + i]);
      ASSERT_EQ(code, math::natural_code(x[i], draws(i / 4)[i % 4])) << i;
      ASSERT_EQ(decoded.y[i], math::natural_value(code, negative ? 1 : 0)) << i;
    }
  }
}

TEST(Natural, RefusesOtherLengthsAndSignsOfNoEntry) {
  const auto codec = codec::parse_spec("natural");
  auto body = encode_body(codec, normal_entries(33, 1)).bytes;
  const Kind kind = kind_of(codec, 33);
  auto shorter = body, longer = body;
  shorter.pop_back();
  longer.push_back(std::byte{0});
  EXPECT_EQ(decode_body(kind, shorter).status, Status::truncated);
  EXPECT_EQ(decode_body(kind, longer).status, Status::corrupt);
  body[7] = std::byte{0x80};
  EXPECT_EQ(decode_body(kind, body).status, Status::corrupt);
}

TEST(Natural, TheLargestEntriesStayFinite) {
  const float most = std::numeric_limits<float>::max();
  const auto codec = codec::parse_spec("natural");
  const std::vector<float> x{most, -most, 0x1.8p127f, -0x1.8p127f};
  for (std::uint32_t step = 0; step < 64; ++step) {
    const Key key{.seed = 1, .step = step};
    for (const float y : decode_body(kind_of(codec, 4), encode_body(codec, x, key).bytes, key).y)
      EXPECT_TRUE(std::isfinite(y));
  }
}

}  // namespace
}  // namespace atomo::test
