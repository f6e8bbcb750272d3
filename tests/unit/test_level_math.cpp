// SPDX-License-Identifier: Apache-2.0
/// QSGD and TernGrad, every outcome enumerated in double: E = g and the variance to 1e-12, and the
/// same checks failing on the mistakes that published code makes.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "math/stochastic_level.hpp"
#include "support/enumeration.hpp"

namespace atomo::test {

using namespace model;
namespace {

constexpr int kBits = 3;  ///< of a high and of a low draw: 64 outcomes an entry
constexpr double kUnit = 1 << kBits;

/// How a bucket is rounded; mutants override one part.
struct Rounding {
  static double norm(const std::vector<double>& x, double clip) {
    double largest = 0;
    for (const double v : x) largest = std::max(largest, std::min(std::abs(v), clip));
    return largest;
  }
  static double position(double magnitude, double norm, int levels) {
    return std::min(magnitude / norm * levels * kUnit, levels * kUnit);
  }
  static double level(double z, const ChosenDraw& draw) {
    return math::round_to_level<kBits>(z, draw);
  }
  static const ChosenDraw& draw(const std::vector<ChosenDraw>& draws, std::size_t i) {
    return draws[i];
  }
};

struct InvertedRounding : Rounding {
  static double level(double z, const ChosenDraw& draw) {
    const double low = std::floor(z / kUnit);
    return math::round_to_level<kBits>(z, draw) > low ? low : low + 1;
  }
};
struct OneLevelTooMany : Rounding {
  static double position(double magnitude, double norm, int levels) {
    return magnitude / norm * (levels + 1) * kUnit;
  }
};
struct OneUniformForTwo : Rounding {
  static const ChosenDraw& draw(const std::vector<ChosenDraw>& draws, std::size_t i) {
    return draws[i / 2 * 2];
  }
};
struct NormBeforeClip : Rounding {
  static double norm(const std::vector<double>& x, double) { return Rounding::norm(x, 1e300); }
};
struct NoFurtherBits : Rounding {
  static double level(double z, const ChosenDraw& draw) {
    return std::floor(z / kUnit) + (draw.high_bits < std::fmod(std::floor(z), kUnit) ? 1 : 0);
  }
};

template <typename R>
Moments level_moments(const std::vector<double>& x, int levels, double clip = 1e300) {
  const double norm = R::norm(x, clip);
  return enumerate_draws(
      static_cast<int>(x.size()), kBits, [&](const std::vector<ChosenDraw>& draws) {
        std::vector<double> y(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double magnitude = std::min(std::abs(x[i]), clip);
          const double level =
              norm > 0 ? R::level(R::position(magnitude, norm, levels), R::draw(draws, i)) : 0;
          y[i] = std::copysign(level * norm / levels, x[i]);
        }
        return y;
      });
}

/// The largest of |E - x| and |covariance - step^2 f (1 - f) on the diagonal, 0 off it|, for
/// clipped entries.
double worst_moment(const Moments& moments, const std::vector<double>& x, int levels,
                    double clip = 1e300) {
  const std::size_t n = x.size();
  const double step = Rounding::norm(x, clip) / levels;
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double magnitude = std::min(std::abs(x[i]), clip);
    worst = std::max(worst, std::abs(moments.mean[i] - std::copysign(magnitude, x[i])));
    const double y = step > 0 ? magnitude / step : 0, f = y - std::floor(y);
    for (std::size_t j = 0; j < n; ++j) {
      const double expected = i == j ? step * step * f * (1 - f) : 0;
      worst = std::max(worst, std::abs(moments.covariance[i * n + j] - expected));
    }
  }
  return worst;
}

/// Entries on the grid of 2^-6 steps that short draws resolve; the first is the norm of the layer.
std::vector<double> entries_on_grid(int levels, double step, int n, std::mt19937& generator) {
  std::vector<double> x{levels * step};
  for (int i = 1; i < n; ++i) {
    const auto cell = static_cast<double>(generator() % static_cast<unsigned>(levels * 64 + 1));
    x.push_back((generator() % 2 == 0 ? 1 : -1) * cell * step / 64);
  }
  return x;
}

template <typename R>
double worst_over_buckets() {
  std::mt19937 generator(1);
  double worst = 0;
  for (const int levels : {1, 3, 7, 127}) {
    for (int trial = 0; trial < 12; ++trial) {
      const auto x = entries_on_grid(levels, std::ldexp(1.0, trial % 5 - 2), 2, generator);
      worst = std::max(worst, worst_moment(level_moments<R>(x, levels), x, levels));
    }
  }
  return worst;
}

TEST(LevelMath, ExpectationAndCovarianceAreExact) {
  EXPECT_LT(worst_over_buckets<Rounding>(), 1e-12);
}

TEST(LevelMath, MutantsAreCaught) {
  EXPECT_GT(worst_over_buckets<InvertedRounding>(), 1e-3);
  EXPECT_GT(worst_over_buckets<OneLevelTooMany>(), 1e-3);
  EXPECT_GT(worst_over_buckets<NoFurtherBits>(), 1e-3);
}

TEST(LevelMath, OneUniformForTwoElementsIsCaughtByTheCovariance) {
  const std::vector<double> x = {0.5, 0.25, 1.0};  // the mean alone sees nothing
  const Moments shared = level_moments<OneUniformForTwo>(x, 1);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(shared.mean[i], x[i], 1e-12);
  EXPECT_GT(worst_moment(shared, x, 1), 0.1);
  EXPECT_LT(worst_moment(level_moments<Rounding>(x, 1), x, 1), 1e-12);
}

TEST(LevelMath, NormIsTakenAfterTheClip) {
  const std::vector<double> x = {0.25, -0.125, 4.0};
  EXPECT_LT(worst_moment(level_moments<Rounding>(x, 1, 0.5), x, 1, 0.5), 1e-12);
  EXPECT_GT(worst_moment(level_moments<NormBeforeClip>(x, 1, 0.5), x, 1, 0.5), 0.1);
}

TEST(LevelMath, ZerosStayZero) {
  const std::vector<double> x = {0, 0};
  const Moments moments = level_moments<Rounding>(x, 7);
  EXPECT_EQ(worst_moment(moments, x, 7), 0);
}

TEST(LevelMath, OneBitIsExact) {
  const double norm = 2;
  for (int cell = -32; cell <= 32; ++cell) {
    const double x = norm * cell / 32;
    const Moments moments = enumerate_draws(1, kBits, [&](const std::vector<ChosenDraw>& draws) {
      const double z = x / norm * kUnit / 2;
      return std::vector<double>{math::round_to_sign<kBits>(z, draws[0]) ? norm : -norm};
    });
    EXPECT_NEAR(moments.mean[0], x, 1e-12);
    EXPECT_NEAR(moments.covariance[0], norm * norm - x * x, 1e-12);
  }
}

/// P(up) of the f32 path, in units of 2^-32, from z = 65536 |x| / step.
double up_probability(float z) {
  const float whole = std::floor(z);
  const double high = std::fmod(static_cast<double>(whole), 65536.0);
  return (high * 65536 + std::floor((z - whole) * 65536.0f + 0.5f)) * 0x1p-32;
}

/// E[decode] of one entry on the f32 path, exact but for the last double.
double expected_value(float x, float norm, int levels) {
  const float step = math::level_step(norm, levels);
  const math::LevelScale scale = math::level_scale(step, 65536.0f);
  const float z =
      std::min((std::abs(x) * scale.pre) * scale.inv, 65536.0f * static_cast<float>(levels));
  const float low = std::floor(z / 65536.0f), p = static_cast<float>(up_probability(z));
  const double at_low = low * step, at_high = p > 0 ? (low + 1) * step : at_low;
  return std::copysign(at_low + up_probability(z) * (at_high - at_low), x);
}

TEST(LevelMath, SinglePrecisionStaysInsideTheStatedBias) {
  constexpr double kBound = 0x1p-21;
  std::mt19937 generator(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const float largest = std::numeric_limits<float>::max();
  for (const float norm :
       {0x1p-149f, 0x7p-149f, 0x1.8p-140f, 0x1p-126f, 1e-38f, 1e-23f, 0x1.fffffep-61f, 0x1p-60f,
        0.3f, 1.0f, 0x1p60f, 0x1.000002p60f, 1e20f, 1e37f, 3e38f, largest}) {
    for (const int levels : {1, 3, 7, 15, 31, 63, 127}) {
      const double step = math::level_step(norm, levels);
      EXPECT_TRUE(std::isfinite(static_cast<float>(levels) * static_cast<float>(step)));
      for (int trial = 0; trial < 2000; ++trial) {
        float x = norm * uniform(generator);
        if (trial % 3 == 1) x *= 1e-4f;
        if (trial % 3 == 2) x *= 1e-9f;
        if (trial == 0) x = norm;
        if (trial == 1) x = -norm;
        ASSERT_LE(std::abs(expected_value(x, norm, levels) - x),
                  kBound * (std::abs(double{x}) + step))
            << "x " << x << " norm " << norm << " levels " << levels;
      }
    }
  }
}

TEST(LevelMath, StepsReachTheNorm) {
  std::mt19937 generator(4);
  for (int trial = 0; trial < 20000; ++trial) {
    const float norm = std::bit_cast<float>(static_cast<std::uint32_t>(generator()) % 0x7F800000u);
    for (const int levels : {1, 3, 7, 127}) {
      const float step = math::level_step(norm, levels);
      const bool reached = double{step} * levels >= double{norm};
      // Only where the last level would overflow may it fall short, by one f32 of the step.
      ASSERT_TRUE(reached ||
                  std::isinf(std::nextafter(step, INFINITY) * static_cast<float>(levels)));
      ASSERT_TRUE(norm == 0 || double{std::nextafter(step, 0.0f)} * levels < double{norm});
    }
  }
}

TEST(LevelMath, EuclideanNormIsAnUpperBound) {
  std::mt19937 generator(5);
  for (int trial = 0; trial < 20000; ++trial) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(generator()) % 0x7F800000u);
    EXPECT_GE(math::norm_from_squares(double{x} * x), x);
  }
  EXPECT_EQ(math::norm_from_squares(0x1p-298), 0x1p-149f);
  EXPECT_EQ(math::norm_from_squares(2), std::nextafter(1.41421354f, 2.0f));
  EXPECT_EQ(math::norm_from_squares(1e300), std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace atomo::test
