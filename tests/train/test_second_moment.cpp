// SPDX-License-Identifier: Apache-2.0
/// What workers tell of their squares is right on average, and Adam's second moment made of it is
/// Adam's own where it can be.
#include "learning/second_moment.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string_view>

#include "learning/optimiser.hpp"

namespace {

using namespace train;
using atomo::LayerSpec;
using atomo::Shape;

constexpr std::size_t kWorkers = 4;

std::vector<float> normals(std::size_t count, std::mt19937& random, float deviation = 1) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(SecondMoment, MatricesAreFactoredAndNothingElse) {
  const std::vector<LayerSpec> layers = {{"bias", Shape{7}},      {"weight", Shape{5, 6}},
                                         {"thin", Shape{3, 100}}, {"conv", Shape{8, 2, 3, 3}},
                                         {"scalar", Shape{1}},    {"empty", Shape{0, 9}}};
  const auto factored = factored_layers(layers);
  ASSERT_EQ(factored.size(), 2u);
  EXPECT_EQ(factored[0].layer, 1u);
  EXPECT_EQ(factored[0].offset, 7u);
  EXPECT_EQ(factored[1].layer, 3u);
  EXPECT_EQ(factored[1].offset, 7u + 30 + 300);
  EXPECT_EQ(factored[1].rows, 8u);
  EXPECT_EQ(factored[1].columns, 18u);
}

struct Told {
  std::vector<double> rows, columns;
  double of_one = 0, of_average = 0;
};

/// Workers' gradients through a codec and back, and what is told of them at one step.
Told tell(const std::vector<LayerSpec>& layers, const std::vector<std::vector<float>>& gradients,
          const atomo::Codec& codec, std::uint32_t step, double scale = 1) {
  const Shape shape = layers[0].shape;
  const std::size_t n = shape.elements();
  std::vector<SquaresExchange> workers;
  for (std::size_t k = 0; k < kWorkers; ++k) workers.emplace_back(layers, kWorkers);
  std::vector<std::byte> message(codec.max_encoded_bytes(shape)), all;
  std::vector<std::byte> workspace(
      std::max(codec.encode_workspace_bytes(shape), codec.decode_workspace_bytes(shape)));
  std::vector<float> average(n);
  for (std::size_t k = 0; k < kWorkers; ++k) {
    std::uint64_t bytes = 0;
    const atomo::Key key{.seed = 3, .step = step, .worker = static_cast<std::uint16_t>(k)};
    EXPECT_EQ(codec.encode({gradients[k].data(), atomo::DType::f32, shape}, key,
                           {message.data(), message.size(), &bytes}, {.workspace = workspace}),
              atomo::Status::ok);
    std::vector<float> decoded(n);
    EXPECT_EQ(codec.decode(std::span(message).first(bytes),
                           {decoded.data(), atomo::DType::f32, shape}, {.workspace = workspace}),
              atomo::Status::ok);
    for (std::size_t i = 0; i < n; ++i) average[i] += decoded[i] / static_cast<float>(kWorkers);
    workers[k].add(0, gradients[k], scale);
    const auto told = workers[k].encode(
        {.seed = 3, .step = step, .worker = key.worker, .channel = 1}, decoded, scale);
    all.insert(all.end(), told.begin(), told.end());
  }
  for (const auto status : workers[1].decode(all)) EXPECT_EQ(status, atomo::Status::ok);
  const LayerSquares squares = workers[1].squares(0, average, scale);
  return {{squares.row_means.begin(), squares.row_means.end()},
          {squares.column_means.begin(), squares.column_means.end()},
          squares.of_one,
          squares.of_average};
}

/// Means over many draws are within five standard errors of what they estimate: one false alarm in
/// 1.7 million a value, of 21 values.
TEST(SecondMoment, WhatIsToldIsRightOnAverage) {
  std::mt19937 random(5);
  const std::vector<LayerSpec> layers = {{"weight", Shape{8, 12}}};
  const auto common = normals(96, random);
  std::vector<std::vector<float>> gradients;
  for (std::size_t k = 0; k < kWorkers; ++k) {
    gradients.push_back(normals(96, random, 2));
    for (std::size_t i = 0; i < 96; ++i) gradients[k][i] += common[i];
  }
  std::vector<double> rows(8), columns(12);
  double of_one = 0, of_average = 0;
  for (std::size_t i = 0; i < 96; ++i) {
    double sum = 0;
    for (const auto& g : gradients) {
      const double square = double{g[i]} * g[i] / kWorkers;
      rows[i / 12] += square / 12;
      columns[i % 12] += square / 8;
      of_one += square;
      sum += g[i];
    }
    of_average += sum * sum / (kWorkers * kWorkers);
  }
  const auto codec = atomo::Codec::parse("qsgd:bits=1");
  constexpr int kDraws = 2000;
  std::vector<double> mean(21), squares(21);
  for (int d = 0; d < kDraws; ++d) {
    const Told told = tell(layers, gradients, codec, static_cast<std::uint32_t>(d));
    std::vector<double> all = told.rows;
    all.insert(all.end(), told.columns.begin(), told.columns.end());
    all.push_back(told.of_average);
    EXPECT_NEAR(told.of_one, of_one, 1e-5 * of_one);
    for (std::size_t i = 0; i < all.size(); ++i) {
      mean[i] += all[i] / kDraws;
      squares[i] += all[i] * all[i] / kDraws;
    }
  }
  std::vector<double> exact = rows;
  exact.insert(exact.end(), columns.begin(), columns.end());
  exact.push_back(of_average);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = std::sqrt((squares[i] - mean[i] * mean[i]) / kDraws);
    EXPECT_GT(error, 0);
    EXPECT_NEAR(mean[i], exact[i], 5 * error) << i;
  }
}

