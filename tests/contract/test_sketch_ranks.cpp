// SPDX-License-Identifier: Apache-2.0
/// The ranks of a model's sketches follow from the steps before: the rule, what a model does with
/// it, and that estimates stay unbiased.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "price/sketch_rank.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

using price::RankState;

TEST(SketchRank, FollowsThePairsInUse) {
  std::vector<double> amplitudes(64, 0.0);
  const auto after = [&](std::size_t used, std::size_t rank) {
    std::fill(amplitudes.begin(), amplitudes.end(), 0.0);
    std::fill_n(amplitudes.begin(), used, 2 * price::kUsedPair);
    return static_cast<int>(price::after_sketch(amplitudes, 2.0, rank).rank);
  };
  EXPECT_EQ(after(0, 64), 16);
  EXPECT_EQ(after(6, 64), 16);
  EXPECT_EQ(after(7, 64), 24);
  EXPECT_EQ(after(40, 64), 56);
  EXPECT_EQ(after(54, 64), 64);
  // More than it looked for might be in use: twice as many are looked for.
  EXPECT_EQ(after(55, 64), 128);
  EXPECT_EQ(after(6, 16), 16);
  EXPECT_EQ(after(7, 16), 32);
  EXPECT_EQ(after(0, 4), 8);
}

TEST(SketchRank, IsTriedAgainNowAndThen) {
  RankState state;
  state = price::without_sketch(state);
  EXPECT_EQ(state, (RankState{0, price::kRankWait}));
  for (int step = 0; step + 1 < price::kRankWait; ++step) {
    state = price::without_sketch(state);
    EXPECT_EQ(state.rank, 0) << step;
  }
  EXPECT_EQ(price::without_sketch(state), RankState{});
  EXPECT_EQ(price::without_sketch({24, 0}), RankState{});
}

TEST(SketchRank, IsSavedInTwoBytes) {
  for (const RankState state : {RankState{}, RankState{0, price::kRankWait}, RankState{0, 1},
                                RankState{8, 0}, RankState{256, 0}, RankState{512, 0}})
    EXPECT_EQ(RankState::of_saved(state.saved()), state);
}

/// One matrix and what a model makes of it, step after step.
class OneLayer {
 public:
  OneLayer(const char* policy, const Shape& shape)
      : shape_(shape), model_({{"layer", shape}}, Policy::parse(policy)) {}

  std::vector<std::byte> encode(const std::vector<float>& x, const Key& key) {
    std::vector<std::byte> workspace(model_.encode_workspace_bytes()),
        bytes(model_.max_encoded_bytes());
    std::uint64_t used = 0;
    const ConstTensorView view{x.data(), DType::f32, shape_};
    const Status s = model_.encode({&view, 1}, key, {bytes.data(), bytes.size(), &used},
                                   {.workspace = workspace});
    EXPECT_FALSE(failed(s)) << describe(s);
    bytes.resize(used);
    return bytes;
  }
  std::vector<float> decode(ConstBytes message) {
    std::vector<float> y(shape_.elements());
    std::vector<std::byte> workspace(model_.decode_workspace_bytes());
    const TensorView view{y.data(), DType::f32, shape_};
    EXPECT_FALSE(failed(model_.decode(message, {&view, 1}, {.workspace = workspace})));
    return y;
  }
  /// In use from the next step on; -1 where there is none to learn.
  int rank() {
    const auto state = model_.save();
    if (state.size() == 80) return -1;
    std::uint16_t word = 0;
    std::memcpy(&word, state.data() + 80, sizeof word);
    return RankState::of_saved(word).rank;
  }
  Compressor& model() { return model_; }

 private:
  Shape shape_;
  Compressor model_;
};

/// Rank 3, and noise of a thousandth.
std::vector<float> nearly_rank_3(const Shape& shape, std::uint64_t seed) {
  const MatrixShape view = format::matrix_view(shape);
  auto x = test::gaussian_matrix(view, 1, seed, 3);
  const auto noise = test::gaussian_matrix(view, 1e-3, seed + 1);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += noise[i];
  return x;
}

