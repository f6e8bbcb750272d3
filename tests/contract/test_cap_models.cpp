// SPDX-License-Identifier: Apache-2.0
/// `cap=` of models: what it costs, which layers it leaves out, that nothing exceeds it.
#include <gtest/gtest.h>

#include <cmath>

#include "codec/layer.hpp"
#include "price/allotment.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

/// Whole messages of a model on the CPU, and what they decode to.
class WholeMessages {
 public:
  std::vector<std::byte> message;
  std::vector<float> decoded;  ///< all layers

  WholeMessages(Compressor& model, const std::vector<ConstTensorView>& views)
      : model_(model),
        views_(views),
        buffer_(model.max_encoded_bytes()),
        workspace_(test::workspace_bytes(model)) {
    std::size_t n = 0;
    for (const auto& view : views) n += view.shape.elements();
    decoded.resize(n);
    for (std::size_t i = 0, at = 0; i < views.size(); at += views[i++].shape.elements())
      targets_.push_back({decoded.data() + at, DType::f32, views[i].shape});
  }
  double squared_error(const Key& key) {
    std::uint64_t used = 0;
    const Context context{.workspace = workspace_};
    EXPECT_FALSE(
        failed(model_.encode(views_, key, {buffer_.data(), buffer_.size(), &used}, context)));
    message.assign(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(used));
    EXPECT_EQ(model_.decode(message, targets_, context), Status::ok);
    double error = 0;
    std::size_t at = 0;
    for (const auto& view : views_) {
      const auto* x = static_cast<const float*>(view.data);
      for (std::size_t i = 0; i < view.shape.elements(); ++i, ++at)
        error += (double{decoded[at]} - x[i]) * (double{decoded[at]} - x[i]);
    }
    return error;
  }

 private:
  Compressor& model_;
  const std::vector<ConstTensorView>& views_;
  std::vector<TensorView> targets_;
  std::vector<std::byte> buffer_, workspace_;
};

/// Squared error of whole messages of the real gradient, over its energy.
double relative_error(const test::RealGradient& model, const std::string& policy) {
  Compressor compressor(model.specs, Policy::parse(policy));
  WholeMessages whole(compressor, model.views);
  double error = 0;
  constexpr std::uint32_t kDraws = 4;
  for (std::uint32_t step = 0; step < kDraws; ++step) error += whole.squared_error({.step = step});
  return error / kDraws / test::squared_norm(model.joined());
}

/// A tenth above the budget is room enough: nothing is left out that a message without a cap has.
TEST(CapOfModels, ATenthAboveTheBudgetCostsNothing) {
  const test::RealGradient model;
  for (const char* atoms : {"auto", "rows"}) {
    for (const auto& [bits, cap] : {std::pair{"0.25", "0.275"}, {"0.5", "0.55"}, {"1", "1.1"}}) {
      const std::string rest = std::string(",atoms=") + atoms;
      const double without = relative_error(model, "*=atomo:bits=" + std::string(bits) + rest);
      const double with = relative_error(
          model, "*=atomo:bits=" + std::string(bits) + ",cap=" + std::string(cap) + rest);
      EXPECT_LT(with, 1.1 * without) << atoms << " at " << bits;
    }
  }
}

/// Squared error of steps layer by layer, over the energy, from the third step on.
double streamed_error(const test::RealGradient& model, const std::string& policy) {
  Compressor compressor(model.specs, Policy::parse(policy));
  std::vector<std::byte> bytes(compressor.max_encoded_bytes()),
      workspace(test::workspace_bytes(compressor));
  std::uint64_t used = 0;
  double error = 0;
  constexpr std::uint32_t kSteps = 12, kFirst = 4;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(compressor.begin_step({.step = step}), Status::ok);
    for (std::size_t i = 0; i < model.views.size(); ++i) {
      std::vector<float> y(model.values[i].size());
      EXPECT_FALSE(failed(compressor.encode_layer(
          i, model.views[i], {bytes.data(), bytes.size(), &used}, {.workspace = workspace})));
      EXPECT_EQ(compressor.decode_layer(i, ConstBytes(bytes).first(used),
                                        {y.data(), DType::f32, model.specs[i].shape},
                                        {.workspace = workspace}),
                Status::ok);
      if (step >= kFirst)
        error += test::nmse(model.values[i], y) * test::squared_norm(model.values[i]);
    }
    EXPECT_FALSE(failed(compressor.end_step()));
  }
  return error / (kSteps - kFirst) / test::squared_norm(model.joined());
}

