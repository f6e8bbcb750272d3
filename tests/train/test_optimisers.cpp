// SPDX-License-Identifier: Apache-2.0
// The trainer's optimisers against torch's, and against double precision where torch has none.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomo/atomo.hpp>
#include <cmath>
#include <functional>
#include <random>

#include "learning/newton_schulz.hpp"
#include "learning/optimiser.hpp"

namespace {

using atomo::LayerSpec;
using train::OptimiserSettings;

constexpr std::size_t kElements = 12;
constexpr int kSteps = 5;
constexpr double kRate = 0.07, kMomentum = 0.8, kDecay = 0.03;

/// Two layers; the second's weights begin at 0, as biases do.
std::vector<LayerSpec> two_layers() {
  return {{"weight", atomo::Shape({4, 2})}, {"bias", atomo::Shape({4})}};
}

std::vector<float> first_weights() {
  std::vector<float> weights(kElements);
  for (std::size_t i = 0; i < 8; ++i) weights[i] = 0.3F * static_cast<float>(i) - 1;
  return weights;
}

std::vector<float> gradient_of(int step) {
  std::mt19937 random(static_cast<unsigned>(step) + 7);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(kElements);
  for (auto& g : gradient) g = normal(random);
  return gradient;
}

OptimiserSettings settings() {
  OptimiserSettings s;
  s.learning_rate = [](std::uint32_t step) { return kRate / (1 + step); };
  s.momentum = kMomentum;
  s.weight_decay = kDecay;
  return s;
}

std::vector<float> after_steps(const std::string& name) {
  auto weights = first_weights();
  const auto layers = two_layers();
  const auto optimiser = train::make_optimiser(name, settings(), layers);
  for (int step = 0; step < kSteps; ++step) {
    auto gradient = gradient_of(step);
    optimiser->take_step(weights, gradient, static_cast<std::uint32_t>(step));
  }
  return weights;
}

/// The same steps by an optimiser of torch's, in double precision. `set_rate` reaches its options.
template <class T, class TorchOptions>
void expect_as_torch(const std::string& name, TorchOptions options) {
  const auto begin = first_weights();
  auto x = torch::tensor(std::vector<double>(begin.begin(), begin.end()),
                         torch::dtype(torch::kDouble).requires_grad(true));
  T optimiser({x}, options);
  for (int step = 0; step < kSteps; ++step) {
    static_cast<TorchOptions&>(optimiser.param_groups()[0].options()).lr(kRate / (1 + step));
    const auto gradient = gradient_of(step);
    x.mutable_grad() = torch::tensor(std::vector<double>(gradient.begin(), gradient.end()),
                                     torch::dtype(torch::kDouble));
    optimiser.step();
  }
  const auto ours = after_steps(name);
  for (std::size_t i = 0; i < kElements; ++i) {
    // Five steps of single precision, a few roundings each.
    EXPECT_NEAR(ours[i], x[static_cast<std::int64_t>(i)].template item<double>(), 3e-6)
        << name << " " << i;
  }
}

TEST(Optimisers, AreThoseOfTorch) {
  namespace optim = torch::optim;
  expect_as_torch<optim::SGD>("sgd",
                              optim::SGDOptions(kRate).momentum(kMomentum).weight_decay(kDecay));
  expect_as_torch<optim::SGD>(
      "nesterov", optim::SGDOptions(kRate).momentum(kMomentum).weight_decay(kDecay).nesterov(true));
  expect_as_torch<optim::Adam>("adam", optim::AdamOptions(kRate).weight_decay(kDecay));
  expect_as_torch<optim::AdamW>("adamw", optim::AdamWOptions(kRate).weight_decay(kDecay));
  expect_as_torch<optim::Adagrad>("adagrad", optim::AdagradOptions(kRate).weight_decay(kDecay));
  expect_as_torch<optim::RMSprop>("rmsprop", optim::RMSpropOptions(kRate).weight_decay(kDecay));
}

TEST(Optimisers, AdaDeltaMeasuresStepsByEarlierSteps) {
  const auto begin = first_weights();
  const auto ours = after_steps("adadelta");
  for (std::size_t i = 0; i < kElements; ++i) {
    double x = begin[i], squares = 0, changes = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double g = gradient_of(step)[i] + kDecay * x;
      squares = 0.9 * squares + 0.1 * g * g;
      const double change = std::sqrt((changes + 1e-6) / (squares + 1e-6)) * g;
      changes = 0.9 * changes + 0.1 * change * change;
      x -= kRate / (1 + step) * change;
    }
    EXPECT_NEAR(ours[i], x, 1e-6) << i;
    EXPECT_NE(ours[i], begin[i]);
  }
}

