// SPDX-License-Identifier: Apache-2.0
/// Shares of a budget: what the steps of a run have of it, whole messages and streamed steps alike.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/support.hpp"

namespace atomo {
namespace {

const std::vector<LayerSpec> kLayers{{"conv", {50, 20, 5, 5}}, {"fc", {120, 400}}, {"bias", {900}}};

/// The same gradient in every step.
struct Gradient {
  std::vector<std::vector<float>> values;
  std::vector<ConstTensorView> views;

  Gradient() {
    for (const auto& layer : kLayers)
      values.push_back(test::heavy_tailed(layer.shape.elements(), values.size() + 1, 50));
    for (std::size_t i = 0; i < kLayers.size(); ++i)
      views.push_back({values[i].data(), DType::f32, kLayers[i].shape});
  }
};

double whole_message(Compressor& c, const Gradient& gradient, std::uint32_t step) {
  std::vector<std::byte> workspace(test::workspace_bytes(c)), message(c.max_encoded_bytes());
  std::uint64_t bytes = 0;
  EXPECT_FALSE(
      failed(c.encode(gradient.views, {.seed = 1, .step = step},
                      {message.data(), message.size(), &bytes}, {.workspace = workspace})));
  return static_cast<double>(bytes);
}

/// A step whose layers come one by one, before one that has `next` of the budget.
double streamed(Compressor& c, const Gradient& gradient, std::uint32_t step, double next) {
  EXPECT_EQ(c.begin_step({.seed = 1, .step = step}), Status::ok);
  double all = 0;
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    std::vector<std::byte> workspace(test::workspace_bytes(c, i)), message(c.max_encoded_bytes(i));
    std::uint64_t bytes = 0;
    EXPECT_FALSE(failed(c.encode_layer(
        i, gradient.views[i], {message.data(), message.size(), &bytes}, {.workspace = workspace})));
    all += static_cast<double>(bytes);
  }
  c.set_budget_share(next);
  EXPECT_FALSE(failed(c.end_step()));
  return all;
}

std::vector<double> falling_rates() {
  std::vector<double> rates;
  for (int step = 0; step < 41; ++step) rates.push_back(1 + std::cos(3.14 * step / 41));
  return rates;
}

TEST(BudgetShares, FollowTheRates) {
  const auto rates = falling_rates(), shares = budget_shares(rates, 0.75, 0.1, 0);
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 41, 1e-9);
  EXPECT_NEAR(shares[0] / shares[20], std::pow(rates[0] / rates[20], 0.75), 1e-9);
  EXPECT_NEAR(shares[40] / shares[0], 0.1, 1e-9);
}

/// A step's rate is what a first moment makes of its gradient: by an impulse through Adam's formula.
TEST(BudgetShares, FollowWhatAMomentumKeepsOfAStep) {
  const std::vector<double> rates{0.25, 0.5, 1, 0.5};
  std::vector<double> expected(4);
  for (std::size_t at = 0; at < 4; ++at) {
    double moment = 0;
    for (std::size_t step = 0; step < 4; ++step) {
      moment = (0.5 * moment) + (step == at ? 0.5 : 0);
      expected[at] += rates[step] * moment / (1 - std::pow(0.5, static_cast<double>(step + 1)));
    }
  }
  const double mean = std::accumulate(expected.begin(), expected.end(), 0.0) / 4;
  const auto shares = budget_shares(rates, 1, 0.1, 0.5);
  for (std::size_t at = 0; at < 4; ++at) EXPECT_NEAR(shares[at], expected[at] / mean, 1e-12) << at;
}

/// Each message takes its share, and a run the bytes that it would have taken.
TEST(BudgetShares, AreWhatMessagesTake) {
  const Gradient gradient;
  const auto policy = Policy::parse("*=atomo:bits=2,atoms=blocks");
  const auto shares = budget_shares(falling_rates());
  Compressor whole(kLayers, policy), by_layer(kLayers, policy);
  const double budget = whole.budget_bytes();
  by_layer.set_budget_share(shares[0]);
  double sent = 0, wanted = 0;
  for (std::uint32_t step = 0; step < 40; ++step) {
    whole.set_budget_share(shares[step]);
    EXPECT_DOUBLE_EQ(whole.budget_bytes(), shares[step] * budget);
    const auto expected = static_cast<double>(whole.expected_bytes().value_or(0));
    EXPECT_NEAR(whole_message(whole, gradient, step), expected, 0.08 * expected) << step;
    const double bytes = streamed(by_layer, gradient, step, shares[step + 1]);
    if (step < 4) continue;
    EXPECT_NEAR(bytes, shares[step] * budget, 0.15 * shares[step] * budget) << step;
    sent += bytes;
    wanted += shares[step] * budget;
  }
  EXPECT_NEAR(sent / wanted, 1, 0.02);
}

TEST(BudgetShares, ThatCannotBeAreRefused) {
  Compressor c(kLayers, Policy::parse("*=atomo:bits=1"));
  for (const double share : {0.0, -1.0, 2000.0, std::nan(""), 1 / 0.0})
    EXPECT_THROW(c.set_budget_share(share), Error) << share;
  c.set_budget_share(2);
  EXPECT_EQ(c.part(0, 1).budget_share(), 2);
  EXPECT_THROW(c.part(0, 1).set_budget_share(1), Error);
  for (const auto& rates : {std::vector<double>{0, 0}, {1, -1}, {1, std::nan("")}})
    EXPECT_THROW((void)budget_shares(rates), Error);
  EXPECT_THROW((void)budget_shares(std::vector<double>{1}, 5), Error);
  EXPECT_THROW((void)budget_shares(std::vector<double>{1}, 1, 0), Error);
  EXPECT_THROW((void)budget_shares(std::vector<double>{1}, 1, 0.1, 1), Error);
  EXPECT_TRUE(budget_shares({}).empty());
}

}  // namespace
}  // namespace atomo
