// SPDX-License-Identifier: Apache-2.0
/// A whole message whose layers come one by one has the bytes of one whose layers come together,
/// and teaches the model the same.
#include <gtest/gtest.h>

#include <thread>

#include "atomo/thread_pool.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

const std::vector<LayerSpec> kLayers{{"conv.weight", {20, 3, 5, 5}},
                                     {"conv.bias", {20}},
                                     {"fc.weight", {96, 200}},
                                     {"none", {0, 4}},
                                     {"fc.bias", {96}}};

/// Gradients of a step; the last step's bias is not finite.
std::vector<std::vector<float>> gradients_of(std::uint32_t step) {
  std::vector<std::vector<float>> values;
  for (const LayerSpec& layer : kLayers)
    values.push_back(test::heavy_tailed(layer.shape.elements(), 10 * step + values.size(), 40));
  if (step == 2) values[1][7] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

std::vector<ConstTensorView> views_of(const std::vector<std::vector<float>>& values) {
  std::vector<ConstTensorView> views;
  for (std::size_t i = 0; i < values.size(); ++i)
    views.push_back({values[i].data(), DType::f32, kLayers[i].shape});
  return views;
}

/// A model and what its calls need.
struct Sender {
  explicit Sender(const std::string& policy)
      : model(kLayers, Policy::parse(policy)),
        workspace(test::workspace_bytes(model)),
        bytes(model.max_encoded_bytes()) {}

  Payload payload() { return {bytes.data(), bytes.size(), &length}; }
  test::Message message(Status status) {
    return {status, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)}};
  }
  test::Message together(std::uint32_t step) {
    const auto values = gradients_of(step);
    return message(model.encode(views_of(values), {.seed = 4, .step = step}, payload(),
                                {.workspace = workspace}));
  }
  /// The last layer comes first; `threads` of them at once, which share an executor with the end.
  test::Message one_by_one(std::uint32_t step, std::size_t threads) {
    const auto values = gradients_of(step);
    const auto views = views_of(values);
    ThreadPool pool(2);
    Status status =
        model.begin_message({.seed = 4, .step = step}, payload(), {.workspace = workspace});
    std::vector<std::thread> adding;
    for (std::size_t t = 0; t < threads; ++t) {
      adding.emplace_back([&, t] {
        for (std::size_t k = t; k < views.size(); k += threads) {
          const std::size_t i = views.size() - 1 - k;
          EXPECT_FALSE(
              failed(model.add_layer(i, views[i], {.executor = t == 0 ? &pool : nullptr})));
        }
      });
    }
    for (auto& thread : adding) thread.join();
    status |= model.end_message({.executor = &pool});
    return message(status);
  }

  Compressor model;
  std::vector<std::byte> workspace, bytes;
  std::uint64_t length = 0;
};

std::vector<std::string> policies() {
  std::vector<std::string> all;
  for (const std::string& spec : test::all_specs()) all.push_back("*=" + spec);
  all.insert(all.end(),
             {"*=atomo:bits=3.2,cap=3.2", "*.bias=identity;fc*=qsgd:bits=4;*=atomo:bits=0.5",
              "conv*=atomo:bits=2;fc.w*=atomo:bits=1,atoms=coordinate;*=topk:keep=0.1+blosc"});
  return all;
}

class EveryPolicy : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, testing::ValuesIn(policies()),
                         [](const auto& made) { return std::to_string(made.index); });

TEST_P(EveryPolicy, HasTheBytesOfEncode) {
  Sender together(GetParam()), alone(GetParam()), shared(GetParam());
  for (std::uint32_t step = 0; step < 3; ++step) {
    const auto expected = together.together(step);
    ASSERT_FALSE(failed(expected.status)) << GetParam();
    for (const auto& found : {alone.one_by_one(step, 1), shared.one_by_one(step, 2)}) {
      EXPECT_EQ(found.status, expected.status) << GetParam() << " step " << step;
      ASSERT_TRUE(found.bytes == expected.bytes) << GetParam() << " step " << step;
    }
    EXPECT_TRUE(alone.model.save() == together.model.save()) << GetParam();
  }
}

TEST(LayersOfMessage, CallsOutOfOrderAreRefused) {
  const auto values = gradients_of(0);
  const auto views = views_of(values);
  Sender sender("*=atomo:bits=1");
  Compressor& model = sender.model;
  const Context context{.workspace = sender.workspace};
  EXPECT_EQ(model.add_layer(0, views[0], {}), Status::wrong_stage);
  EXPECT_EQ(model.end_message(), Status::wrong_stage);
  EXPECT_EQ(model.begin_message({.tensor = 1}, sender.payload(), context),
            Status::invalid_argument);
  const Key of_layer{.tensor = 1};
  EXPECT_EQ(
      model.encode(views, {}, sender.payload(), {.workspace = sender.workspace, .key = &of_layer}),
      Status::invalid_argument);
  EXPECT_EQ(model.begin_message({}, sender.payload(), {}), Status::workspace_too_small);
  ASSERT_EQ(model.begin_message({}, sender.payload(), context), Status::ok);
  EXPECT_EQ(model.begin_message({}, sender.payload(), context), Status::wrong_stage);
  EXPECT_EQ(model.encode(views, {}, sender.payload(), context), Status::wrong_stage);
  EXPECT_EQ(model.begin_step({}), Status::wrong_stage);
  EXPECT_EQ(model.add_layer(99, views[0], {}), Status::shape_mismatch);
  EXPECT_EQ(model.end_message(), Status::wrong_stage) << "no layer was added";
  ASSERT_EQ(model.begin_message({}, sender.payload(), context), Status::ok);
  for (std::size_t i = 0; i < views.size(); ++i)
    EXPECT_FALSE(failed(model.add_layer(i, views[i == 1 ? 0 : i], {})) != (i == 1));
  EXPECT_EQ(model.end_message(), Status::shape_mismatch) << "a layer was refused";
  ASSERT_EQ(model.begin_step({}), Status::ok);
  EXPECT_EQ(model.begin_message({}, sender.payload(), context), Status::wrong_stage);
  EXPECT_EQ(model.encode(views, {}, sender.payload(), context), Status::wrong_stage);
  EXPECT_EQ(model.part(0, 1).begin_message({}, sender.payload(), context), Status::wrong_stage);
}

}  // namespace
}  // namespace atomo