TEST(Optimisers, SignSgdMovesEachWeightAsFar) {
  const auto begin = first_weights();
  const auto ours = after_steps("signsgd");
  for (std::size_t i = 0; i < kElements; ++i) {
    double x = begin[i];
    for (int step = 0; step < kSteps; ++step) {
      const double g = gradient_of(step)[i];
      x -= kRate / (1 + step) * ((g > 0) - (g < 0) + kDecay * x);
    }
    EXPECT_NEAR(ours[i], x, 1e-6) << i;
  }
}

/// Algorithms 4 and 5 of arXiv 1804.04235 with a first moment, as the paper writes them.
TEST(Optimisers, AdafactorDividesByFactorsOfItsSquares) {
  const std::vector<LayerSpec> layers{{"w", atomo::Shape({4, 5})}, {"b", atomo::Shape({3})}};
  auto asked = settings();
  asked.beta1 = 0.8;
  asked.beta2 = 0.95;
  const auto optimiser = train::make_optimiser("adafactor", asked, layers);
  torch::manual_seed(5);
  const auto begin = torch::randn({23}), gradients = torch::randn({kSteps, 23});
  std::vector<float> weights(begin.data_ptr<float>(), begin.data_ptr<float>() + 23);
  auto x = begin.to(torch::kDouble);
  auto squares = torch::zeros({23}, torch::kDouble), m = torch::zeros({23}, torch::kDouble);
  for (int step = 0; step < kSteps; ++step) {
    // Later gradients are larger than the mean, so that updates are clipped.
    const auto g = gradients[step] * (1 + step * step);
    std::vector<float> gradient(g.data_ptr<float>(), g.data_ptr<float>() + 23);
    optimiser->take_step(weights, gradient, static_cast<std::uint32_t>(step));
    squares = 0.95 * squares + 0.05 * g.to(torch::kDouble).square();
    const auto second = squares / (1 - std::pow(0.95, step + 1));
    const auto matrix = second.slice(0, 0, 20).view({4, 5});
    const auto factors = matrix.sum(1, true) * matrix.sum(0, true) / matrix.sum();
    const auto root = torch::cat({factors.flatten(), second.slice(0, 20)}).sqrt();
    const auto u = g.to(torch::kDouble) / root;
    for (const auto& [from, to] : {std::pair{0, 20}, {20, 23}}) {
      const auto part = u.slice(0, from, to);
      const double rms = part.square().mean().sqrt().item<double>();
      const auto clipped = part / std::max(1.0, rms);
      m.slice(0, from, to).mul_(0.8).add_(clipped, 0.2);
    }
    x = x - kRate / (1 + step) * (m + kDecay * x);
  }
  for (std::int64_t i = 0; i < 23; ++i)
    EXPECT_NEAR(weights[static_cast<std::size_t>(i)], x[i].item<double>(), 2e-6) << i;
}

TEST(Optimisers, LarsTakesARateForEachLayer) {
  const auto begin = first_weights();
  const auto ours = after_steps("lars");
  for (const auto& [first, last] : {std::pair{std::size_t{0}, std::size_t{8}}, {8, kElements}}) {
    std::vector<double> x(begin.begin(), begin.end()), v(kElements);
    for (int step = 0; step < kSteps; ++step) {
      const auto g = gradient_of(step);
      double xx = 0, gg = 0;
      for (std::size_t i = first; i < last; ++i) xx += x[i] * x[i], gg += double{g[i]} * g[i];
      const double trust =
          xx > 0 ? 0.001 * std::sqrt(xx) / (std::sqrt(gg) + kDecay * std::sqrt(xx)) : 1;
      for (std::size_t i = first; i < last; ++i) {
        v[i] = kMomentum * v[i] + kRate / (1 + step) * trust * (g[i] + kDecay * x[i]);
        x[i] -= v[i];
      }
    }
    for (std::size_t i = first; i < last; ++i) EXPECT_NEAR(ours[i], x[i], 1e-6) << i;
  }
}

torch::Tensor random_matrix(std::int64_t rows, std::int64_t columns) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * rows + columns));
  return torch::randn({rows, columns});
}

torch::Tensor orthogonal(const torch::Tensor& matrix) {
  auto values = matrix.clone();
  std::vector<float> work;
  train::orthogonalise({values.data_ptr<float>(), static_cast<std::size_t>(values.numel())},
                       static_cast<std::size_t>(values.size(0)),
                       static_cast<std::size_t>(values.size(1)), work);
  return values;
}

/// The iteration in double precision, as the paper writes it.
torch::Tensor newton_schulz(torch::Tensor x) {
  x = x.to(torch::kDouble) / x.to(torch::kDouble).norm();
  for (int step = 0; step < 5; ++step) {
    const auto a = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.mm(a)).mm(x);
  }
  return x;
}