/// Bits a parameter that a step layer by layer keeps aside: what one run of any layer may need.
double reserve_bits(const test::RealGradient& model, const std::string& atoms) {
  const Codec codec = Codec::parse("atomo:bits=1,cap=64,atoms=" + atoms);
  std::size_t most = 0;
  for (const auto& layer : model.specs) {
    const codec::EncoderPlan plan(codec::Access::stages(codec), layer.shape, DType::f32);
    most = std::max(most, plan.min_limit_bytes);
  }
  return 8.0 * static_cast<double>(most) / static_cast<double>(model.elements);
}

/// Layer by layer a tenth above the budget, as for whole messages, and the reserve.
TEST(CapOfModels, RoomForAReserveSufficesLayerByLayer) {
  const test::RealGradient model;
  for (const std::string atoms : {"auto", "rows"}) {
    for (const double bits : {0.25, 0.5, 1.0}) {
      const double cap = 1.1 * bits + reserve_bits(model, atoms);
      const std::string budget = "*=atomo:bits=" + std::to_string(bits);
      const double without = streamed_error(model, budget + ",atoms=" + atoms);
      const double with =
          streamed_error(model, budget + ",cap=" + std::to_string(cap) + ",atoms=" + atoms);
      std::printf("[ cap      ] %s at %g, cap %.3f: error %.4g, %.4g without a cap\n",
                  atoms.c_str(), bits, cap, with, without);
      EXPECT_LT(with, 1.1 * without) << atoms << " at " << bits;
    }
  }
}

/// Layers as a transformer has them, many of them short.
TEST(CapOfModels, LayersOfATransformerAreAccepted) {
  std::vector<LayerSpec> specs{{"embedding", {65, 256}}, {"head", {65, 256}}};
  for (int block = 0; block < 4; ++block) {
    const std::string name = std::to_string(block);
    specs.insert(specs.end(), {{name + ".norm", {256}},
                               {name + ".attention", {768, 256}},
                               {name + ".out", {256, 256}},
                               {name + ".up", {1024, 256}},
                               {name + ".down", {256, 1024}},
                               {name + ".bias", {256}}});
  }
  for (const char* policy : {"*=atomo:bits=0.25,cap=0.3", "*=atomo:bits=0.1,cap=0.11"})
    EXPECT_NO_THROW(Compressor(specs, Policy::parse(policy))) << policy;
}

/// Layers of one run each: what does not fit is made up for by leaving whole layers out.
class CapOfShortLayers : public testing::Test {
 protected:
  static constexpr std::size_t kLayers = 40, kEntries = 200;
  std::vector<LayerSpec> specs;
  std::vector<std::vector<float>> values;
  std::vector<ConstTensorView> views;

  CapOfShortLayers() {
    for (std::size_t i = 0; i < kLayers; ++i) {
      specs.push_back({"layer" + std::to_string(i), {static_cast<std::int64_t>(kEntries)}});
      auto& x = values.emplace_back(test::heavy_tailed(kEntries, i + 1, 16));
      // Of one magnitude: content takes more than is expected.
      for (float& v : x) v = std::copysign(0.01f * static_cast<float>(1 + i % 3), v);
    }
    for (std::size_t i = 0; i < kLayers; ++i)
      views.push_back({values[i].data(), DType::f32, specs[i].shape});
  }
};

/// Their messages one by one are longer than the cap, for their heads.
TEST_F(CapOfShortLayers, HeadsMayLeaveNoRoomLayerByLayer) {
  Compressor model(specs, Policy::parse("*=atomo:bits=3,cap=3,atoms=blocks"));
  EXPECT_EQ(model.begin_step({}), Status::unsupported);
}