TEST(SecondMoment, ALossScaleChangesNothing) {
  std::mt19937 random(6);
  const std::vector<LayerSpec> layers = {{"weight", Shape{6, 5}}};
  std::vector<std::vector<float>> gradients, scaled;
  for (std::size_t k = 0; k < kWorkers; ++k) {
    gradients.push_back(normals(30, random));
    scaled.push_back(gradients.back());
    for (float& g : scaled.back()) g *= 1024;
  }
  const auto codec = atomo::Codec::parse("identity");
  const Told one = tell(layers, gradients, codec, 1), other = tell(layers, scaled, codec, 1, 1024);
  EXPECT_EQ(one.rows, other.rows);
  EXPECT_EQ(one.columns, other.columns);
  EXPECT_FLOAT_EQ(static_cast<float>(one.of_average), static_cast<float>(other.of_average));
}

OptimiserSettings settings(std::uint32_t squares_every, double max_update = 0,
                           SecondMoment second_moment = SecondMoment::factored) {
  OptimiserSettings s;
  s.learning_rate = [](std::uint32_t) { return 0.01; };
  s.weight_decay = 0.1;
  s.second_moment = squares_every == 0 ? SecondMoment::own : second_moment;
  s.squares_every = squares_every;
  s.max_update = max_update;
  return s;
}

