// SPDX-License-Identifier: Apache-2.0
// Every outcome of the dither's arithmetic, enumerated in double with dyadic uniforms: the
// expectation is the value and the variance is the formula. Planted mistakes must be seen by the
// same enumeration.
#include "math/dither.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "coding/duo_code_tables.hpp"
#include "math/centroids.hpp"
#include "math/selection.hpp"

namespace atomo::detail {

using namespace model;
namespace {

constexpr int kPreLevels = 64;

/// One of kPreLevels pre-rounding values instead of 65,536.
struct DyadicDraw {
  std::uint32_t level;
  int pre;
  template <typename Real>
  Real uniform() const {
    return Real{1} +
           (static_cast<Real>(level) + (static_cast<Real>(pre) + Real{0.5}) / kPreLevels) / 16;
  }
};

struct Moments {
  double mean, variance;
};

/// Moments over all draws of `estimate(draw)`.
Moments enumerate(const std::function<double(DyadicDraw)>& estimate) {
  double sum = 0, squares = 0;
  for (std::uint32_t level = 0; level < 16; ++level) {
    for (int pre = 0; pre < kPreLevels; ++pre) {
      const double value = estimate({level, pre});
      sum += value;
      squares += value * value;
    }
  }
  const double n = 16.0 * kPreLevels;
  return {sum / n, squares / n - sum / n * (sum / n)};
}

Moments enumerate_entry(double x, double step) {
  return enumerate([&](DyadicDraw draw) {
    return dequantise<double>(quantise<double>(x, 1 / step, draw), draw.level, step);
  });
}

/// Entries on the grid of the dyadic draws: multiples of step / (16 * kPreLevels).
double grid(int i, double step) { return i * step / (16 * kPreLevels); }

TEST(Dither, IsExactlyUnbiasedWithTheStatedVariance) {
  const double step = 0.75;
  for (int i = -3000; i <= 3000; ++i) {
    const double x = grid(i, step), f = 16 * x / step - std::floor(16 * x / step);
    const Moments m = enumerate_entry(x, step);
    ASSERT_NEAR(m.mean, x, 1e-12);
    ASSERT_NEAR(m.variance, step * step / 12 * (1 - 1.0 / 256) + step * step * f * (1 - f) / 256,
                1e-12);
  }
}

TEST(Dither, AverageVarianceIsTheConstant) {
  double sum = 0;
  for (int i = 0; i < 16 * kPreLevels; ++i) sum += enumerate_entry(grid(i, 1.0), 1.0).variance;
  EXPECT_NEAR(sum / (16 * kPreLevels), kDitherVariance, 1e-4);
}

/// A kept uncertain entry, times its probability, over the integer that is sent: exact for any P,
/// even 1.
TEST(Dither, KeptEntriesAreDividedByTheProbabilityThatWasUsed) {
  for (const std::uint32_t p : {1u, 3u, 0x1234567u, 0x80000000u, 0xFFFFFFFFu}) {
    const double price = 1.0, delta = 2.75, step = price * delta;
    const ContentScale<double> scale = uncertain_scale(price, delta, p);
    EXPECT_NEAR(scale.inverse * step * p / kTwo32, 1.0, 1e-15);
    for (int i = -300; i <= 300; i += 7) {
      const double content = grid(i, step), x = content * p / kTwo32;
      const double kept =
          enumerate([&](DyadicDraw draw) {
            return dequantise<double>(quantise<double>(x, scale.inverse, draw), draw.level, step);
          }).mean;
      // x times the inverse may miss the grid by a rounding, which shows as at most one draw in
      // 1,024.
      ASSERT_NEAR(kept * (p / kTwo32), x, step / 1000 * (p / kTwo32));
    }
  }
}

TEST(Dither, PlantedMistakesAreSeen) {
  const double step = 1.0, x = grid(301, step);
  const auto q_of = [&](DyadicDraw draw) { return quantise<double>(x, 1 / step, draw); };
  const auto bias = [&](const std::function<double(DyadicDraw)>& f) {
    return std::fabs(enumerate(f).mean - x);
  };
  const auto right = [&](DyadicDraw d) { return dequantise<double>(q_of(d), d.level, step); };
  EXPECT_LT(bias(right), 1e-12);
  // Uncentred dither: the offset forgotten.
  EXPECT_GT(bias([&](DyadicDraw d) { return (q_of(d) - d.level / 16.0) * step; }), 0.1);
  // Decoded half a cell of the dither off.
  EXPECT_GT(bias([&](DyadicDraw d) { return (32 * q_of(d) - 2.0 * d.level + 16) * step / 32; }),
            0.01);
  // No pre-rounding: the sixteenths are rounded one way.
  EXPECT_GT(bias([&](DyadicDraw d) { return right({d.level, kPreLevels / 2}); }), 0.005);
  // Decoded at the level of the pair's other entry: no bias, but more variance.
  const Moments mate = enumerate(
      [&](DyadicDraw d) { return dequantise<double>(q_of(d), d.level ^ kMateDither, step); });
  EXPECT_GT(mate.variance, 2 * enumerate(right).variance);
  // The ideal probability in place of the used one.
  const double ratio = 0.3 + 1e-10;
  const std::uint32_t p = probability_of_ratio(ratio);
  EXPECT_GT(std::fabs(p / kTwo32 / ratio - 1), 1e-11);
  // ... and one cut to 8 bits.
  EXPECT_GT(std::fabs(p / kTwo32 / ((p & 0xFF000000u) / kTwo32) - 1), 1e-4);
}

/// The path the kernels take: all 2^20 draws of an entry in f32.
TEST(Dither, FloatPathStaysInsideItsBias) {
  for (const float step : {0.75f, 2.8e-9f, 3.3e12f}) {
    for (const float y : {0.0f, 0.01f, -0.37f, 3.6328125f, -17.91f, 1234.567f}) {
      const float x = y * step;
      const auto scale = certain_scale(1.0f, step);
      double sum = 0;
      for (std::uint32_t level = 0; level < 16; ++level) {
        for (std::uint32_t pre = 0; pre < 65536; ++pre) {
          const std::int32_t q = quantise<float>(x, scale.inverse, EntryDraw{level, pre});
          sum += static_cast<double>(dequantise<float>(q, level, step));
        }
      }
      const double bound =
          0x1p-21 * static_cast<double>(step) + 0x1.8p-23 * std::fabs(static_cast<double>(x));
      EXPECT_NEAR(sum / 1048576, static_cast<double>(x), bound) << "step " << step << " y " << y;
    }
  }
}

TEST(Dither, DrawsAreTheStatedUniforms) {
  for (std::uint32_t level = 0; level < 16; ++level) {
    for (std::uint32_t pre = 0; pre < 65536; pre += 4369) {
      EXPECT_EQ((EntryDraw{level, pre}.uniform<double>()), 1 + (level + (pre + 0.5) / 65536) / 16);
    }
  }
}

TEST(Dither, ClassesAreHalfOctaves) {
  EXPECT_EQ(class_of_ratio(1e-30), 0);
  EXPECT_EQ(class_of_ratio(std::nextafter(1.0, 0.0)), 0);
  double low = 1.0;
  for (int c = 1; c < kAtomClassCount; ++c) {
    const double high = c % 2 == 1 ? low * 1.5 : low / 1.5 * 2;
    EXPECT_EQ(class_of_ratio(low), c);
    EXPECT_EQ(class_of_ratio(std::nextafter(high, 0.0)), c);
    low = high;
  }
  EXPECT_EQ(low, kTopRatio);
}

TEST(Dither, NonZeroAtomsAlwaysHaveAChance) {
  EXPECT_EQ(probability_of_ratio(1e-300), 1u);
  EXPECT_EQ(probability_of_ratio(0x1p-32), 1u);
  EXPECT_EQ(probability_of_ratio(0x1.8p-31), 3u);
  EXPECT_EQ(probability_of_ratio(std::nextafter(1.0, 0.0)), 0xFFFFFFFFu);
  EXPECT_EQ(cpu::choose_atom(1e-38, 1e30f).probability, 1u);
}

TEST(Dither, LevelsAreKeptInsideAnInteger) {
  for (const float x : {3e38f, -3e38f, INFINITY, -INFINITY, NAN}) {
    const std::int32_t q = quantise<float>(x, 1e10f, EntryDraw{3, 4});
    EXPECT_LT(std::abs(q), 1 << 25);
  }
}

/// Squared error of an entry of y steps in a centred layer.
double centred_error(double y, std::int32_t offset) {
  const std::int32_t q = nearest_level(static_cast<float>(y), 1.0f);
  return std::pow(static_cast<double>(centred_value(q, offset, 1.0f)) - y, 2);
}

TEST(Centroids, StandForTheNearestInteger) {
  for (const auto& [x, q] : {std::pair{0.5f, 0},
                             {1.5f, 2},
                             {-0.5f, 0},
                             {-1.5f, -2},
                             {0.501f, 1},
                             {-2.51f, -3},
                             {3e8f, 33554430},
                             {-3e8f, -33554430}})
    EXPECT_EQ(nearest_level(x, 1.0f), q) << x;
  EXPECT_EQ(nearest_level(3.0f, 0.5f), 2);
  EXPECT_EQ(centred_value(0, 6, 4.0f), 0.0f);
  EXPECT_EQ(centred_value(3, 6, 4.0f), 4.0f * (3 - 6.0f / 32));
  EXPECT_EQ(centred_value(-33554430, 0, 0.5f), -16777215.0f);
  EXPECT_EQ(centred_value((1 << 24) + 3, 6, 32.0f), 0x1p29f + 64);  // rounded once
}

TEST(Centroids, AreOddAndInOrder) {
  for (std::uint32_t step = 0; step < std::size(kCodingSteps); ++step) {
    const std::int32_t offset = centroid_offset(step);
    EXPECT_GE(offset, 0);
    for (int q = 1; q < 200; ++q) {
      EXPECT_EQ(centred_value(-q, offset, 3.0f), -centred_value(q, offset, 3.0f));
      EXPECT_LE(centred_value(q, offset, 3.0f), 3.0f * static_cast<float>(q));
      EXPECT_GT(centred_value(q, offset, 3.0f), centred_value(q - 1, offset, 3.0f)) << step;
    }
  }
}

/// The error of an entry is below half a step and the offset, and never above the entry itself.
TEST(Centroids, AddNothingToAnEntry) {
  for (std::uint32_t step = 0; step < std::size(kCodingSteps); ++step) {
    const std::int32_t offset = centroid_offset(step);
    const double most = 0.5 + static_cast<double>(offset) / 32;
    for (int i = 0; i < 8192; ++i) {
      const double y = i / 512.0, error = centred_error(y, offset);
      EXPECT_LE(error, y * y) << step;
      EXPECT_LE(error, most * most) << step;
    }
  }
}

/// What is left of an atom at most, as docs/specs.md has it. Its entries can be anything of its mean square: of
/// error against square of an entry, the largest mean is on a line over two kinds of entries.
TEST(Centroids, LeaveNoMoreOfAnAtomThanDocumented) {
  for (const auto& [c, documented] :
       {std::pair{2, 1.0}, {3, 0.76}, {4, 0.37}, {5, 0.3}, {6, 0.15}}) {
    const double least = std::ldexp(c % 2 == 0 ? 1.5 : 1.0, (c - 1) / 2);
    const double mean = std::pow(least / static_cast<double>(kAtomClasses[c].delta), 2);
    const std::int32_t offset = centroid_offset(kAtomClasses[c].step);
    std::vector<std::pair<double, double>> below, above;
    for (int i = 0; i <= 1024; ++i) {
      const double y = std::sqrt(mean) * i / 256;
      (i <= 256 ? below : above).emplace_back(y * y, centred_error(y, offset));
    }
    double most = 0;
    for (const auto& [square, error] : below) {
      for (const auto& [larger, its] : above) {
        const double share = (larger - mean) / (larger - square);
        most = std::max(most, share * error + (1 - share) * its);
      }
    }
    EXPECT_LE(most, documented * mean * (1 + 1e-12)) << c;
    EXPECT_GE(most, 0.95 * documented * mean) << c;
  }
}

}  // namespace
}  // namespace atomo::detail
