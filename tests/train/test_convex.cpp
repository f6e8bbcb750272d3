// SPDX-License-Identifier: Apache-2.0
/// Logistic regression and quadratics: gradients are the slopes of the loss, and scores are right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "learning/convex.hpp"

namespace train {
namespace {

constexpr ImageShape kImages{1, 2, 3};
constexpr std::int64_t kPixels = 6;

Batch images(std::size_t samples) {
  std::mt19937 random(3);
  std::normal_distribution<float> pixel;
  Batch batch;
  for (std::size_t i = 0; i < samples; ++i) {
    for (std::int64_t k = 0; k < kPixels; ++k) batch.pixels.push_back(pixel(random));
    batch.targets.push_back(static_cast<std::int64_t>(random() % kImages.classes));
  }
  return batch;
}

/// As `backward` hands it out, and the order in which its layers came.
std::vector<float> gradient_of(Replica& replica, const Batch& batch, double scale,
                               std::vector<std::size_t>& order) {
  std::vector<float> whole(replica.weights().size());
  replica.backward(batch, scale, [&](std::size_t layer, std::span<const float> part) {
    order.push_back(layer);
    ASSERT_EQ(part.size(), replica.layers()[layer].shape.elements());
    std::copy(part.begin(), part.end(),
              whole.begin() + static_cast<std::ptrdiff_t>(replica.offset(layer)));
  });
  return whole;
}

/// Central differences of the mean loss, `step` wide to both sides.
double slope(Replica& replica, std::size_t i, double step, double samples, const Batch& batch) {
  const float kept = replica.weights()[i];
  const auto loss_at = [&](double x) {
    replica.weights()[i] = static_cast<float>(x);
    return replica.evaluate(batch).loss / samples;
  };
  const double above = loss_at(kept + step), high = replica.weights()[i];
  const double below = loss_at(kept - step), low = replica.weights()[i];
  replica.weights()[i] = kept;
  return (above - below) / (high - low);
}

TEST(Logistic, GradientsAreTheSlopesOfTheLoss) {
  const auto replica = make_logistic(kImages, 1);
  const Batch batch = images(5);
  std::vector<std::size_t> order;
  const auto gradient = gradient_of(*replica, batch, 4, order);
  EXPECT_EQ(order, (std::vector<std::size_t>{1, 0})) << "the last layer comes first";
  for (std::size_t i = 0; i < gradient.size(); ++i)
    EXPECT_NEAR(gradient[i], 4 * slope(*replica, i, 1e-2, 5, batch), 4e-4) << i;
}

TEST(Logistic, LossAndScoreAreThoseOfASoftmax) {
  const auto replica = make_logistic(kImages, 1);
  const Batch batch = images(40);
  const auto w = replica->weights();
  double loss = 0;
  std::uint64_t correct = 0, top5 = 0;
  for (std::size_t i = 0; i < 40; ++i) {
    std::vector<double> logits;
    for (std::int64_t c = 0; c < kImages.classes; ++c) {
      logits.push_back(w[static_cast<std::size_t>(kImages.classes * kPixels + c)]);
      for (std::int64_t k = 0; k < kPixels; ++k) {
        logits.back() += static_cast<double>(w[static_cast<std::size_t>(c * kPixels + k)]) *
                         batch.pixels[i * kPixels + static_cast<std::size_t>(k)];
      }
    }
    const double of_target = logits[static_cast<std::size_t>(batch.targets[i])];
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    loss += std::log(sum) - of_target;
    top5 += std::ranges::count_if(logits, [&](double x) { return x > of_target; }) < 5 ? 1 : 0;
    correct += of_target == *std::max_element(logits.begin(), logits.end()) ? 1 : 0;
  }
  const Score score = replica->evaluate(batch);
  EXPECT_EQ(score.predictions, 40u);
  EXPECT_EQ(score.correct, correct);
  EXPECT_EQ(score.top5, top5);
  EXPECT_TRUE(correct < top5 && top5 < 40) << "the samples say nothing";
  EXPECT_NEAR(score.loss, loss, 1e-5 * loss);
  const double mean = replica->backward(batch, 1, [](std::size_t, std::span<const float>) {});
  EXPECT_NEAR(mean, loss / 40, 1e-5 * loss);
  EXPECT_EQ(replica->trained().correct, correct);
  EXPECT_EQ(replica->trained().predictions, 40u);
}

/// A share of each target goes to all ten classes: the loss is that of the new targets, gradients
/// are its slopes, and a test does not see it.
TEST(Logistic, SmoothedTargetsAreLearnt) {
  const auto replica = make_logistic(kImages, 1);
  Batch batch = images(5);
  const double plain = replica->evaluate(batch).loss;
  double of_all = 0;  // as if each class were the target of a tenth of every sample
  Batch other = batch;
  for (std::int64_t c = 0; c < kImages.classes; ++c) {
    std::ranges::fill(other.targets, c);
    of_all += replica->evaluate(other).loss / kImages.classes;
  }
  batch.smoothing = 0.3;
  const auto loss = [&] {
    return replica->backward(batch, 1, [](std::size_t, std::span<const float>) {});
  };
  EXPECT_NEAR(loss(), (0.7 * plain + 0.3 * of_all) / 5, 1e-5);
  EXPECT_EQ(replica->evaluate(batch).loss, plain);
  std::vector<std::size_t> order;
  const auto gradient = gradient_of(*replica, batch, 1, order);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float kept = replica->weights()[i];
    replica->weights()[i] = kept + 0.01f;
    const double above = loss(), high = replica->weights()[i];
    replica->weights()[i] = kept - 0.01f;
    const double below = loss(), low = replica->weights()[i];
    replica->weights()[i] = kept;
    EXPECT_NEAR(gradient[i], (above - below) / (high - low), 1e-4) << i;
  }
}

/// Pixels so bright that exponentials leave the range of f32.
TEST(Logistic, LargeLogitsStayFinite) {
  const auto replica = make_logistic(kImages, 1);
  Batch batch = images(4);
  for (float& pixel : batch.pixels) pixel *= 1e6f;
  std::vector<std::size_t> order;
  for (const float g : gradient_of(*replica, batch, 1, order)) EXPECT_TRUE(std::isfinite(g));
  EXPECT_TRUE(std::isfinite(replica->evaluate(batch).loss));
}

TEST(Logistic, FirstWeightsAreOfTheSeedAndWithinTheirBound) {
  const auto one = make_logistic(kImages, 1), again = make_logistic(kImages, 1);
  const auto other = make_logistic(kImages, 2);
  EXPECT_TRUE(std::equal(one->weights().begin(), one->weights().end(), again->weights().begin()));
  EXPECT_FALSE(std::equal(one->weights().begin(), one->weights().end(), other->weights().begin()));
  const float bound = 1 / std::sqrt(static_cast<float>(kPixels));
  const auto [least, most] = std::minmax_element(one->weights().begin(), one->weights().end());
  EXPECT_GE(*least, -bound);
  EXPECT_LE(*most, bound);
  EXPECT_LT(*least, -0.8f * bound);  // 70 draws: missed with probability 0.9^70
  EXPECT_GT(*most, 0.8f * bound);
}

TEST(Quadratic, GradientsAndScoresAreThoseOfTheMean) {
  const auto replica = make_quadratic({1, 2, {3, -2}});
  Batch batch;
  batch.curvatures = {1, 2, 3, 4};  // two samples; their mean is 2, 3
  batch.pulls = {1, 0, -1, 6};      // 0, 3
  std::vector<std::size_t> order;
  EXPECT_EQ(gradient_of(*replica, batch, 2, order), (std::vector<float>{12, -18}));
  const Score score = replica->evaluate(batch);
  EXPECT_EQ(score.loss, 0.5 * 2 * 9 + 0.5 * 3 * 4 + 3 * 2);
  EXPECT_EQ(score.squared_distance, 9 + 9);  // the optimum is 0, 1
  EXPECT_EQ(score.predictions, 1u);
}

}  // namespace
}  // namespace train
