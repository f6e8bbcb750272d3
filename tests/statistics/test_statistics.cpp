// SPDX-License-Identifier: Apache-2.0
/// What the codecs promise of their distributions, over every outcome: expectation, variance,
/// probabilities. The checks themselves are in statistics_checks.hpp; test_mutants.cpp shows what
/// they catch.
#include <gtest/gtest.h>

#include "core/half.hpp"
#include "price/atom_costs.hpp"
#include "statistics/message_checks.hpp"
#include "statistics/random_k_checks.hpp"
#include "support/price_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

TEST(Statistics, DitheredContentIsExact) { EXPECT_EQ(check_certain_content(), ""); }
TEST(Statistics, EntriesOfAPairDrawOfTheirOwn) { EXPECT_EQ(check_pair_independence(), ""); }
TEST(Statistics, UncertainAtomsAreExact) { EXPECT_EQ(check_uncertain_atom(), ""); }
TEST(Statistics, TheDivisorIsTheIntegerInUse) { EXPECT_EQ(check_divisor(), ""); }
TEST(Statistics, AtomsAreKeptWithTheirProbability) {
  EXPECT_EQ(check_marginals(cpu::select_chunk), "");
}
TEST(Statistics, AtomsOfAnyProbabilityToo) {
  EXPECT_EQ(check_marginals_of_any_p(cpu::select_chunk), "");
}
TEST(Statistics, FactorsMultiplyToTheirPair) { EXPECT_EQ(check_factors(), ""); }
TEST(Statistics, LengthsDoNotChangeValues) { EXPECT_EQ(check_values_and_lengths(), ""); }
TEST(Statistics, LevelsAreExact) { EXPECT_EQ(check_levels(), ""); }
TEST(Statistics, RandomKIsExact) { EXPECT_EQ(check_random_k(), ""); }
TEST(Statistics, WaterFillingIsOptimal) { EXPECT_EQ(check_water_filling(filled), ""); }
TEST(Statistics, NoTwoDrawsShareABit) { EXPECT_EQ(check_draws(), ""); }

float found_price(const cpu::PriceLayer& layer, std::uint64_t budget) {
  return price::find_price({&layer, 1}, budget).a;
}

TEST(Statistics, NoBudgetClips) { EXPECT_EQ(check_floor(found_price), ""); }
TEST(Statistics, NoBudgetIsTooSmallForAMessage) { EXPECT_EQ(check_ceiling(found_price), ""); }
TEST(Statistics, TinyTensorsAreExact) { EXPECT_EQ(check_tiny_tensors(found_price), ""); }

/// Every draw of 32 bits, by where it starts to round up.
TEST(Statistics, HalvesAreExact) {
  for (const float x : {1.00001f, -3.14159f, 1.5f, 6.1e-5f, 3.3e-7f, -65503.9f, 0.0f}) {
    for (const bool bf16 : {false, true}) {
      bool overflow = false;
      const auto value = [&](std::uint32_t random) {
        return static_cast<double>(bf16 ? from_bf16(to_bf16(x, random, overflow))
                                        : from_f16(to_f16(x, random, overflow)));
      };
      // The result is one value below some draw, another from there on.
      std::uint64_t low = 0, high = std::uint64_t{1} << 32;
      const double up = value(0), down = value(0xFFFFFFFFu);
      while (low < high) {
        const std::uint64_t middle = (low + high) / 2;
        if (value(static_cast<std::uint32_t>(middle)) == up && up != down)
          low = middle + 1;
        else
          high = middle;
      }
      const double p = static_cast<double>(low) * 0x1p-32, wide = std::fabs(up - down),
                   exact = static_cast<double>(x);
      EXPECT_NEAR(p * up + (1 - p) * down, exact, kExact * std::fabs(exact))
          << x << (bf16 ? " bf16" : " f16");
      const double f = wide > 0 ? std::fabs(exact - down) / wide : 0;
      EXPECT_NEAR(p * (1 - p), f * (1 - f), kExact);
    }
  }
}

// ---- probabilities against brute force

/// The middle of one of the eight parts of a class.
double ratio_of(std::size_t c, std::size_t part) {
  const double octave = std::exp2(static_cast<double>((c - 1) / 2)),
               low = c % 2 == 1 ? octave : 1.5 * octave;
  return low + 0.5 * octave * (static_cast<double>(part) + 0.5) / cpu::PriceCosts::kParts;
}