/// One worker whose squares are a product of rows and columns: the factored moment is Adam's own.
TEST(SecondMoment, OfProductsItIsAdamsOwn) {
  const std::vector<LayerSpec> layers = {{"bias", Shape{5}}, {"weight", Shape{4, 6}}};
  for (const char* const name : {"adam", "adamw"}) {
    // adam's decay joins the gradient, and with it the squares, which are then no products.
    const double decay = std::string_view(name) == "adamw" ? 0.1 : 0;
    auto of_own = settings(0), of_squares = settings(1);
    of_own.weight_decay = of_squares.weight_decay = decay;
    const auto own = make_optimiser(name, of_own, layers);
    const auto factored = make_optimiser(name, of_squares, layers);
    std::vector<float> w(29), v(29);
    for (std::size_t i = 0; i < 29; ++i) w[i] = v[i] = 0.1F * static_cast<float>(i);
    for (std::uint32_t step = 0; step < 20; ++step) {
      std::vector<float> gradient(29);
      std::vector<float> rows(4), columns(6);
      const float size = 1 + 0.1F * static_cast<float>(step % 3);
      for (std::size_t i = 0; i < 5; ++i) gradient[i] = size * static_cast<float>(i);
      for (std::size_t r = 0; r < 4; ++r) {
        for (std::size_t c = 0; c < 6; ++c) {
          const float g = size * static_cast<float>(r + 1) * static_cast<float>(c + 1) *
                          ((r + c + step) % 2 == 0 ? 1.0F : -1.0F);
          gradient[5 + 6 * r + c] = g;
          rows[r] += g * g / 6;
          columns[c] += g * g / 4;
        }
      }
      double all = 0;
      for (const float row : rows) all += 6 * double{row};
      factored->see_squares(0, {rows, columns, all, all});
      auto copy = gradient;
      own->take_step(w, gradient, step);
      factored->take_step(v, copy, step);
    }
    for (std::size_t i = 0; i < 29; ++i) EXPECT_NEAR(v[i], w[i], 2e-6) << name;
  }
}

/// Weights after some steps along gradients whose average's squares are told to be a quarter of
/// what they are.
std::vector<float> after_noisy_steps(OptimiserSettings asked, double told = 0.25) {
  const std::vector<LayerSpec> layers = {{"weight", Shape{4, 6}}};
  asked.weight_decay = 0;
  const auto optimiser = make_optimiser("adamw", asked, layers);
  std::mt19937 random(8);
  std::vector<float> w(24);
  for (std::uint32_t step = 0; step < 7; ++step) {
    auto gradient = normals(24, random);
    std::vector<float> rows(4), columns(6);
    double all = 0;
    for (std::size_t i = 0; i < 24; ++i) {
      const float square = gradient[i] * gradient[i];
      rows[i / 6] += square / 6;
      columns[i % 6] += square / 4;
      all += square;
    }
    if (asked.squares_every > 0) optimiser->see_squares(0, {rows, columns, all, told * all, all});
    optimiser->take_step(w, gradient, step);
  }
  return w;
}

/// A quarter of the squares makes steps twice as long, and nothing else changes.
TEST(SecondMoment, ScaledIsOwnWithoutTheShareOfNoise) {
  const auto own = after_noisy_steps(settings(0));
  const auto scaled = after_noisy_steps(settings(1, 0, SecondMoment::scaled));
  const auto none = after_noisy_steps(settings(1, 0, SecondMoment::scaled), 1.5);
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_NEAR(scaled[i], 2 * own[i], 1e-6) << i;
    EXPECT_NEAR(none[i], own[i], 1e-7) << i;
  }
}

/// Each step goes along Adam's own direction as far as the factored one would.
TEST(SecondMoment, MatchedHasTheDirectionOfOwnAndTheLengthOfFactored) {
  const std::vector<LayerSpec> layers = {{"weight", Shape{8, 8}}};
  const auto with = [&](SecondMoment kind) {
    auto asked = settings(kind == SecondMoment::own ? 0 : 1, 0, kind);
    asked.weight_decay = 0;
    return make_optimiser("adamw", asked, layers);
  };
  const auto own = with(SecondMoment::own), factored = with(SecondMoment::factored),
             matched = with(SecondMoment::matched);
  std::mt19937 random(9);
  for (std::uint32_t step = 0; step < 6; ++step) {
    const auto gradient = normals(64, random);
    const std::vector<float> rows = {9, 1, 1, 1, 1, 1, 1, 1}, columns(8, 2.0F);
    std::vector<std::vector<float>> moved;
    for (const auto& optimiser : {own.get(), factored.get(), matched.get()}) {
      if (optimiser != own.get()) optimiser->see_squares(0, {rows, columns, 128, 40, 90});
      std::vector<float> w(64), copy = gradient;
      optimiser->take_step(w, copy, step);
      moved.push_back(w);
    }
    const auto product = [&](std::size_t a, std::size_t b) {
      return std::inner_product(moved[a].begin(), moved[a].end(), moved[b].begin(), 0.0);
    };
    EXPECT_NEAR(product(2, 2) / product(1, 1), 1, 1e-5) << step;
    EXPECT_NEAR(product(0, 2) / std::sqrt(product(0, 0) * product(2, 2)), 1, 1e-6) << step;
    EXPECT_LT(product(1, 2) / std::sqrt(product(1, 1) * product(2, 2)), 0.999) << step;
  }
}