TEST(SketchRank, ALayerThatNeedsFewPairsLooksForFew) {
  const Shape shape{96, 200};
  const auto x = nearly_rank_3(shape, 1);
  for (const char* policy : {"*=atomo:bits=0.5", "*=atomo:bits=0.5,atoms=sketch"}) {
    OneLayer layer(policy, shape);
    EXPECT_EQ(layer.rank(), RankState::kAll) << policy;
    for (std::uint32_t step = 0; step < 3; ++step) (void)layer.encode(x, {.step = step});
    EXPECT_EQ(layer.rank(), 16) << policy;
    // A gradient that has use for more gets more: as many as a model that began with all of them.
    const auto many = test::gaussian_matrix(format::matrix_view(shape), 1, 9, 40);
    OneLayer fresh(policy, shape);
    for (std::uint32_t step = 3; step < 9; ++step) {
      (void)layer.encode(many, {.step = step});
      (void)fresh.encode(many, {.step = step});
    }
    EXPECT_GT(layer.rank(), 16) << policy;
    EXPECT_EQ(layer.rank(), fresh.rank()) << policy;
  }
  OneLayer fixed("*=atomo:bits=0.5,rank=24", shape), rows("*=atomo:bits=0.5,atoms=rows", shape);
  (void)fixed.encode(x, {});
  EXPECT_EQ(fixed.rank(), -1);
  EXPECT_EQ(rows.rank(), -1);
}

/// White noise is sent as blocks or rows: no sketch is tried for a while.
TEST(SketchRank, ALayerWithoutASketchTriesNone) {
  const Shape shape{64, 300};
  const auto noise = test::gaussian_matrix(format::matrix_view(shape), 1, 3);
  OneLayer layer("*=atomo:bits=2", shape);
  (void)layer.encode(noise, {});
  EXPECT_EQ(layer.rank(), 0);
  for (std::uint32_t step = 1; step < price::kRankWait; ++step) {
    (void)layer.encode(noise, {.step = step});
    EXPECT_EQ(layer.rank(), 0) << step;
  }
  (void)layer.encode(noise, {.step = price::kRankWait});
  EXPECT_EQ(layer.rank(), RankState::kAll);
}

/// The same input, key and history give the same bytes, also across a save; and another history may
/// not.
TEST(SketchRank, HistoryAndInputMakeTheMessage) {
  const Shape shape{96, 200};
  OneLayer first("*=atomo:bits=0.5", shape), again("*=atomo:bits=0.5", shape);
  for (std::uint32_t step = 0; step < 4; ++step) {
    const auto x = nearly_rank_3(shape, 10 + step);
    ASSERT_EQ(first.encode(x, {.step = step}), again.encode(x, {.step = step})) << step;
  }
  OneLayer resumed("*=atomo:bits=0.5", shape), fresh("*=atomo:bits=0.5", shape);
  resumed.model().load(first.model().save());
  const auto x = nearly_rank_3(shape, 20);
  const auto expected = first.encode(x, {.step = 4});
  EXPECT_EQ(resumed.encode(x, {.step = 4}), expected);
  EXPECT_NE(fresh.encode(x, {.step = 4}), expected);
}

/// A model of other layers takes the prices of a saved state, and begins with all pairs.
TEST(SketchRank, StatesOfOtherLayersBeginAnew) {
  const Shape shape{96, 200};
  OneLayer layer("*=atomo:bits=0.5", shape);
  for (std::uint32_t step = 0; step < 3; ++step)
    (void)layer.encode(nearly_rank_3(shape, step), {.step = step});
  const auto state = layer.model().save();
  Compressor two({{"a", shape}, {"b", shape}}, Policy::parse("*=atomo:bits=0.5"));
  two.load(state);
  EXPECT_EQ(two.predicted_prices().atoms, layer.model().predicted_prices().atoms);
  auto damaged = state;
  damaged[72] = std::byte{9};  // more ranks than there are
  EXPECT_THROW(two.load(damaged), Error);
  damaged = state;
  damaged[79] = std::byte{0xFF};
  EXPECT_THROW(two.load(damaged), Error);
}

/// The mean over fresh draws after a history is the gradient: each entry, at a family error of 1e-9
/// by Bernstein's bound with the largest error seen as its range.
TEST(SketchRank, ALearntRankIsUnbiased) {
  const Shape shape{40, 72};
  const auto x = nearly_rank_3(shape, 30);
  constexpr std::uint32_t kDraws = 4000;
  std::vector<double> sum(x.size()), squares(x.size()), largest(x.size());
  OneLayer layer("*=atomo:bits=0.5", shape);
  for (std::uint32_t step = 0; step < 3; ++step) (void)layer.encode(x, {.step = step});
  ASSERT_EQ(layer.rank(), 16);
  const auto history = layer.model().save();
  for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
    layer.model().load(history);
    const auto y = layer.decode(layer.encode(x, {.seed = 1 + draw, .step = 9}));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = static_cast<double>(y[i]) - static_cast<double>(x[i]);
      sum[i] += error;
      squares[i] += error * error;
      largest[i] = std::max(largest[i], std::fabs(error));
    }
  }
  const double logarithm = std::log(2 * static_cast<double>(x.size()) / 1e-9);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double bound = std::sqrt(2 * squares[i] * logarithm) + largest[i] * logarithm;
    EXPECT_LE(std::fabs(sum[i]), bound) << i;
  }
}

}  // namespace
}  // namespace atomo
