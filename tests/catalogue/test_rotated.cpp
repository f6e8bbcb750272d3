// SPDX-License-Identifier: Apache-2.0
/// DRIVE and EDEN: their levels, scales and rotation by hand, what one Hadamard rotation leaves as bias, and that the
/// unbiased form has none, by enumeration.
#include <cmath>
#include <random>

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

/// Given the signs, what arrives is linear in what codes stand for, and each code, of an entry or a group, has a word of its
/// own: its mean is that over the words of all codes together. A grid of words errs by a step where codes change: once between
/// levels, at each entry and vertex of a group.
TEST(Rotated, UnbiasedFormHasNoBiasForAnySigns) {
  constexpr std::uint32_t kSteps = 4096;
  const std::pair<const char*, double> kSpecs[] = {{"drive:form=unbiased", 6},
                                                   {"eden:bits=2,form=unbiased", 6},
                                                   {"eden:bits=4,rotations=2,form=unbiased", 6},
                                                   {"eden:bits=0.7,form=unbiased", 40}};
  for (const auto& [spec, changes] : kSpecs) {
    const auto codec = own_codec(spec);
    for (const std::vector<float>& x : {std::vector<float>{8, 1, 0, 0},
                                        {1e-40f, -3e-41f, 2e-40f, 0},
                                        {0, 3e-40f, 0, -1e-40f},
                                        {3, -2, 5, 7, -1}}) {
      const float largest = *std::ranges::max_element(x);
      for (std::uint32_t signs = 0; signs < 16; signs += 5) {
        Doubles mean(x.size());
        for (std::uint32_t step = 0; step < kSteps; ++step) {
          const TestDraws draws([=](std::uint64_t i) {
            return i < (std::uint64_t{1} << 41) ? signs
                                                : step * (0xFFFFFFFFu / kSteps + 1) + (1u << 19);
          });
          const auto y = arrives(*codec, x, draws);
          for (std::size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / static_cast<double>(kSteps);
        }
        for (std::size_t i = 0; i < x.size(); ++i)
          EXPECT_NEAR(mean[i], x[i], largest * changes / kSteps) << spec << " " << i;
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

/// With all signs positive Rx is (10, -2, -4, 0) / 2.
TEST(Rotated, AGroupIsSentAsItsLargestEntry) {
  const TestDraws none([](std::uint64_t) { return 0u; });
  const std::vector<float> x{1, 2, 3, 4};
  const auto hadamard = [](const std::vector<double>& q) {
    std::vector<double> y(q.size());
    for (std::size_t i = 0; i < q.size(); ++i)
      for (std::size_t k = 0; k < q.size(); ++k)
        y[i] += (std::popcount(i & k) % 2 == 0 ? q[k] : -q[k]) / std::sqrt(q.size());
    return y;
  };
  // Groups of three: the first has 5 as its largest, the second is the entry 0, which counts as positive.
  ASSERT_EQ(catalogue::group_of(0.9), 3u);
  const auto direction = hadamard({1, 0, 0, 1});
  const double energy = 30, along = 5;
  const auto published = arrives(*own_codec("eden:bits=0.9"), x, none);
  const auto mse = arrives(*own_codec("eden:bits=0.9,form=mse"), x, none);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(published[i], energy / along * direction[i], 1e-5);
    EXPECT_NEAR(mse[i], along / 2 * direction[i], 1e-5);
  }
}

TEST(Rotated, GroupsHaveTheBitsAskedFor) {
  for (const double bits : {0.02, 0.0625, 0.11, 0.148, 0.22, 0.3125, 0.5, 0.75, 0.99}) {
    const auto codec = own_codec("eden:bits=" + std::to_string(bits));
    const std::size_t n = std::size_t{1} << 20;
    const double taken = 8.0 * static_cast<double>(codec->max_bytes({std::int64_t{1} << 20})) / n;
    const auto group = static_cast<double>(catalogue::group_of(bits));
    EXPECT_LE(taken, bits + 0.0045) << bits;  // the heads and the last words of blocks
    EXPECT_GE(taken, std::log2(2 * group) / group) << bits;
    // A group of one entry less would take more, by its own entropy or by what words of whole bytes lose.
    EXPECT_GT(1.05 * std::log2(2 * (group - 1)) / (group - 1), bits) << bits;
  }
}

/// The expected largest magnitude of D normal variables, by summing 1 - P(all are below t).
TEST(Rotated, ErrorOfGroupsIsThatOfNormalVariables) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> x(1u << 18);
  for (float& v : x) v = normal(random);
  const auto draws = TestDraws::of({.seed = 9});
  for (const double bits : {0.0625, 0.148, 0.22, 0.5}) {
    const auto group = static_cast<double>(catalogue::group_of(bits));
    double largest = 0;
    for (double t = 0.0005; t < 9; t += 0.001)
      largest += 0.001 * (1 - std::pow(std::erf(t / std::sqrt(2)), group));
    const auto spec = "eden:bits=" + std::to_string(bits);
    double error = 0, energy = 0, left = 0;
    const auto y = arrives(*own_codec(spec), x, draws),
               z = arrives(*own_codec(spec + ",form=mse"), x, draws);
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
      left += (double{z[i]} - x[i]) * (double{z[i]} - x[i]);
      energy += double{x[i]} * x[i];
    }
    EXPECT_NEAR(error / energy / (group / (largest * largest) - 1), 1, 0.02) << bits;
    EXPECT_NEAR(left / energy / (1 - largest * largest / group), 1, 0.01) << bits;
  }
}

TEST(Rotated, CodesBeyondTheirRangeAreRefused) {
  const auto codec = own_codec("eden:bits=0.9");
  const TestDraws none([](std::uint64_t) { return 0u; });
  auto body = body_of(*codec, {1, 2, 3, 4}, none);
  ASSERT_EQ(body.size(), 6u + 1);  // two digits of base 6
  const auto with = [&](unsigned word) {
    body.back() = static_cast<std::byte>(word);
    return values_of(*codec, body, 4, none);
  };
  EXPECT_NO_THROW(with(0));
  EXPECT_NO_THROW(with(3 * 6 + 5));
  EXPECT_THROW(with(36), Error);     // beyond two digits
  EXPECT_THROW(with(1 * 6), Error);  // the second group has one entry
  EXPECT_THROW(with(4 * 6), Error);
}

}  // namespace
}  // namespace atomo::test
