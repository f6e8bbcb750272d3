// SPDX-License-Identifier: Apache-2.0
/// The controller of streamed models against gradients whose scale is noise: a step of scale s sent
/// at price a takes s / a bits, so the price that meets a budget of one bit is s.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "price/price_controller.hpp"
#include "price/price_math.hpp"

namespace atomo::detail {

using namespace model;
namespace {

/// The price just below a positive value.
float price_near(double value) {
  return price_of_code(static_cast<std::uint32_t>(price_code(static_cast<float>(value))));
}

/// Bits that each step took, when content takes `content` of what the search expects.
template <typename Scale>
std::vector<double> sizes(Scale scale, int steps, double content = 1) {
  ControllerState state;
  std::vector<double> bits;
  for (int step = 0; step < steps; ++step) {
    const double s = scale(step);
    const float used = state.price;
    bits.push_back(content * (used > 0 ? s / static_cast<double>(used) : 1.0));
    const float plain = price_near(s);
    count_step(state, used, plain, bits.back(), 1, 1);
    predict_price(state, plain, price_near(s * payment(state, 1)));
  }
  return bits;
}

double mean(const std::vector<double>& bits, std::size_t first, std::size_t count) {
  double sum = 0;
  for (std::size_t i = first; i < first + count; ++i) sum += bits[i];
  return sum / static_cast<double>(count);
}

/// Noise of 25 % from step to step, a scale that falls by half in 100 steps, content that costs 3 %
/// more than expected: the mean of any 50 steps after the first three stays near the budget.
TEST(PriceController, HoldsTheBudgetUnderNoise) {
  std::mt19937 generator(7);
  std::normal_distribution<double> normal;
  const auto bits =
      sizes([&](int step) { return std::exp2(-step / 100.0) * std::exp(0.25 * normal(generator)); },
            2000, 1.03);
  EXPECT_NEAR(mean(bits, 3, 1997), 1, 0.003);
  int near = 0, windows = 0;
  for (std::size_t first = 3; first + 50 <= bits.size(); ++first, ++windows)
    near += std::abs(mean(bits, first, 50) - 1) < 0.02 ? 1 : 0;
  std::printf("[ windows  ] %.3f of 50 steps are within 2 %%\n",
              static_cast<double>(near) / windows);
  EXPECT_GT(near, 0.85 * windows);
}

/// A scale that jumps by 100 costs one step of the wrong size; from the fifth on they are right.
TEST(PriceController, RecoversFromAJump) {
  for (const double jump : {100.0, 0.01}) {
    const auto bits = sizes([&](int step) { return step < 50 ? 1.0 : jump; }, 100);
    EXPECT_NEAR(bits[49], 1, 0.01);
    EXPECT_NEAR(bits[50], jump, 0.01 * jump);
    for (std::size_t step = 55; step < 100; ++step)
      EXPECT_NEAR(bits[step], 1, 0.02) << jump << " at " << step;
  }
}

/// A single message that is too long is paid for by those after it, however high the spike (one of
/// more than three octaves looks like a new beginning at first).
TEST(PriceController, PaysForASpike) {
  for (const double spike : {5.0, 7.0, 8.5}) {
    const auto bits = sizes([&](int step) { return step == 50 ? spike : 1.0; }, 120);
    EXPECT_NEAR(bits[50], spike, 0.05);
    EXPECT_NEAR(mean(bits, 40, 60), 1, 0.02) << spike;
    EXPECT_NEAR(bits[119], 1, 0.02) << spike;
  }
}

/// Steps of unlike shares, under noise: each takes its share, and the mean of all is the mean share.
TEST(PriceController, HoldsTheSharesOfSteps) {
  std::mt19937 generator(11);
  std::normal_distribution<double> normal;
  const auto share = [](int step) { return 1 + 0.9 * std::sin(step / 40.0); };
  ControllerState state;
  double all = 0, shares = 0, low = 0, lows = 0;
  for (int step = 0; step < 2000; ++step) {
    const double s = std::exp(0.25 * normal(generator));
    const float used = state.price;
    const double bits = 1.03 * (used > 0 ? s / static_cast<double>(used) : share(step));
    const float plain = price_near(s);
    count_step(state, used, plain, bits, share(step), 1);
    const double next = share(step + 1);
    predict_price(state, plain, price_near(s * payment(state, next) / next));
    if (step < 3) continue;
    all += bits, shares += share(step);
    if (share(step) < 0.3) low += bits, lows += share(step);
  }
  EXPECT_NEAR(all / shares, 1, 0.005);
  EXPECT_NEAR(low / lows, 1, 0.1);
}

}  // namespace
}  // namespace atomo::detail