TEST_F(CapOfShortLayers, LeavingLayersOutIsUnbiased) {
  constexpr double kCap = 3;
  Compressor model(specs, Policy::parse("*=atomo:bits=3,cap=3,atoms=blocks"));
  WholeMessages whole(model, views);
  const auto limit = static_cast<std::size_t>(kCap * kLayers * kEntries / 8);
  std::vector<double> sum(kLayers * kEntries), square(sum.size());
  int bound = 0;
  double along = 0, along_square = 0, ungained = 0;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    whole.squared_error({.seed = 5, .step = step});
    ASSERT_LE(whole.message.size(), limit);
    ContainerInfo info;
    ASSERT_EQ(inspect(whole.message, info, true), Status::ok);
    std::size_t left_out = 0;
    for (const auto& layer : info.layers) left_out += layer.bytes == 0 ? 1 : 0;
    bound += left_out > 0 ? 1 : 0;
    const format::Runs runs = price::runs_of_layers(kLayers);
    double dot = 0, energy = 0;
    for (std::size_t k = 0; k < sum.size(); ++k) {
      const double x = values[k / kEntries][k % kEntries], e = whole.decoded[k] - x;
      sum[k] += e;
      square[k] += e * e;
      dot += e * x;
      energy += x * x;
    }
    dot /= energy;
    along += dot;
    along_square += dot * dot;
    const double kept = 1 - static_cast<double>(left_out) / kLayers;
    ungained += (1 + dot) * kept - 1;
    ASSERT_LE(left_out, kLayers - kLayers / runs.count());
  }
  double largest = 0;
  for (std::size_t k = 0; k < sum.size(); ++k)
    largest = std::max(largest, std::fabs(sum[k]) / std::sqrt(square[k]));
  const double error = std::sqrt(along_square);
  std::printf(
      "[ bias     ] layers left out in %d of 2000, largest z %.2f; along the gradient "
      "%.2f, without the gain %.2f\n",
      bound, largest, along / error, ungained / error);
  EXPECT_GT(bound, 500);
  EXPECT_LT(largest, 8.1);
  EXPECT_LT(std::fabs(along) / error, 6.2);
  EXPECT_GT(std::fabs(ungained) / error, 6.2) << "the mutant without the gain must be seen";
}

/// Of layers that come alone each has the reserve in one of as many steps, and no two in one.
TEST(CapOfModels, TheReserveIsOneLayersAtATime) {
  constexpr std::uint32_t kSteps = 40000;
  for (const std::size_t layers : {1u, 5u, 8u}) {
    const price::StreamedCap cap{8, 100, price::layers_log2(layers)};
    std::vector<double> gains(layers);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      std::size_t chosen = 0;
      for (std::size_t i = 0; i < layers; ++i) {
        const Key key{.seed = 7, .step = step, .tensor = static_cast<std::uint16_t>(i)};
        EXPECT_EQ(price::allot_streamed({50, 8, false}, cap, key).gain, 1);
        const price::Allotment allotted = price::allot_streamed({50, 12, false}, cap, key);
        EXPECT_EQ(allotted.limit, 108u);
        gains[i] += static_cast<double>(allotted.gain);
        chosen += allotted.gain > 0 ? 1 : 0;
      }
      ASSERT_LE(chosen, 1u);
    }
    for (const double gain : gains) EXPECT_NEAR(gain / kSteps, 1, 6 * std::sqrt(8.0 / kSteps));
  }
}

/// A few huge entries where nobody expects them, and a jump between steps.
TEST(CapOfModels, AdversarialGradientsNeverExceedIt) {
  test::RealGradient model;
  const Policy policy = Policy::parse("*=atomo:bits=0.5,cap=0.505");
  Compressor whole(model.specs, policy), streamed(model.specs, policy);
  const auto limit = static_cast<std::size_t>(0.505 * static_cast<double>(model.elements) / 8);
  std::vector<std::byte> bytes(whole.max_encoded_bytes()), workspace(test::workspace_bytes(whole));
  std::uint64_t used = 0;
  for (std::uint32_t step = 0; step < 40; ++step) {
    for (std::size_t i = 0; i < model.values.size(); ++i) {
      auto& x = model.values[i];
      const float factor = step % 4 == 1 ? 1e4f : step % 4 == 3 ? 1e-4f : 1.0f;
      for (float& v : x) v *= factor;
      if (step % 8 == 6) x[(step * 7) % x.size()] *= 1e6f;
      if (step % 16 == 9 && i % 2 == 1)
        for (std::size_t k = 0; k < x.size(); ++k) x[k] = k % 2 == 0 ? 1e5f : -1e5f;
    }
    ASSERT_FALSE(
        failed(whole.encode(model.views, {.step = step}, {bytes.data(), bytes.size(), &used},
                            {.workspace = workspace})));
    ASSERT_LE(used, limit) << "step " << step;
    ASSERT_EQ(streamed.begin_step({.step = step}), Status::ok);
    std::size_t sum = 0;
    for (std::size_t i = 0; i < model.views.size(); ++i) {
      ASSERT_FALSE(failed(streamed.encode_layer(
          i, model.views[i], {bytes.data(), bytes.size(), &used}, {.workspace = workspace})));
      sum += used;
    }
    ASSERT_FALSE(failed(streamed.end_step()));
    ASSERT_LE(sum, limit) << "step " << step;
  }
}

}  // namespace
}  // namespace atomo
