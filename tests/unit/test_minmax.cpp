// SPDX-License-Identifier: Apache-2.0
/// minmax: the grid holds its bucket, the two outcomes of an entry are exact in expectation over all
/// draws, and bodies are those of the format.
#include <cmath>
#include <limits>

#include "core/philox.hpp"
#include "math/minmax_rounding.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

constexpr float kMost = std::numeric_limits<float>::max();

struct Ends {
  float least, largest;
};
/// Of buckets: wide and narrow, subnormal, of one value, finer at one end than f64 has the width.
std::vector<Ends> buckets() {
  std::vector<Ends> all = {{-1, 1},
                           {0, 1},
                           {-3.5f, -1.25f},
                           {2, 2},
                           {-0.0f, 0.0f},
                           {0, 0x1p-149f},
                           {-0x1p-149f, 0x1.8p-140f},
                           {-kMost, kMost},
                           {-kMost, 0x1p-149f},
                           {-1e10f, 1e-10f},
                           {-1e-10f, 1e10f},
                           {0x1.fffffcp127f, kMost},
                           {1.0f, 0x1.000002p0f},
                           {1e10f, 1.0000001e10f}};
  for (unsigned i = 0; i < 400; ++i) {
    const auto x = normal_entries(2, i, std::ldexp(1.0f, static_cast<int>(i % 240) - 120));
    all.push_back({std::min(x[0], x[1]), std::max(x[0], x[1])});
  }
  return all;
}