/// Bits an entry costs against rms / step, from the table of every class: what one could pay for
/// any step.
class BitsOfContent {
 public:
  explicit BitsOfContent(const cpu::PriceCosts& costs) {
    for (std::size_t c = 1; c < 24; ++c) {
      for (std::size_t part = 0; part < cpu::PriceCosts::kParts; ++part) {
        const double steps = ratio_of(c, part) / static_cast<double>(coding::kAtomClasses[c].delta);
        points_[std::log2(steps)] = costs.unit[c][part] / 256.0;
      }
    }
  }
  [[nodiscard]] double operator()(double rms_in_steps) const {
    const double at = std::log2(rms_in_steps);
    const auto above = points_.lower_bound(at);
    if (above == points_.begin() || above == points_.end()) return INFINITY;
    const auto below = std::prev(above);
    return std::lerp(below->second, above->second,
                     (at - below->first) / (above->first - below->first));
  }

 private:
  std::map<double, double> points_;
};

/// An atom of rms r (in units of the price) kept with probability r / t, its content in steps of s
/// t, adds r t - r^2 + r t s^2 v to the variance of an entry and r / t bits(1 / s) to its size. The
/// library takes t = 1 and its own step; the price of a bit, mu, is what makes t = 1 stationary. No
/// other probability and step may be better by 1 %; of a certain atom no other step by 3 %: a class
/// is half an octave wide.
TEST(Statistics, AtomsSpendBitsWhereTheySaveMost) {
  const cpu::PriceCosts costs = price::price_costs(AtomLayout::blocks(1 << 20));
  const BitsOfContent bits(costs);
  const double own_step = static_cast<double>(coding::kAtomClasses[0].delta);
  const double mark = costs.uncertain / 256.0 / 256, own_bits = costs.unit[0][0] / 256.0 + mark;
  const double noise = own_step * own_step * math::kDitherVariance, mu = (1 + noise) / own_bits;
  const double own = 1 + noise + mu * own_bits;  // less r, in r
  double best = INFINITY;
  for (double t = 0.5; t < 2; t *= 1.01) {
    for (double s = 0.5; s < 5; s *= 1.01)
      best = std::min(best, t + t * s * s * math::kDitherVariance + mu * (bits(1 / s) + mark) / t);
  }
  EXPECT_LT(own, best * 1.01) << own / best;
  double worst = 0;
  for (std::size_t c = 1; c < 20; ++c) {
    for (std::size_t part = 0; part < cpu::PriceCosts::kParts; ++part) {
      const double taken = static_cast<double>(coding::kAtomClasses[c].delta),
                   r = ratio_of(c, part);
      const double ours = taken * taken * math::kDitherVariance + mu * costs.unit[c][part] / 256;
      double least = INFINITY;
      for (double s = taken / 4; s < 4 * taken; s *= 1.01)
        least = std::min(least, s * s * math::kDitherVariance + mu * bits(r / s));
      worst = std::max(worst, ours / least);
    }
  }
  EXPECT_LT(worst, 1.03);
  RecordProperty("uncertain", std::to_string(own / best));
  RecordProperty("certain", std::to_string(worst));
}

// ---- the f32 path of levels

/// P and the level as f32 arithmetic gives them, for entries of any size: the bias stays inside the
/// one stated.
TEST(Statistics, LevelsInFloatStayInsideTheirBias) {
  std::mt19937_64 random(77);
  std::uniform_real_distribution<float> part(0, 1);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const auto norm = std::bit_cast<float>(static_cast<std::uint32_t>(1 + random() % 0x7F7FFFFFu));
    const int levels = (2 << (random() % 7)) - 1;
    const float x = norm * (random() % 8 == 0 ? part(random) * 1e-4f : part(random));
    const float step = math::level_step(norm, levels);
    const math::LevelScale scale = math::level_scale(step, 65536.0f);
    const float z = std::min((x * scale.pre) * scale.inv, 65536.0f * static_cast<float>(levels));
    const float whole = std::floor(z);
    const double p = (static_cast<double>(whole) +
                      static_cast<double>(std::floor((z - whole) * 65536.0f + 0.5f)) / 65536) /
                     65536;
    ASSERT_LE(p, levels);
    // E = p steps; each decoded value is rounded once more, by 2^-24 of itself or half the least
    // f32.
    const double bound = 0x1p-21 * (static_cast<double>(x) + static_cast<double>(step));
    const double bias = std::fabs(p * static_cast<double>(step) - static_cast<double>(x));
    worst = std::max(worst, bias / bound);
    ASSERT_LE(bias, bound * 0.8) << x << " of " << norm << " in " << levels;
  }
  EXPECT_GT(worst, 0.01);  // the bound is about this
}

}  // namespace
}  // namespace atomo::test