TEST(NewtonSchulz, BringsSingularValuesNearOneAndKeepsTheVectors) {
  for (const auto& [rows, columns] : {std::pair{5, 40}, {40, 5}, {30, 30}, {33, 47}, {2, 2}}) {
    const auto matrix = random_matrix(rows, columns);
    const auto [u, values, v] = torch::linalg_svd(matrix, false);
    const auto inside = u.t().mm(orthogonal(matrix)).mm(v.t());
    const auto near_one = inside.diagonal();
    const auto above = values > 0.01 * values.norm();
    EXPECT_LT(near_one.masked_select(above).max().item<float>(), 1.3F);
    EXPECT_GT(near_one.masked_select(above).min().item<float>(), 0.6F);
    EXPECT_LT((inside - torch::diag(near_one)).abs().max().item<float>(), 2e-3F)
        << rows << " x " << columns;
  }
}

TEST(NewtonSchulz, IsThatOfDoublePrecisionAndOfTheTranspose) {
  const auto matrix = 1e-4 * random_matrix(17, 29);
  const auto ours = orthogonal(matrix);
  EXPECT_LT((ours - newton_schulz(matrix)).abs().max().item<double>(), 1e-4);
  EXPECT_TRUE(orthogonal(matrix.t().contiguous()).t().equal(ours));
  EXPECT_TRUE(orthogonal(torch::zeros({3, 4})).equal(torch::zeros({3, 4})));
}

TEST(Optimisers, MuonMovesMatricesAlongTheirOrthogonalMomentumAndTheRestAsAdamW) {
  const auto begin = first_weights();
  const auto ours = after_steps("muon"), adamw = after_steps("adamw");
  auto x = torch::tensor(std::vector<double>(begin.begin(), begin.begin() + 8)).view({4, 2});
  auto m = torch::zeros({4, 2}, torch::kDouble);
  for (int step = 0; step < kSteps; ++step) {
    const auto gradient = gradient_of(step);
    const auto g =
        torch::tensor(std::vector<double>(gradient.begin(), gradient.begin() + 8)).view({4, 2});
    m = 0.95 * m + g;
    const auto direction = newton_schulz((g + 0.95 * m).t()).t();
    x = x - kRate / (1 + step) * (0.2 * std::sqrt(4.0) * direction + kDecay * x);
  }
  for (std::size_t i = 0; i < kElements; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    EXPECT_NEAR(ours[i], i < 8 ? x.view(-1)[at].item<double>() : adamw[i], 1e-5) << i;
  }
}

TEST(Optimisers, MuonLeavesEmbeddingsAndTheOutputLayerToAdamW) {
  for (const char* name : {"characters.weight", "positions", "head.weight"}) {
    const std::vector<LayerSpec> layers{{name, atomo::Shape({4, 2})}, {"b", atomo::Shape({4})}};
    auto weights = first_weights();
    const auto optimiser = train::make_optimiser("muon", settings(), layers);
    for (int step = 0; step < kSteps; ++step) {
      auto gradient = gradient_of(step);
      optimiser->take_step(weights, gradient, static_cast<std::uint32_t>(step));
    }
    EXPECT_EQ(weights, after_steps("adamw")) << name;
  }
}

TEST(Optimisers, GoOnFromTheirMoments) {
  const auto layers = two_layers();
  for (const auto& name : train::optimiser_names()) {
    auto weights = first_weights();
    auto optimiser = train::make_optimiser(name, settings(), layers);
    for (int step = 0; step < kSteps; ++step) {
      if (step == 3) {
        auto moments = optimiser->moments();
        optimiser = train::make_optimiser(name, settings(), layers);
        ASSERT_EQ(moments.size(), optimiser->moments().size());
        optimiser->moments() = std::move(moments);
      }
      auto gradient = gradient_of(step);
      optimiser->take_step(weights, gradient, static_cast<std::uint32_t>(step));
    }
    EXPECT_EQ(weights, after_steps(name)) << name;
  }
}

TEST(Optimisers, TakeTheScaleOutOfTheGradient) {
  const auto layers = two_layers();
  auto scaled = settings();
  scaled.gradient_scale = [](std::uint32_t step) { return step == 0 ? 1.0 : 64.0; };
  auto weights = first_weights();
  const auto optimiser = train::make_optimiser("adam", scaled, layers);
  for (int step = 0; step < kSteps; ++step) {
    auto gradient = gradient_of(step);
    if (step != 0) {
      for (auto& g : gradient) g *= 64;
    }
    optimiser->take_step(weights, gradient, static_cast<std::uint32_t>(step));
  }
  EXPECT_EQ(weights, after_steps("adam"));
}

TEST(Optimisers, AnUnknownNameIsAnsweredWithThoseThereAre) {
  try {
    (void)train::make_optimiser("adamax", settings(), two_layers());
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(),
                 "no optimiser 'adamax': there are sgd, nesterov, lars, adam, adamw, "
                 "adagrad, adadelta, rmsprop, muon, adafactor, signsgd");
  }
}

}  // namespace
