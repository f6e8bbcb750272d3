// SPDX-License-Identifier: Apache-2.0
/// Parts of a model: their messages are those of its streamed layers, joined, and the model learns
/// from them as from these.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "atomo/container.hpp"
#include "atomo/thread_pool.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

const std::vector<LayerSpec> kLayers{{"conv.weight", {20, 3, 5, 5}},
                                     {"conv.bias", {20}},
                                     {"fc.weight", {96, 200}},
                                     {"fc.bias", {96}},
                                     {"none", {0, 4}},
                                     {"out.weight", {2000}}};

std::vector<std::vector<float>> gradients_of(std::uint32_t step) {
  std::vector<std::vector<float>> values;
  for (const LayerSpec& layer : kLayers)
    values.push_back(test::heavy_tailed(layer.shape.elements(), 10 * step + values.size(), 40));
  return values;
}

/// Encodes a step's gradients, and keeps the bytes.
struct Sender {
  explicit Sender(const std::string& policy) : model(kLayers, Policy::parse(policy)) {}

  template <class Encode>
  static std::vector<std::byte> message(std::size_t most, const Encode& encode) {
    std::vector<std::byte> bytes(most);
    std::uint64_t length = 0;
    EXPECT_FALSE(failed(encode(Payload{bytes.data(), bytes.size(), &length})));
    bytes.resize(length);
    return bytes;
  }
  static std::vector<ConstTensorView> views_of(const std::vector<std::vector<float>>& values,
                                               std::size_t first, std::size_t count) {
    std::vector<ConstTensorView> views;
    for (std::size_t i = first; i < first + count; ++i)
      views.push_back({values[i].data(), DType::f32, kLayers[i].shape});
    return views;
  }
  std::vector<std::byte> part(Compressor& of, std::size_t first,
                              const std::vector<std::vector<float>>& values, const Key& key,
                              Executor* executor = nullptr) {
    std::vector<std::byte> workspace(of.encode_workspace_bytes());
    return message(of.max_encoded_bytes(), [&](const Payload& payload) {
      return of.encode(views_of(values, first, of.layers().size()), key, payload,
                       {.workspace = workspace, .executor = executor});
    });
  }
  std::vector<std::byte> joined(std::size_t first, std::size_t count,
                                const std::vector<std::vector<float>>& values) {
    std::vector<std::vector<std::byte>> all;
    for (std::size_t i = first; i < first + count; ++i) {
      std::vector<std::byte> workspace(model.encode_workspace_bytes(i));
      all.push_back(message(model.max_encoded_bytes(i), [&](const Payload& payload) {
        return model.encode_layer(i, views_of(values, i, 1)[0], payload, {.workspace = workspace});
      }));
    }
    const std::vector<ConstBytes> spans(all.begin(), all.end());
    return message(joined_bytes_bound(spans),
                   [&](const Payload& payload) { return join(spans, payload); });
  }

  Compressor model;
};

class Parts : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Policies, Parts,
                         testing::Values("atomo:bits=0.5", "atomo:bits=1,atoms=rows",
                                         "atomo:bits=1,atoms=coordinate", "qsgd:bits=4",
                                         "*.bias=identity; fc*=topk:keep=0.1; *=atomo:bits=1"),
                         [](const auto& made) { return std::to_string(made.index); });

TEST_P(Parts, AreTheLayersJoined) {
  Sender parts(GetParam()), layers(GetParam());
  Compressor first = parts.model.part(0, 3), second = parts.model.part(3, 3);
  ThreadPool pool(2);
  for (std::uint32_t step = 0; step < 5; ++step) {
    const auto values = gradients_of(step);
    const Key key{.seed = 3, .step = step, .worker = 2};
    ASSERT_EQ(parts.model.begin_step(key), Status::ok);
    if (step > 0) {
      ASSERT_EQ(layers.model.begin_step(key), Status::ok);
    }
    const auto b = parts.part(second, 3, values, key, &pool);
    const auto a = parts.part(first, 0, values, key);
    const Status ended = parts.model.end_step();
    if (step == 0) {  // layers have no price in common
      layers.model.load(parts.model.save());
      continue;
    }
    EXPECT_TRUE(a == layers.joined(0, 3, values)) << step;
    EXPECT_TRUE(b == layers.joined(3, 3, values)) << step;
    EXPECT_EQ(layers.model.end_step(), ended) << step;
    EXPECT_TRUE(layers.model.save() == parts.model.save()) << step;
  }
}

TEST(PartsOfAModel, KeepOneBudget) {
  Sender sender("atomo:bits=0.5,atoms=blocks");
  Compressor large = sender.model.part(0, 3), small = sender.model.part(3, 3);
  double sent = 0;
  constexpr std::uint32_t kSteps = 30;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    auto values = gradients_of(step);
    for (float& v : values[5]) v *= 50;  // what one bucket needs the other goes without
    const Key key{.seed = 3, .step = step};
    ASSERT_EQ(sender.model.begin_step(key), Status::ok);
    const auto a = sender.part(large, 0, values, key).size();
    const auto b = sender.part(small, 3, values, key).size();
    ASSERT_FALSE(failed(sender.model.end_step()));
    if (step < 10) continue;
    sent += static_cast<double>(a + b) / (kSteps - 10);
    EXPECT_GT(static_cast<double>(b), 1.5 * small.budget_bytes()) << step;
  }
  EXPECT_LT(sent, sender.model.budget_bytes());
  EXPECT_GT(sent, 0.8 * sender.model.budget_bytes());
}

