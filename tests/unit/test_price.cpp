// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "coding/duo_code_tables.hpp"
#include "cpu/atoms.hpp"
#include "math/dither.hpp"
#include "math/selection.hpp"
#include "price/atom_costs.hpp"
#include "price/price.hpp"
#include "price/price_math.hpp"
#include "support/price_support.hpp"

namespace atomo::cpu {

using namespace model;
namespace {

/// A layer with its own memory.
struct Layer {
  AtomLayout layout;
  PriceCosts costs;
  std::vector<double> rms;
  std::vector<PriceBin> bins;
  AtomAnalysis found;

  Layer(const std::vector<float>& x, const AtomLayout& atoms)
      : layout(atoms), costs(price_costs(atoms)) {
    rms.resize(layout.count);
    bins.resize(max_price_bins(layout));
    std::vector<std::byte> workspace(analyse_workspace_bytes(layout));
    EXPECT_EQ(analyse(x.data(), layout, rms.data(), bins, workspace, nullptr, found), Status::ok);
  }
  [[nodiscard]] PriceLayer view() const {
    return {found.bins, &costs, layout.count, found.max_rms};
  }
};

std::vector<float> mixture(std::size_t n, std::uint64_t seed, float scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  float amplitude = 1;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 256 == 0) amplitude = scale * std::exp(1.5f * normal(random));
    x[i] = amplitude * normal(random);
  }
  return x;
}

/// Every quotient of mantissas, at the exponents where something changes.
TEST(Price, SharesInIntegersAreThoseOfDivisions) {
  const std::uint32_t exponents[] = {0, 1, 2, 23, 31, 32, 33, 34, 127, 142, 143, 144, 253, 254};
  for (const std::uint32_t of_price : exponents) {
    for (std::uint32_t m = 0; m < 128; ++m) {
      const std::uint32_t code = of_price << 7 | m;
      if (code < kFirstPriceCode) continue;
      const PriceDivisor divisor(code);
      const double price = price_of_code(code);
      for (const std::uint32_t of_key : exponents) {
        for (std::uint32_t k = 0; k < 128; ++k) {
          const std::uint32_t key = of_key << 7 | k;
          if (key == 0) continue;
          const AtomShare expected = share_of_atom(key, price);
          const AtomShare found = divisor.share(number_of_bin(key));
          ASSERT_EQ(found.kept, expected.kept) << "bin " << key << ", price " << code;
          ASSERT_EQ(found.place, expected.place) << "bin " << key << ", price " << code;
        }
      }
    }
  }
}

TEST(Price, TheLeastCodeIsThatOfASearch) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random() % 0x7F800000u);
    const double rms =
        static_cast<double>(std::bit_cast<float>(bits)) * (i % 3 == 0 ? 1.0 : 1.0000001);
    std::uint32_t low = kFirstPriceCode, high = kLastPriceCode;
    while (low < high) {
      const std::uint32_t middle = (low + high) / 2;
      if (rms / static_cast<double>(price_of_code(middle)) < kTopRatio)
        high = middle;
      else
        low = middle + 1;
    }
    ASSERT_EQ(min_price_code(rms), low) << rms;
  }
}

TEST(Price, BinsHoldEveryAtomOnce) {
  for (const std::size_t n : {1u, 255u, 257u, 100003u, 2000003u}) {
    const Layer layer(mixture(n, n), AtomLayout::blocks(n));
    std::uint64_t count = 0, weight = 0;
    for (std::size_t i = 0; i < layer.found.bins.size(); ++i) {
      count += layer.found.bins[i].count;
      weight += layer.found.bins[i].weight;
      if (i > 0) {
        ASSERT_LT(layer.found.bins[i - 1].key, layer.found.bins[i].key);
      }
    }
    EXPECT_EQ(count, layer.layout.count);
    EXPECT_EQ(weight, n + n % 2);
    EXPECT_EQ(layer.found.max_rms, *std::max_element(layer.rms.begin(), layer.rms.end()));
  }
}

TEST(Price, KeysFollowTheAmplitude) {
  EXPECT_EQ(amplitude_key(1.0), 0x3F80u);
  EXPECT_EQ(amplitude_key(1e-300), 1u);
  EXPECT_EQ(amplitude_key(3.4028234663852886e38), 0x7F7Fu);
  EXPECT_EQ(price_of_code(0x3F80), 1.0f);
}

