// SPDX-License-Identifier: Apache-2.0
/// identity:dtype=e4m3 and e5m2: values are those of the types, scales leave nothing to saturate, the two
/// outcomes of an entry are exact in expectation over all draws, and bodies are those of the format.
#include <cmath>
#include <limits>

#include "core/philox.hpp"
#include "cpu/fp8.hpp"
#include "math/draw_between.hpp"
#include "math/fp8_rounding.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

constexpr float kMost = std::numeric_limits<float>::max();
const math::Fp8Type kTypes[] = {math::fp8_type(0), math::fp8_type(1)};

double largest_of(const math::Fp8Type& type) { return std::ldexp(1.75, type.largest_exponent); }

/// By the types' definition.
TEST(Fp8, CodesAreTheNumbersOfTheTypes) {
  for (const auto& type : kTypes) {
    for (std::uint32_t code = 0; code <= type.last_code; ++code) {
      const int field = static_cast<int>(code >> type.mantissa);
      const double fraction = std::ldexp(code & ((1u << type.mantissa) - 1), -type.mantissa);
      const double v = field == 0 ? std::ldexp(fraction, type.least_exponent)
                                  : std::ldexp(1 + fraction, field - 1 + type.least_exponent);
      for (const int e : {type.least_scale, -100, 0, 90}) {
        const auto scale = static_cast<float>(std::ldexp(1.0, e));
        EXPECT_EQ(static_cast<double>(math::fp8_value(type, code, scale)), std::ldexp(v, e));
      }
    }
    EXPECT_EQ(math::fp8_value(type, type.last_code, 1), largest_of(type));
  }
  EXPECT_EQ(largest_of(kTypes[0]), 448);
  EXPECT_EQ(largest_of(kTypes[1]), 57344);
}

/// Of every exponent, mantissas at both ends, about 1.75 and between.
std::vector<float> magnitudes() {
  std::vector<float> x = {0.0f, 0x1p-149f, 0x1.8p-148f, kMost};
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa :
         {0u, 1u, 0x2AAAAAu, 0x5FFFFFu, 0x600000u, 0x600001u, 0x7FFFFFu})
      x.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
  }
  return x;
}

TEST(Fp8, TheScaleIsTheLeastAtWhichTheLargestFits) {
  for (const auto& type : kTypes) {
    for (const float largest : magnitudes()) {
      const int scale = math::fp8_scale(type, largest);
      const double at = std::ldexp(largest_of(type), scale);
      EXPECT_GE(at, static_cast<double>(largest));
      EXPECT_TRUE(scale == type.least_scale || at / 2 < static_cast<double>(largest)) << largest;
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::ldexp(1.0, scale)));
      int read = 0;
      EXPECT_TRUE(math::read_fp8_scale(type, bits, read)) << largest;
      EXPECT_EQ(read, scale);
    }
    int read = 0;
    for (const float bad : {0.0f, -0.0f, -1.0f, 3.0f, 0x1.8p-140f, 0x1p-141f, 0x1p121f,
                            std::numeric_limits<float>::infinity()})
      EXPECT_FALSE(math::read_fp8_scale(type, std::bit_cast<std::uint32_t>(bad), read)) << bad;
    EXPECT_FALSE(math::read_fp8_scale(type, 0x7FC00000u, read));
  }
}

/// The format's rule, in f64 from the values of both codes.
std::uint32_t code_of_the_format(const math::Fp8Type& type, std::uint32_t below, float scale,
                                 float x, std::uint32_t random) {
  const double a = math::fp8_value(type, below, scale), b = math::fp8_value(type, below + 1, scale);
  return below + (math::draw_between(static_cast<double>(x) - a, b - a, random) ? 1u : 0u);
}

/// Every draw of an entry, from the largest of its layer down to its subnormal numbers.
TEST(Fp8, OutcomesAreExactInExpectation) {
  for (const auto& type : kTypes) {
    for (const float largest : magnitudes()) {
      const int exponent = math::fp8_scale(type, largest);
      const auto scale = static_cast<float>(std::ldexp(1.0, exponent));
      const math::Fp8Grid grid = math::fp8_grid(type, exponent);
      for (const float share : {1.0f, 0.9f, 0.3f, 1.7e-3f, 3e-5f, 1e-9f, 1e-13f, 1e-30f, 0.0f}) {
        const float x = largest * share;
        const std::uint32_t code = math::fp8_step(grid, x).code;
        ASSERT_LE(code, type.last_code);
        const double exact = x, below = math::fp8_value(type, code, scale);
        ASSERT_LE(below, exact);
        if (code == type.last_code) {
          EXPECT_EQ(below, exact);
          EXPECT_EQ(math::fp8_code(grid, x, 0), code);
          continue;
        }
        const double above = math::fp8_value(type, code + 1, scale), gap = above - below;
        ASSERT_LE(exact, above) << x;
        std::uint64_t least = 0, most = std::uint64_t{1} << 32;  // draws below `least` go up
        while (least < most) {
          const std::uint64_t middle = (least + most) / 2;
          const auto random = static_cast<std::uint32_t>(middle);
          const std::uint32_t drawn = math::fp8_code(grid, x, random);
          ASSERT_EQ(drawn, code_of_the_format(type, code, scale, x, random)) << largest << " " << x;
          const bool up = drawn == code + 1;
          (up ? least : most) = up ? middle + 1 : middle;
        }
        const double p = std::ldexp(static_cast<double>(least), -32);
        EXPECT_NEAR(p * gap, exact - below, 0x1p-32 * gap * (1 + 0x1p-19)) << largest << " " << x;
      }
    }
  }
}