TEST(SecondMoment, AnUpdateKeepsItsBound) {
  std::mt19937 random(7);
  const std::vector<LayerSpec> layers = {{"weight", Shape{8, 8}}};
  const auto bounded = make_optimiser("adamw", settings(0, 0.25), layers);
  std::vector<float> w(64);
  for (std::uint32_t step = 0; step < 10; ++step) {
    const auto before = w;
    auto gradient = normals(64, random);
    bounded->take_step(w, gradient, step);
    double squares = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      const double u = (w[i] - before[i]) / 0.01 + 0.1 * before[i];
      squares += u * u;
    }
    EXPECT_LE(std::sqrt(squares / 64), 0.25 * 1.001);
    if (step == 0) {
      EXPECT_GT(std::sqrt(squares / 64), 0.25 * 0.999);
    }
  }
}

/// Rows that were 0 when squares were told have a gradient later.
TEST(SecondMoment, AnUpdateIsWithinAdamsBound) {
  const std::vector<LayerSpec> layers = {{"weight", Shape{4, 4}}};
  const auto optimiser = make_optimiser("adamw", settings(10), layers);
  const std::vector<float> rows = {0, 1, 1, 1}, columns = {0.75, 0.75, 0.75, 0.75};
  optimiser->see_squares(0, {rows, columns, 12, 12});
  std::vector<float> w(16), gradient(16, 1.0F);
  optimiser->take_step(w, gradient, 0);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(w[i], -0.01 * std::sqrt(10.0), 1e-6);
  for (std::size_t i = 4; i < 16; ++i) EXPECT_NEAR(w[i], -0.01, 1e-6);
}

/// A step along a decoded gradient, over the squares of the exact one; within Adam's bound where those were 0.
TEST(SecondMoment, ExactDividesByGradientsAsTheyWere) {
  const std::vector<LayerSpec> layers = {{"weight", Shape{4, 4}}, {"bias", Shape{3}}};
  auto asked = settings(10, 0, SecondMoment::exact);
  asked.weight_decay = 0;
  const auto optimiser = make_optimiser("adamw", asked, layers);
  std::vector<float> w(19), decoded(19, 2.0F), exact(19, -4.0F);
  exact[3] = exact[17] = 0;
  optimiser->see_exact(exact);
  optimiser->take_step(w, decoded, 0);
  for (std::size_t i = 0; i < 19; ++i)
    EXPECT_NEAR(w[i], exact[i] == 0 ? -0.01 * std::sqrt(10.0) : -0.01 * 0.5, 1e-6) << i;
}