/// The bins' estimate against a sum over the atoms themselves, in floating point.
TEST(Price, ExpectedBitsAreTheSumOverAtoms) {
  const Layer layer(mixture(600000, 5), AtomLayout::blocks(600000));
  const PriceLayer view = layer.view();
  for (const float a : {0.01f, 0.3f, 1.0f, 4.0f}) {
    const float price = std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) & 0xFFFF0000u);
    double bits = 0;
    for (std::size_t t = 0; t < layer.layout.count; ++t) {
      const double ratio = layer.rms[t] / static_cast<double>(price);
      const auto c = static_cast<std::size_t>(math::class_of_ratio(ratio));
      const auto length = static_cast<double>(layer.layout.length_of(t));
      bits += c == 0 ? ratio * (length * layer.costs.unit[0][0] + layer.costs.uncertain)
                     : length * layer.costs.unit[c][3] + layer.costs.certain;
    }
    const double marks = static_cast<double>(layer.layout.count) * 256;
    EXPECT_NEAR(static_cast<double>(expected_bits_256({&view, 1}, price)), bits + marks / 2,
                0.02 * bits + marks / 2);
  }
}

TEST(Price, IsTheSmallestThatFits) {
  const Layer layer(mixture(300000, 6), AtomLayout::blocks(300000));
  const PriceLayer view = layer.view();
  for (const double rate : {0.001, 0.125, 0.5, 1.0, 3.0, 7.0}) {
    const auto budget = static_cast<std::uint64_t>(rate * 300000);
    const Price found = find_price({&view, 1}, budget);
    EXPECT_LE(found.expected_bits_256, budget * 256);
    EXPECT_EQ(found.expected_bits_256, expected_bits_256({&view, 1}, found.a));
    ASSERT_FALSE(found.at_floor);
    const float below = price_of_code((std::bit_cast<std::uint32_t>(found.a) >> 16) - 1);
    EXPECT_GT(expected_bits_256({&view, 1}, below), budget * 256);
    EXPECT_GT(static_cast<double>(found.expected_bits_256),
              0.985 * 256 * static_cast<double>(budget));
  }
}

/// A price is the smallest that fits or the largest worth sending at, whichever is smaller.
TEST(Price, EndsWhereAMessageIsWorthSending) {
  for (const std::size_t n : {1u, 3u, 8u, 31u, 200u, 1000u, 100000u}) {
    const Layer layer(mixture(n, 9), AtomLayout::blocks(n));
    const PriceLayer view = layer.view();
    for (const std::uint64_t budget : {0u, 1u, 4u, 20u, 100u, 500u}) {
      const Price found = find_price({&view, 1}, budget);
      const auto at = [&](int above) {
        const std::uint32_t code = std::bit_cast<std::uint32_t>(found.a) >> 16;
        return expected(view, price_of_code(code + static_cast<std::uint32_t>(above)));
      };
      EXPECT_EQ(found.overspent, at(0).bits_256 > 256 * budget) << n << " " << budget;
      EXPECT_EQ(found.expected_bits_256, at(0).bits_256);
      if (found.overspent) {
        EXPECT_GE(at(0).worth, kWorthSending) << n << " " << budget;
        EXPECT_TRUE(at(1).worth < kWorthSending || at(1).bits_256 <= 256 * budget);
        EXPECT_LT(at(0).bits_256, 256 * 160) << n << " " << budget;
      } else if (!found.at_floor) {
        EXPECT_GT(at(-1).bits_256, 256 * budget);
        EXPECT_GE(at(-1).worth, kWorthSending);
      }
    }
  }
}

TEST(Price, LayersAddInAnyOrder) {
  std::vector<Layer> layers;
  std::vector<PriceLayer> views;
  for (std::uint64_t i = 0; i < 6; ++i) {
    const std::size_t n = 5000 * (i + 1);
    layers.emplace_back(mixture(n, i, std::exp2(static_cast<float>(i))),
                        i % 2 == 0 ? AtomLayout::blocks(n) : AtomLayout::rows(n / 40, 40));
  }
  std::uint64_t alone = 0;
  for (const Layer& layer : layers) {
    views.push_back(layer.view());
    alone += expected_bits_256({&views.back(), 1}, 2.0f);
  }
  EXPECT_EQ(expected_bits_256(views, 2.0f), alone);
  const Price found = find_price(views, 60000);
  std::reverse(views.begin(), views.end());
  EXPECT_EQ(find_price(views, 60000).a, found.a);
}