/// The codes that a codec writes, tiles and rests of tiles, are those of an entry alone, at every scale.
TEST(Fp8, LoopsAreTheEntrysRule) {
  const Philox draws({.seed = 5, .step = 2}, Purpose::fp8);
  const std::vector<float> all = magnitudes();
  std::vector<std::byte> codes(all.size());
  for (const auto& type : kTypes) {
    for (const float largest :
         {0x1p-149f, 0x1p-130f, 0x1p-112f, 0x1.8p-90f, 1.0f, 0x1.7p99f, kMost}) {
      std::vector<float> x;
      for (const float v : all) {
        if (v <= largest) x.push_back(x.size() % 3 == 0 ? -v : v);
      }
      const math::Fp8Grid grid = math::fp8_grid(type, math::fp8_scale(type, largest));
      cpu::fp8_codes(grid, x.data(), draws, 0, x.size(), codes.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::uint32_t sign = x[i] < 0 ? 0x80u : 0u;
        ASSERT_EQ(std::to_integer<std::uint32_t>(codes[i]),
                  math::fp8_code(grid, std::abs(x[i]), draws(i / 4)[i % 4]) | sign)
            << largest << " " << x[i];
      }
    }
  }
}

TEST(Fp8, BodyIsWhatTheFormatSays) {
  for (const char* const spec : {"identity:dtype=e4m3", "identity:dtype=e5m2"}) {
    const auto codec = codec::parse_spec(spec);
    const math::Fp8Type& type = kTypes[spec[16] == '5' ? 1 : 0];
    for (const std::size_t n : {1u, 5u, 1009u, 70001u}) {
      auto x = normal_entries(n, n);
      x[n / 2] = -0.0f;
      const Key key{.seed = 3, .step = 9};
      const Body body = encode_body(codec, x, key);
      ASSERT_EQ(body.bytes.size(), 4 + n);
      float scale, largest = 0;
      std::memcpy(&scale, body.bytes.data(), 4);
      for (const float v : x) largest = std::max(largest, std::abs(v));
      ASSERT_EQ(scale, std::ldexp(1.0f, math::fp8_scale(type, largest)));
      const math::Fp8Grid grid = math::fp8_grid(type, math::fp8_scale(type, largest));
      const Philox draws(key, Purpose::fp8);
      const Values decoded = decode_body(kind_of(codec, n), body.bytes, key);
      ASSERT_EQ(decoded.status, Status::ok);
      for (std::size_t i = 0; i < n; ++i) {
        const auto code = std::to_integer<std::uint32_t>(body.bytes[4 + i]);
        ASSERT_EQ(code >> 7, x[i] < 0 ? 1u : 0u);
        const std::uint32_t below = math::fp8_step(grid, std::abs(x[i])).code;
        ASSERT_EQ(code & 0x7Fu,
                  code_of_the_format(type, below, scale, std::abs(x[i]), draws(i / 4)[i % 4]));
        const float v = math::fp8_value(type, code & 0x7Fu, scale);
        ASSERT_EQ(decoded.y[i], x[i] < 0 ? -v : v) << i;
      }
    }
  }
}

TEST(Fp8, NothingSaturates) {
  for (const char* const spec : {"identity:dtype=e4m3", "identity:dtype=e5m2"}) {
    const auto codec = codec::parse_spec(spec);
    const std::vector<float> x{kMost, -kMost, 0x1.cp127f, 0x1.dp127f};
    double sum = 0;
    for (std::uint32_t step = 0; step < 64; ++step) {
      const Key key{.seed = 1, .step = step};
      const auto y = decode_body(kind_of(codec, 4), encode_body(codec, x, key).bytes, key).y;
      EXPECT_EQ(y[0], kMost);
      EXPECT_EQ(y[1], -kMost);
      EXPECT_EQ(y[2], x[2]);
      sum += static_cast<double>(y[3]) / 64;
    }
    EXPECT_NEAR(sum, 0x1.dp127, 0x1p124);
  }
}

TEST(Fp8, RefusesWhatTheFormatDoes) {
  const auto codec = codec::parse_spec("identity:dtype=e5m2");
  const auto sound = encode_body(codec, normal_entries(33, 1)).bytes;
  const Kind kind = kind_of(codec, 33);
  auto shorter = sound, longer = sound, infinite = sound, scaled = sound;
  shorter.pop_back();
  longer.push_back(std::byte{0});
  infinite.back() = std::byte{0x7C};
  scaled[0] = std::byte{1};
  EXPECT_EQ(decode_body(kind, shorter).status, Status::truncated);
  EXPECT_EQ(decode_body(kind, longer).status, Status::corrupt);
  EXPECT_EQ(decode_body(kind, infinite).status, Status::corrupt);
  EXPECT_EQ(decode_body(kind, scaled).status, Status::corrupt);
}

}  // namespace
}  // namespace atomo::test