/// Where gradients are +-1 times a product of rows and columns, a unit is the root of an entry's size, of what was told and
/// of Adam's own moments; the bias has one unit, and a row without gradients the least there is.
TEST(SecondMoment, UnitsAreFourthRoots) {
  const std::vector<LayerSpec> layers = {{"bias", Shape{3}}, {"weight", Shape{4, 4}}};
  for (const SecondMoment moment : {SecondMoment::factored, SecondMoment::own}) {
    auto asked = settings(2, 0, moment);
    asked.weight_decay = 0;
    const auto optimiser = make_optimiser("adamw", asked, layers);
    std::vector<float> w(19), units(19);
    optimiser->find_units(0, units);
    EXPECT_EQ(units, std::vector<float>(19, 1.0F));
    const std::vector<float> roots = {0, 1, 2, 3}, sides = {2, 1, 4, 1};
    std::vector<float> rows(4), columns(4), gradient = {3, 4, 0};
    double sum = 0;
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t c = 0; c < 4; ++c) {
        const float g = roots[r] * sides[c];
        gradient.push_back((r + c) % 2 == 0 ? g : -g);
        rows[r] += g * g / 4;
        columns[c] += g * g / 4;
        sum += g * g;
      }
    }
    for (std::uint32_t step = 0; step < 5; ++step) {
      if (moment == SecondMoment::factored && step % 2 == 0)
        optimiser->see_squares(0, {rows, columns, sum, sum});
      auto copy = gradient;
      optimiser->take_step(w, copy, step);
      optimiser->find_units(step + 1, units);
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(units[i], std::sqrt(5 / std::sqrt(3.0)), 1e-4) << step;
      for (std::size_t i = 7; i < 19; ++i)
        EXPECT_NEAR(units[i], std::sqrt(std::abs(gradient[i])), 1e-4) << i;
      for (std::size_t i = 3; i < 7; ++i)
        EXPECT_NEAR(units[i], std::sqrt(std::sqrt(sum / 16) / 1024), 1e-5) << i;
    }
  }
}

/// What is not finite is not kept.
TEST(SecondMoment, SquaresThatAreNotFiniteAreLeftOut) {
  const std::vector<LayerSpec> layers = {{"weight", Shape{4, 4}}};
  const auto optimiser = make_optimiser("adamw", settings(1), layers);
  std::vector<float> means(4, 1.0F), broken(4, NAN);
  optimiser->see_squares(0, {means, means, 16, 16});
  const auto before = optimiser->moments()[1];
  optimiser->see_squares(0, {broken, broken, NAN, 16});
  optimiser->see_squares(0, {broken, broken, INFINITY, 16});
  EXPECT_EQ(optimiser->moments()[1], before);
}

TEST(FirstMoment, EachOptimiserKeepsItsOwnPart) {
  for (const auto& name : train::optimiser_names()) {
    const bool momentum = name == "sgd" || name == "nesterov" || name == "lars";
    const bool beta = name == "adam" || name == "adamw" || name == "adafactor";
    const double wanted = momentum ? 0.3 : beta ? 0.7 : name == "muon" ? 0.95 : 0;
    EXPECT_EQ(train::first_moment_of(name, 0.3, 0.7), wanted) << name;
  }
}

/// Nothing moves along them: weights and moments stay what they were.
TEST(Optimisers, RefuseGradientsThatAreNotFinite) {
  const std::vector<LayerSpec> layers = {{"weight", Shape{4, 4}}};
  for (const auto& name : train::optimiser_names()) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      const auto optimiser = make_optimiser(name, settings(0), layers);
      std::vector<float> weights(16, 1.0F), gradient(16, 0.5F);
      gradient[13] = bad;
      const auto weights_before = weights;
      const auto moments_before = optimiser->moments();
      EXPECT_THROW(optimiser->take_step(weights, gradient, 0), std::runtime_error) << name;
      EXPECT_EQ(weights, weights_before) << name;
      EXPECT_EQ(optimiser->moments(), moments_before) << name;
    }
  }
}

TEST(SecondMoment, OtherOptimisersHaveNone) {
  const std::vector<LayerSpec> layers = {{"weight", Shape{4, 4}}};
  EXPECT_THROW((void)make_optimiser("sgd", settings(1), layers), std::runtime_error);
  EXPECT_THROW((void)make_optimiser("lars", settings(0, 1), layers), std::runtime_error);
}

}  // namespace