/// How many of 2^32 draws go up: `draw_between` is true for the first of them.
double share_that_goes_up(double above_low, double gap) {
  std::uint64_t least = 0, most = std::uint64_t{1} << 32;
  while (least < most) {
    const std::uint64_t middle = (least + most) / 2;
    if (math::draw_between(above_low, gap, static_cast<std::uint32_t>(middle))) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return std::ldexp(static_cast<double>(least), -32);
}

TEST(Minmax, GridHoldsItsBucketInOrder) {
  for (const std::uint32_t levels : {15u, 255u}) {
    for (const auto [least, largest] : buckets()) {
      const math::MinmaxGrid grid = math::minmax_grid(least, largest, levels);
      EXPECT_EQ(math::minmax_value(grid, 0), least);
      EXPECT_GE(math::minmax_value(grid, levels), largest) << least << " " << largest;
      EXPECT_EQ(grid.step == 0, least == largest);
      for (std::uint32_t code = 0; code < levels; ++code)
        ASSERT_LE(math::minmax_value(grid, code), math::minmax_value(grid, code + 1));
      // The least step that does, or the one above it.
      if (grid.step <= 0x1p-149f) continue;
      math::MinmaxGrid finer = grid;
      finer.step = std::nextafter(std::nextafter(grid.step, 0.0f), 0.0f);
      EXPECT_LT(static_cast<double>(finer.step) * levels,
                static_cast<double>(largest) - static_cast<double>(least));
    }
  }
}

/// Every draw of an entry: E[decoded] is the entry within 2^-32 of the two values' distance, and the
/// variance is at most a quarter of its square.
TEST(Minmax, OutcomesAreExactInExpectation) {
  for (const std::uint32_t levels : {15u, 255u}) {
    for (const auto [least, largest] : buckets()) {
      const math::MinmaxGrid grid = math::minmax_grid(least, largest, levels);
      const double inverse = math::minmax_inverse(grid);
      const double width = static_cast<double>(largest) - static_cast<double>(least);
      for (unsigned k = 0; k <= 40; ++k) {
        auto x = static_cast<float>(least + width * k / 40);
        x = std::min(largest, std::max(least, x));
        const std::uint32_t code = math::minmax_below(grid, inverse, levels, x);
        ASSERT_LT(code, levels);
        const double exact = x, below = math::minmax_value(grid, code),
                     above = math::minmax_value(grid, code + 1), gap = above - below;
        ASSERT_LE(below, exact) << least << " " << largest << " " << k;
        ASSERT_GE(above, exact) << least << " " << largest << " " << k;
        const double p = share_that_goes_up(exact - below, gap);
        const double up_by = gap * p, error = std::abs(up_by - (exact - below));
        EXPECT_LE(error, 0x1p-32 * gap + 0x1p-51 * gap) << x;
        EXPECT_EQ(p == 0, exact == below);
        // What the traits say is a bound on it, where f32's own grid is finer than the steps.
        if (static_cast<double>(grid.step) >
                0x1p-13 * std::max(std::abs(least), std::abs(largest)) &&
            std::abs(largest) + std::abs(least) > 0x1p-126f) {
          EXPECT_LE(gap, width / levels * (1 + 0x1p-9));
        }
      }
      for (const float x : {least, largest}) {
        for (const std::uint32_t random : {0u, 0x80000000u, ~0u}) {
          const std::uint32_t code = math::minmax_code(grid, inverse, levels, x, random);
          ASSERT_LE(code, levels);
          if (x == least) {
            EXPECT_EQ(math::minmax_value(grid, code), least);
          }
        }
      }
    }
  }
}

/// Where the estimate in f32 calls itself sure it is the code, also for draws beside the entry's chance,
/// and it is sure of nearly all.
TEST(Minmax, EstimatesAreCodesOrInDoubt) {
  std::uint64_t estimated = 0, asked = 0, in_doubt = 0;
  for (const std::uint32_t levels : {15u, 255u}) {
    for (const auto [least, largest] : buckets()) {
      const math::MinmaxGrid grid = math::minmax_grid(least, largest, levels);
      const double inverse = math::minmax_inverse(grid);
      math::MinmaxEstimate estimate;
      if (!math::minmax_estimate(grid, largest, levels, estimate)) continue;
      ++estimated;
      const Philox draws({.seed = levels, .step = static_cast<std::uint32_t>(estimated)},
                         Purpose::minmax);
      const double width = static_cast<double>(largest) - static_cast<double>(least);
      const auto check = [&](float x, std::uint32_t random) {
        float distance;
        const std::uint32_t code = math::minmax_estimated(estimate, x, random, distance);
        if (distance > estimate.sure) return false;
        EXPECT_EQ(code, math::minmax_code(grid, inverse, levels, x, random))
            << least << " " << largest << " " << x << " " << random;
        return true;
      };
      for (unsigned k = 0; k <= 60; ++k) {
        const auto between = static_cast<float>(least + width * k / 60);
        const float on_grid = math::minmax_value(grid, k * levels / 60);
        for (float x : {between, on_grid}) {
          x = std::min(largest, std::max(least, x));
          const std::uint32_t code = math::minmax_below(grid, inverse, levels, x);
          const double below = math::minmax_value(grid, code),
                       above = math::minmax_value(grid, code + 1);
          const auto chance = static_cast<std::uint32_t>(
              std::min(0x1p32 - 1, 0x1p32 * share_that_goes_up(x - below, above - below)));
          for (int shift = 0; shift < 32; ++shift) {
            check(x, chance + (1u << shift));
            check(x, chance - (1u << shift));
          }
          for (const std::uint32_t random : draws(k)) {
            ++asked;
            in_doubt += check(x, random) ? 0u : 1u;
          }
        }
      }
    }
  }
  EXPECT_GT(estimated, 600u);
  EXPECT_LT(in_doubt * 2000, asked);
}

TEST(Minmax, BodyIsWhatTheFormatSays) {
  for (const unsigned bits : {8u, 4u}) {
    const auto codec = codec::parse_spec("minmax:bucket=128,bits=" + std::to_string(bits));
    for (const std::size_t n : {1u, 127u, 128u, 129u, 1009u, 70001u}) {
      auto x = normal_entries(n, n);
      for (std::size_t i = 0; i < std::min<std::size_t>(n, 128); ++i) x[i] = -0.25f;
      for (std::size_t i = 128; i < std::min<std::size_t>(n, 256); ++i) x[i] = 1e6f + x[i];
      const Key key{.seed = 3, .step = 9};
      const Body body = encode_body(codec, x, key);
      const std::size_t grids = 8 * ((n + 127) / 128);
      ASSERT_EQ(body.bytes.size(), grids + (n * bits + 7) / 8);
      const Philox draws(key, Purpose::minmax);
      const Values decoded = decode_body(kind_of(codec, n), body.bytes, key);
      ASSERT_EQ(decoded.status, Status::ok);
      for (std::size_t i = 0; i < n; ++i) {
        math::MinmaxGrid grid;
        std::memcpy(&grid, body.bytes.data() + i / 128 * 8, 8);
        const auto byte = std::to_integer<std::uint32_t>(body.bytes[grids + i * bits / 8]);
        const std::uint32_t code = bits == 8 ? byte : byte >> (4 * (i % 2)) & 15u;
        const std::uint32_t levels = (1u << bits) - 1;
        ASSERT_EQ(code, math::minmax_code(grid, math::minmax_inverse(grid), levels, x[i],
                                          draws(i / 4)[i % 4]));
        ASSERT_EQ(decoded.y[i], math::minmax_value(grid, code)) << i;
        if (i < 128) {
          ASSERT_EQ(decoded.y[i], x[i]);  // of one value
        }
      }
    }
  }
}

TEST(Minmax, RefusesWhatTheFormatDoes) {
  const auto codec = codec::parse_spec("minmax:bits=4,bucket=128");
  const auto sound = encode_body(codec, normal_entries(33, 1)).bytes;
  const Kind kind = kind_of(codec, 33);
  auto shorter = sound, longer = sound, padded = sound;
  shorter.pop_back();
  longer.push_back(std::byte{0});
  padded.back() |= std::byte{0x80};
  EXPECT_EQ(decode_body(kind, shorter).status, Status::truncated);
  EXPECT_EQ(decode_body(kind, longer).status, Status::corrupt);
  EXPECT_EQ(decode_body(kind, padded).status, Status::corrupt);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& [at, bad] :
       {std::pair{0, kInfinity}, {0, -kInfinity}, {4, kInfinity}, {4, -0.0f}, {4, -1.0f}}) {
    auto body = sound;
    std::memcpy(body.data() + at, &bad, 4);
    EXPECT_EQ(decode_body(kind, body).status, Status::corrupt) << at << " " << bad;
  }
}

}  // namespace
}  // namespace atomo::test