TEST(Price, ScalesWithTheData) {
  const Layer one(mixture(100000, 7), AtomLayout::blocks(100000));
  const Layer big(mixture(100000, 7, 1024.0f), AtomLayout::blocks(100000));
  const PriceLayer a = one.view(), b = big.view();
  EXPECT_EQ(find_price({&a, 1}, 80000).a * 1024, find_price({&b, 1}, 80000).a);
}

TEST(Price, FloorKeepsTheLargestAtomInTheLastClass) {
  std::vector<float> x(5000, 1e-6f);
  x[17] = 3.0f;
  const Layer layer(x, AtomLayout::blocks(x.size()));
  const PriceLayer view = layer.view();
  const Price found = find_price({&view, 1}, std::uint64_t{1} << 50);
  EXPECT_TRUE(found.at_floor);
  EXPECT_EQ(found.a, price_of_code(min_price_code(view.max_rms)));
  EXPECT_LT(math::class_of_ratio(layer.found.max_rms / static_cast<double>(found.a)),
            math::kAtomClassCount);
  const float below = price_of_code((std::bit_cast<std::uint32_t>(found.a) >> 16) - 1);
  EXPECT_GE(layer.found.max_rms / static_cast<double>(below), math::kTopRatio);
}

TEST(Price, NothingHasNoPrice) {
  const Layer layer(std::vector<float>(1000, 0.0f), AtomLayout::blocks(1000));
  const PriceLayer view = layer.view();
  EXPECT_EQ(find_price({&view, 1}, 1000).a, 0.0f);
  EXPECT_EQ(find_price(std::span<const PriceLayer>{}, 1000).a, 0.0f);
  EXPECT_EQ(expected_bits_256({&view, 1}, 1.0f), 0u);
}

/// Probabilities proportional to amplitude are the best for their cost: exchanging any between two
/// atoms loses.
TEST(Price, ProbabilitiesMeetTheConditionsOfOptimality) {
  std::mt19937_64 random(8);
  std::uniform_real_distribution<double> amplitude(0.01, 0.99);
  const double step = static_cast<double>(coding::kAtomClasses[0].delta);
  const double noise = 1 + step * step * math::kDitherVariance;
  std::vector<double> rms(50), p(50);
  for (std::size_t i = 0; i < rms.size(); ++i) {
    rms[i] = amplitude(random);
    p[i] = choose_atom(rms[i], 1.0f).probability / math::kTwo32;
  }
  // E|x^|^2 = rms^2 / p + p step^2 kDitherVariance at a step of a; d/dp at equal cost must agree
  // for all atoms.
  const auto variance = [&](std::size_t i, double q) { return rms[i] * rms[i] / q * noise; };
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t i = random() % rms.size(), j = random() % rms.size();
    if (i == j) continue;
    const double move = 0.05 * std::min({p[i], p[j], 1 - p[i], 1 - p[j]});
    EXPECT_GE(variance(i, p[i] + move) + variance(j, p[j] - move),
              variance(i, p[i]) + variance(j, p[j]));
  }
}

/// Each class has the step of least variance + price * bits at its middle, among the committed
/// ones.
TEST(Price, StepsOfClassesAreTheBestOfTheLadder) {
  const auto& cost = coding::kStepCost256;
  const double d0 = coding::kCodingSteps[coding::kAtomClasses[0].step].d;
  const double per_bit = (1 + d0 * d0 * math::kDitherVariance) /
                         (cost[coding::kAtomClasses[0].step][0] / 256.0 + 6.0 / 256);
  for (std::size_t c = 1; c < std::size(coding::kAtomClasses); ++c) {
    const auto loss = [&](std::size_t k) {
      const double step = coding::kCodingSteps[k].d * coding::kClassMiddle[c];
      return step * step * math::kDitherVariance + per_bit * cost[k][0] / 256.0;
    };
    const double own = loss(coding::kAtomClasses[c].step);
    for (std::size_t k = 0; k < std::size(coding::kCodingSteps); ++k)
      EXPECT_LE(own, 1.003 * loss(k)) << c << ' ' << k;
  }
}

}  // namespace
}  // namespace atomo::cpu
