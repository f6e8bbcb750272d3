// SPDX-License-Identifier: Apache-2.0
/// int8 of memories: levels are equally far apart up to the block's largest magnitude, the two outcomes of
/// a value are exact in expectation over all draws, and loops are the rule of an entry.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/short_draw.hpp"
#include "cpu/halves.hpp"
#include "cpu/int8_blocks.hpp"
#include "math/kept_values.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

using core::Philox;
using core::Purpose;

constexpr float kMost = std::numeric_limits<float>::max();

/// A draw that is known.
struct KnownDraw {
  std::uint32_t bits;
  [[nodiscard]] std::uint32_t high() const { return bits >> 16; }
  [[nodiscard]] std::uint32_t low() const { return bits & 0xFFFFu; }
};

TEST(KeptValues, LevelsAreEquallyFarApart) {
  for (const float scale : {1.0f, 3.7f, 0x1p-100f, kMost}) {
    for (int code = -127; code <= 127; ++code) {
      const double value = math::int8_value(static_cast<std::int8_t>(code), scale);
      EXPECT_NEAR(value, code / 127.0 * scale, 0x1p-23 * scale);
      EXPECT_EQ(value, -double{math::int8_value(static_cast<std::int8_t>(-code), scale)});
    }
    EXPECT_EQ(math::int8_value(127, scale), scale);
  }
}

/// All 2^32 draws of a value: those below `least` go up.
TEST(KeptValues, OutcomesAreExactInExpectation) {
  for (const float scale : {1.0f, 0.3f, 2.9e-20f, 0x1p-120f, kMost}) {
    for (const float share :
         {1.0f, 0.999f, 0.5f, 0.3f, 1 / 127.0f, 7.9e-3f, 1e-3f, 1e-6f, 1e-12f, 0.0f}) {
      for (const float x : {scale * share, -scale * share}) {
        const int first = math::int8_code(x, scale, KnownDraw{0}),
                  last = math::int8_code(x, scale, KnownDraw{~0u});
        ASSERT_LE(std::abs(first - last), 1);
        std::uint64_t least = 0, most = std::uint64_t{1} << 32;
        while (least < most) {
          const std::uint64_t middle = (least + most) / 2;
          const int code = math::int8_code(x, scale, KnownDraw{static_cast<std::uint32_t>(middle)});
          ASSERT_TRUE(code == first || code == last);
          (code != last ? least : most) = code != last ? middle + 1 : middle;
        }
        const double up = std::ldexp(static_cast<double>(least), -32),
                     a = math::int8_value(static_cast<std::int8_t>(last), scale),
                     b = math::int8_value(static_cast<std::int8_t>(first), scale);
        // What the levels' f32 rounds, and a draw of 2^32.
        EXPECT_NEAR(a + up * (b - a), x, 0x1p-23 * std::abs(double{x}) + 0x1p-32 * scale / 127)
            << scale << " " << x;
      }
    }
  }
}

/// The smallest blocks: nothing is kept of zeros, and a scale below the normal numbers rounds as f32 does.
TEST(KeptValues, OfTheSmallestBlocks) {
  EXPECT_EQ(math::int8_code(0.0f, 0.0f, KnownDraw{0}), 0);
  EXPECT_EQ(math::int8_value(0, 0.0f), 0.0f);
  const float least = 0x1p-149f;
  EXPECT_EQ(math::int8_code(least, least, KnownDraw{~0u}), 127);
  EXPECT_EQ(math::int8_value(127, least), least);
  EXPECT_EQ(math::int8_code(std::numeric_limits<float>::infinity(), kMost, KnownDraw{~0u}), 127);
}

/// Whole blocks, rests of blocks, tails as heavy as they come, ties of the first bits, draws from elsewhere.
TEST(KeptValues, LoopsAreTheEntrysRule) {
  const Key key{.seed = 5, .step = 2};
  const Philox draws(key, Purpose::memory), further(key, Purpose::memory_low);
  std::size_t ties = 0;
  for (const std::size_t n : {0u, 1u, 127u, 128u, 129u, 256u, 257u, 100000u}) {
    std::vector<float> x = test::heavy_tailed(n, n + 1, 40);
    for (std::size_t i = 512; i < std::min<std::size_t>(n, 768); ++i) x[i] = 0;
    for (const std::uint64_t entry : {0u, 128u, 256u * 1000}) {
      std::vector<std::byte> bytes(math::kept_bytes(math::KeptType::int8, n));
      std::byte* const codes = bytes.data() + math::scale_bytes(math::KeptType::int8, n);
      cpu::round_to_int8(x.data(), n, draws, further, entry, bytes.data(), codes);
      std::vector<float> widened(n);
      cpu::widen_int8(bytes.data(), codes, n, widened.data());
      for (std::size_t i = 0; i < n; ++i) {
        float scale = 0;
        std::memcpy(&scale, bytes.data() + i / 256 * 4, 4);
        if (i % 256 == 0) {
          float largest = 0;
          for (std::size_t k = i; k < std::min(n, i + 256); ++k)
            largest = std::max(largest, std::abs(x[k]));
          ASSERT_EQ(scale, largest);
        }
        const core::ShortDraw draw{core::half_of(draws((entry + i) / 8), entry + i), &further,
                                   entry + i};
        const auto code = static_cast<std::int8_t>(codes[i]);
        ASSERT_EQ(code, math::int8_code(x[i], scale, draw)) << i << " of " << n;
        ASSERT_EQ(widened[i], math::int8_value(code, scale));
        ASSERT_LE(std::abs(widened[i] - x[i]), scale * 1.0001f / 127);
        ties += scale > 0 && math::int8_step(std::abs(x[i]), scale).chance >> 16 == draw.first;
      }
    }
  }
  EXPECT_GT(ties, 0u) << "further bits were never asked for";
}

/// Halves that begin elsewhere draw as the entries there.
TEST(KeptValues, HalvesOfAnyPlaceAreThoseOfTheWhole) {
  const Key key{.seed = 6};
  const Philox draws(key, Purpose::memory), further(key, Purpose::memory_low);
  const std::vector<float> x = test::heavy_tailed(3000, 1, 40);
  std::vector<std::uint16_t> whole(3000), part(3000 - 1024);
  static_cast<void>(cpu::round_to_half(x.data(), 3000, key, cpu::kMemoryDraws, DType::bf16,
                                       whole.data(), nullptr));
  static_cast<void>(cpu::round_to_half(x.data() + 1024, part.size(), draws, further, 1024,
                                       DType::bf16, part.data()));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 1024));
}

}  // namespace
}  // namespace atomo
