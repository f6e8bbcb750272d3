// SPDX-License-Identifier: Apache-2.0
/// DRIVE and EDEN: their levels, scales and rotation by hand, what one Hadamard rotation leaves as bias, and that the
/// unbiased form has none, by enumeration.
#include <cmath>

#include "catalogue/catalogue_support.hpp"
#include "catalogue/rotated_blocks.hpp"

namespace atomo::test {
namespace {

using Doubles = std::vector<double>;

/// Mean of what arrives over all signs of a block of `x.size()` entries, for one rotation.
Doubles mean_over_signs(const OwnCodec& codec, const std::vector<float>& x) {
  const auto outcomes = std::uint32_t{1} << x.size();
  Doubles mean(x.size());
  for (std::uint32_t signs = 0; signs < outcomes; ++signs) {
    const auto y = arrives(codec, x, TestDraws([=](std::uint64_t) { return signs; }));
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / static_cast<double>(outcomes);
  }
  return mean;
}

TEST(Rotated, LevelsAreTheMeansOfTheirCells) {
  const auto density = [](double v) { return std::exp(-v * v / 2) / std::sqrt(2 * M_PI); };
  const auto below = [](double v) { return 0.5 * std::erfc(-v / std::sqrt(2)); };
  for (unsigned bits = 1; bits <= 4; ++bits) {
    const auto levels = catalogue::normal_levels(bits);
    ASSERT_EQ(levels.size(), 1u << bits);
    for (std::size_t j = 0; j < levels.size(); ++j) {
      const double low = j == 0 ? -40 : (double{levels[j - 1]} + levels[j]) / 2;
      const double high = j + 1 == levels.size() ? 40 : (double{levels[j]} + levels[j + 1]) / 2;
      EXPECT_NEAR(levels[j], (density(low) - density(high)) / (below(high) - below(low)), 1e-6);
    }
  }
}

TEST(Rotated, HadamardIsItsOwnInverseTimesTheLength) {
  for (std::size_t n = 1; n <= 64; n *= 2) {
    for (std::size_t column = 0; column < n; ++column) {
      std::vector<float> v(n);
      v[column] = 1;
      catalogue::hadamard(v.data(), n);
      for (std::size_t row = 0; row < n; ++row)
        EXPECT_EQ(v[row], std::popcount(row & column) % 2 == 0 ? 1 : -1);
    }
  }
}

TEST(Rotated, ScalesAreThePapers) {
  // With all signs positive Rx is (10, -2, -4, 0) / 2, and 0 counts as negative.
  const std::vector<float> x{1, 2, 3, 4};
  const TestDraws none([](std::uint64_t) { return 0u; });
  const auto of = [&](double scale) {
    const float q[] = {1, -1, -1, -1};
    std::vector<float> y(4);
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t k = 0; k < 4; ++k)
        y[i] += static_cast<float>(scale / 2 * (std::popcount(i & k) % 2 == 0 ? q[k] : -q[k]));
    return y;
  };
  const double energy = 30, sum = 16.0 / 2;  // |x|^2 and the sum of |Rx|
  const auto published = arrives(*own_codec("drive"), x, none), right = of(energy / sum);
  const auto mse = arrives(*own_codec("drive:form=mse"), x, none), least = of(sum / 4);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(published[i], right[i], 1e-5);
    EXPECT_NEAR(mse[i], least[i], 1e-5);
  }
}

TEST(Rotated, OneBitOfEdenIsDrive) {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 113) - 50;
  const auto draws = TestDraws::of({.seed = 4});
  for (const char* form : {"published", "mse", "unbiased"})
    EXPECT_EQ(body_of(*own_codec(std::string("drive:form=") + form), x, draws),
              body_of(*own_codec(std::string("eden:bits=1,form=") + form), x, draws));
}

TEST(Rotated, OneHadamardRotationLeavesABias) {
  const std::vector<float> x{8, 1, 0, 0};
  const auto bias = [&](const char* spec) {
    const auto mean = mean_over_signs(*own_codec(spec), x);
    double squared = 0;
    for (std::size_t i = 0; i < x.size(); ++i) squared += (mean[i] - x[i]) * (mean[i] - x[i]);
    return std::sqrt(squared / 65);
  };
  EXPECT_GT(bias("drive"), 0.05);
  EXPECT_FALSE(own_codec("drive")->traits().unbiased);
  EXPECT_FALSE(own_codec("eden:bits=4,rotations=3")->traits().unbiased);
}

/// Given the signs, what arrives is linear in the codes, and each code has a word of its own: its mean is that over
/// the words of all entries together.
TEST(Rotated, UnbiasedFormHasNoBiasForAnySigns) {
  constexpr std::uint32_t kSteps = 1024;
  for (const char* spec : {"drive:form=unbiased", "eden:bits=2,form=unbiased",
                           "eden:bits=4,rotations=2,form=unbiased"}) {
    const auto codec = own_codec(spec);
    for (const std::vector<float>& x :
         {std::vector<float>{8, 1, 0, 0}, {1e-40f, -3e-41f, 2e-40f, 0}, {3, -2, 5, 7, -1}}) {
      const float largest = *std::ranges::max_element(x);
      for (std::uint32_t signs = 0; signs < 16; signs += 5) {
        Doubles mean(x.size());
        for (std::uint32_t step = 0; step < kSteps; ++step) {
          const TestDraws draws([=](std::uint64_t i) {
            return i < (std::uint64_t{1} << 41) ? signs
                                                : step * (0xFFFFFFFFu / kSteps + 1) + (1u << 21);
          });
          const auto y = arrives(*codec, x, draws);
          for (std::size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / static_cast<double>(kSteps);
        }
        for (std::size_t i = 0; i < x.size(); ++i)
          EXPECT_NEAR(mean[i], x[i], largest * 6.0 / kSteps) << spec << " " << i;
      }
    }
  }
}

TEST(Rotated, LessErrorByLeastSquaresAndByEachBit) {
  std::vector<float> x(5000);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(i * 7919 % 2003) - 1001) * (i % 50 == 0 ? 9 : 1);
  const auto draws = TestDraws::of({.seed = 9});
  const auto nmse = [&](const std::string& spec) {
    const auto y = arrives(*own_codec(spec), x, draws);
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
      energy += double{x[i]} * x[i];
    }
    return error / energy;
  };
  // 1 - 2 / pi of a normal variable's energy, and pi / 2 - 1.
  EXPECT_NEAR(nmse("drive:form=mse"), 0.3634, 0.01);
  EXPECT_NEAR(nmse("drive"), 0.5708, 0.02);
  // Lloyd's errors at 2, 3 and 4 bits.
  EXPECT_NEAR(nmse("eden:bits=2,form=mse"), 0.1175, 0.005);
  EXPECT_NEAR(nmse("eden:bits=3,form=mse"), 0.0345, 0.002);
  EXPECT_NEAR(nmse("eden:bits=4,form=mse"), 0.0095, 0.001);
}

}  // namespace
}  // namespace atomo::test
