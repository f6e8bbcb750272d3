// SPDX-License-Identifier: Apache-2.0
#include "core/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace atomo {

using namespace model;
namespace {

/// The two formats by their numbers alone: the reference is exact arithmetic in double.
struct Format {
  int mantissa, least_exponent;
  double largest;
  float (*up)(std::uint16_t);
  std::uint16_t (*nearest)(float, bool&);
  std::uint16_t (*stochastic)(float, std::uint32_t, bool&);
};

const Format kF16{10, -14, 65504.0, from_f16, to_f16, to_f16};
const Format kBf16{7, -126, 0x1.FEp127, from_bf16, to_bf16, to_bf16};

double spacing(const Format& f, double x) {
  const int exponent = x == 0 ? f.least_exponent : std::max(std::ilogb(x), f.least_exponent);
  return std::ldexp(1.0, exponent - f.mantissa);
}

class HalfTest : public testing::TestWithParam<const Format*> {};
INSTANTIATE_TEST_SUITE_P(Both, HalfTest, testing::Values(&kF16, &kBf16),
                         [](const auto& format) { return format.param == &kF16 ? "F16" : "Bf16"; });

TEST_P(HalfTest, UpIsExactForAllValues) {
  const Format& f = *GetParam();
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const float value = f.up(static_cast<std::uint16_t>(h));
    const std::uint32_t exponent = (h & 0x7FFFu) >> f.mantissa,
                        mantissa = h & ((1u << f.mantissa) - 1);
    const double sign = (h & 0x8000u) != 0 ? -1 : 1;
    ASSERT_EQ(std::signbit(value), sign < 0) << h;
    if (exponent == (0x7FFFu >> f.mantissa)) {
      ASSERT_EQ(std::isnan(value), mantissa != 0) << h;
      ASSERT_EQ(std::isinf(value), mantissa == 0) << h;
    } else {
      const double unit = std::ldexp(
          1.0, f.least_exponent - f.mantissa + static_cast<int>(std::max(exponent, 1u)) - 1);
      const double whole = mantissa + (exponent == 0 ? 0.0 : std::ldexp(1.0, f.mantissa));
      ASSERT_EQ(value, sign * whole * unit) << h;
    }
  }
}

TEST_P(HalfTest, DownReturnsEveryValueToItself) {
  const Format& f = *GetParam();
  bool overflow = false;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto h = static_cast<std::uint16_t>(i);
    const float value = f.up(h);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(f.up(f.nearest(value, overflow)))) << i;
      ASSERT_TRUE(std::isnan(f.up(f.stochastic(value, 0, overflow)))) << i;
      continue;
    }
    ASSERT_EQ(f.nearest(value, overflow), h);
    ASSERT_EQ(f.stochastic(value, 0, overflow), h);
    ASSERT_EQ(f.stochastic(value, 0xFFFFFFFFu, overflow), h);
  }
  EXPECT_FALSE(overflow);
}

void expect_nearest(const Format& f, float x) {
  bool overflow = false;
  const float rounded = f.up(f.nearest(x, overflow));
  const double unit = spacing(f, x), expected = std::nearbyint(x / unit) * unit;
  if (std::fabs(expected) > f.largest) {
    ASSERT_EQ(rounded, std::copysign(std::numeric_limits<float>::infinity(), x)) << x;
    ASSERT_TRUE(overflow) << x;
  } else {
    ASSERT_EQ(rounded, expected) << x;
    ASSERT_EQ(std::signbit(rounded), std::signbit(x)) << x;
    ASSERT_FALSE(overflow) << x;
  }
}

TEST_P(HalfTest, NearestTakesTiesToEven) {
  const Format& f = *GetParam();
  for (std::uint32_t h = 0; h < 0x8000u; ++h) {
    const float low = f.up(static_cast<std::uint16_t>(h)),
                high = f.up(static_cast<std::uint16_t>(h + 1));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    for (const float x : {middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
      expect_nearest(f, x);
      expect_nearest(f, -x);
    }
  }
}

TEST_P(HalfTest, NearestOfRandomBits) {
  std::mt19937 random(1);
  for (int i = 0; i < 500000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(x)) expect_nearest(*GetParam(), x);
  }
}

/// With 2^32 words the number that round up is exactly the fraction times 2^32.
TEST_P(HalfTest, StochasticIsUnbiased) {
  const Format& f = *GetParam();
  std::mt19937 random(2);
  for (int i = 0; i < 500000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(x) || (&f == &kF16 && std::fabs(x) < 0x1p-33f && x != 0)) continue;
    const double unit = spacing(f, x), down = std::trunc(x / unit) * unit,
                 away = down + std::copysign(unit, x);
    if (std::fabs(away) > f.largest) continue;
    const double ups = std::fabs(x - down) / unit * 4294967296.0;
    ASSERT_EQ(ups, std::floor(ups));
    bool overflow = false;
    if (ups > 0) {
      ASSERT_EQ(f.up(f.stochastic(x, static_cast<std::uint32_t>(ups - 1), overflow)), away) << x;
    }
    ASSERT_EQ(f.up(f.stochastic(x, static_cast<std::uint32_t>(ups), overflow)), down) << x;
    ASSERT_FALSE(overflow);
  }
}

TEST(Half, TinyValuesKeepTheirBiasBelowTheBound) {
  bool overflow = false;
  for (const float x :
       {0x1p-34f, 0x1.8p-40f, 0x1.fffffep-34f, 0x1.000002p-50f, 0x1p-58f, 1e-30f, 1e-45f}) {
    // The number of words that round up, by bisection on the threshold.
    std::uint64_t low = 0, high = std::uint64_t{1} << 32;
    while (low < high) {
      const std::uint64_t middle = (low + high) / 2;
      if (to_f16(x, static_cast<std::uint32_t>(middle), overflow) != 0) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    EXPECT_LE(std::fabs(static_cast<double>(low) / 4294967296.0 * 0x1p-24 - x), 0x1p-57) << x;
  }
}

TEST(Half, OverflowIsReportedAndInfinitiesAreNot) {
  const float infinity = std::numeric_limits<float>::infinity();
  bool overflow = false;
  EXPECT_EQ(to_f16(infinity, overflow), 0x7C00);
  EXPECT_EQ(to_f16(-infinity, 1u, overflow), 0xFC00);
  EXPECT_EQ(to_bf16(-infinity, overflow), 0xFF80);
  EXPECT_EQ(to_f16(65519.996f, overflow), 0x7BFF);
  EXPECT_FALSE(overflow);
  EXPECT_EQ(to_f16(65520.0f, overflow), 0x7C00);
  EXPECT_TRUE(overflow);
  overflow = false;
  EXPECT_EQ(to_f16(-1e20f, 7u, overflow), 0xFC00);
  EXPECT_TRUE(overflow);
  overflow = false;
  EXPECT_EQ(to_bf16(3.4e38f, overflow), 0x7F80);
  EXPECT_TRUE(overflow);
}

}  // namespace
}  // namespace atomo