TEST(PartsOfAModel, AreBoundedByACapEach) {
  Sender sender("out*=atomo:bits=4,cap=30,atoms=blocks; *.bias=sign; *=atomo:bits=6,cap=9");
  Compressor part = sender.model.part(2, 3);
  ASSERT_TRUE(part.wire_bytes());
  for (std::uint32_t step = 0; step < 4; ++step) {
    auto values = gradients_of(step);
    const Key key{.seed = 3, .step = step};
    for (float& v : values[2]) v *= step == 3 ? 1e4f : 1.0f;
    ASSERT_EQ(sender.model.begin_step(key), Status::ok);
    EXPECT_LE(sender.part(part, 2, values, key).size(), *part.wire_bytes());
    ASSERT_FALSE(failed(sender.model.end_step()));
  }
}

TEST(PartsOfAModel, DecodeAtAnyTime) {
  Sender sender("qsgd:bits=8");
  Compressor part = sender.model.part(1, 2);
  const auto values = gradients_of(0);
  ASSERT_EQ(sender.model.begin_step({.seed = 3}), Status::ok);
  const auto message = sender.part(part, 1, values, {.seed = 3});
  ASSERT_FALSE(failed(sender.model.end_step()));
  std::vector<std::vector<float>> out(values.begin() + 1, values.begin() + 3);
  for (auto& x : out) std::fill(x.begin(), x.end(), 0.0f);
  const std::vector<TensorView> views{{out[0].data(), DType::f32, kLayers[1].shape},
                                      {out[1].data(), DType::f32, kLayers[2].shape}};
  std::vector<std::byte> workspace(part.decode_workspace_bytes());
  EXPECT_EQ(part.decode_add(message, 1, views, {.workspace = workspace}), Status::ok);
  ContainerInfo info;
  ASSERT_EQ(inspect(message, info, true), Status::ok);
  EXPECT_EQ(info.key.tensor, 1);
  EXPECT_NEAR(out[1][5], values[2][5], 0.05f * std::abs(values[2][5]) + 0.1f);
}

/// A half is rounded with the same draws whether the message is decoded or added to zeros.
TEST(PartsOfAModel, AreAddedToHalvesAsTheyAreDecoded) {
  Sender sender("qsgd:bits=4");
  Compressor part = sender.model.part(1, 2);
  const auto values = gradients_of(0);
  ASSERT_EQ(sender.model.begin_step({.seed = 3}), Status::ok);
  const auto message = sender.part(part, 1, values, {.seed = 3});
  ASSERT_FALSE(failed(sender.model.end_step()));
  const auto halves = [&](const auto& read) {
    std::vector<std::vector<std::uint16_t>> out{std::vector<std::uint16_t>(values[1].size()),
                                                std::vector<std::uint16_t>(values[2].size())};
    const std::vector<TensorView> views{{out[0].data(), DType::bf16, kLayers[1].shape},
                                        {out[1].data(), DType::bf16, kLayers[2].shape}};
    EXPECT_EQ(read(views), Status::ok);
    return out;
  };
  std::vector<std::byte> workspace(part.decode_workspace_bytes() +
                                   8 * (values[1].size() + values[2].size()));
  const ConstBytes bytes = message;
  const Context context{.workspace = workspace};
  EXPECT_EQ(halves([&](const auto& views) {
              return part.decode_add_all({&bytes, 1}, 1, views, context);
            }),
            halves([&](const auto& views) { return part.decode(bytes, views, context); }));
}

TEST(PartsOfAModel, RefuseWrongCalls) {
  Sender sender("atomo:bits=1");
  Compressor part = sender.model.part(2, 2);
  for (const auto& [first, count] : {std::pair{0u, 0u}, {6u, 1u}, {5u, 2u}, {1u, ~0u}})
    EXPECT_THROW((void)sender.model.part(first, count), Error) << first << " " << count;
  EXPECT_THROW((void)part.part(0, 1), Error);
  EXPECT_THROW((void)part.save(), Error);
  EXPECT_THROW(part.load(sender.model.save()), Error);
  EXPECT_EQ(part.begin_step({}), Status::wrong_stage);
  EXPECT_EQ(part.end_step(), Status::wrong_stage);

  const auto values = gradients_of(0);
  const auto views = Sender::views_of(values, 2, 2);
  std::vector<std::byte> bytes(part.max_encoded_bytes()), workspace(part.encode_workspace_bytes());
  std::uint64_t length = 0;
  const Payload payload{bytes.data(), bytes.size(), &length};
  const Context context{.workspace = workspace};
  const Key key{.seed = 4, .step = 1};
  EXPECT_EQ(part.encode(views, key, payload, context), Status::wrong_stage);
  ASSERT_EQ(sender.model.begin_step(key), Status::ok);
  EXPECT_EQ(part.encode(views, {.seed = 5, .step = 1}, payload, context), Status::invalid_argument);
  EXPECT_EQ(part.encode(views, key, payload, {.workspace = workspace, .key = &key}),
            Status::invalid_argument);
  EXPECT_EQ(part.encode(views, key, payload, context), Status::ok);
  ASSERT_FALSE(failed(sender.model.end_step()));
  EXPECT_EQ(part.encode(views, key, payload, context), Status::wrong_stage);
}

}  // namespace
}  // namespace atomo
