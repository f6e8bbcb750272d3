// SPDX-License-Identifier: Apache-2.0
/// `wire_bytes`: no message is longer, and a buffer of so many bytes, whatever stands behind the
/// message in it, decodes to the values of the message alone.
#include <gtest/gtest.h>

#include <limits>

#include "codec/layer.hpp"
#include "support/device_model.hpp"

namespace atomo {

using namespace model;
namespace {

class WireBytes : public testing::TestWithParam<std::string> {};

std::vector<std::string> specs() {
  std::vector<std::string> all = test::all_specs();
  for (const char* atoms : {"auto", "rows", "blocks", "sketch"})
    all.push_back(std::string("atomo:bits=1,cap=1.2,atoms=") + atoms);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Specs, WireBytes, testing::ValuesIn(specs()), [](const auto& made) {
  std::string name;
  for (const char c : made.param)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

/// Gradients that take about their budget, that take as much as they can, and that decode to NaN.
std::vector<std::vector<float>> gradients_of(std::size_t n) {
  std::vector<std::vector<float>> all{test::heavy_tailed(n, 3, 50), std::vector<float>(n)};
  for (std::size_t i = 0; i < n; ++i) all[1][i] = i % 2 == 0 ? 0.01f : -0.01f;
  all.push_back(all[0]);
  all[2][n / 2] = std::numeric_limits<float>::quiet_NaN();
  return all;
}

TEST_P(WireBytes, HoldEveryMessageOfACodecAndAnythingBehindIt) {
  const Codec codec = Codec::parse(GetParam());
  // A cap has to leave room for a run of atoms, some 4 KiB.
  const std::int64_t scale = GetParam().find("cap=") == std::string::npos ? 1 : 10;
  for (const Shape& shape : {Shape{100, 50 * scale}, Shape{4099 * scale}, Shape{1500 * scale, 3}}) {
    const auto wire = codec.wire_bytes(shape);
    ASSERT_EQ(wire.has_value(), codec.traits().bounded);
    if (!wire) return;
    for (const auto& x : gradients_of(shape.elements())) {
      for (std::uint32_t step = 0; step < 2; ++step) {
        const auto m = test::encode(codec, x, shape, {.seed = 1, .step = step});
        ASSERT_FALSE(failed(m.status));
        ASSERT_LE(m.bytes.size(), *wire);
        std::vector<std::byte> sent(m.bytes);
        sent.resize(*wire, std::byte{0xEE});
        const auto alone = test::decode(codec, m.bytes, shape),
                   with_garbage = test::decode(codec, sent, shape);
        ASSERT_EQ(with_garbage.status, alone.status);
        ASSERT_EQ(std::memcmp(alone.values.data(), with_garbage.values.data(), 4 * x.size()), 0);
      }
    }
  }
}

/// Layers of which some have no entries, and some a codec of a fixed size.
const std::vector<LayerSpec> kLayers{{"a", {200, 100}}, {"none", {0, 5}},   {"b", {20000}},
                                     {"a.bias", {30}},  {"c", {20, 20, 9}}, {"b.bias", {4000}}};

/// Encodes and decodes whole messages in buffers of `wire_bytes`.
void expect_messages_fit(const std::string& policy) {
  SCOPED_TRACE(policy);
  Compressor model(kLayers, Policy::parse(policy), {.device = test::kDevice});
  const auto wire = model.wire_bytes();
  ASSERT_TRUE(wire.has_value());
  ASSERT_LE(*wire, model.max_encoded_bytes());
  if (test::kDevice == Device::cuda) {
    EXPECT_EQ(*wire, model.max_encoded_bytes());
  }
  std::size_t longest = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    test::Gradients gradients(kLayers, seed);
    for (auto& x : gradients.values()) {
      if (seed == 1 && !x.empty()) x[0] = std::numeric_limits<float>::infinity();
      for (std::size_t i = 0; i < x.size() && seed >= 3; ++i) x[i] = i % 2 == 0 ? 1.0f : -1.0f;
    }
    gradients.upload();
    const test::ModelBuffers buffers(model);
    buffers.payload.fill(0xEE);
    ASSERT_FALSE(failed(
        model.encode(gradients.views(), {.seed = seed}, buffers.target(), buffers.context())));
    const std::vector<std::byte> message = buffers.message().bytes;
    ASSERT_FALSE(message.empty());
    ASSERT_LE(message.size(), *wire);
    longest = std::max(longest, message.size());

    std::vector<std::byte> values[2];
    for (const bool padded : {false, true}) {
      const test::Memory sent(padded ? *wire : message.size());
      sent.fill(0xA7);
      sent.put(message);
      ASSERT_FALSE(failed(model.decode(sent.bytes(), gradients.targets(), buffers.context())));
      buffers.stream.wait();
      ASSERT_FALSE(failed(buffers.status.get()));
      values[padded ? 1 : 0] = gradients.download();
    }
    EXPECT_TRUE(values[0] == values[1]) << "seed " << seed;
  }
  // Gradients of one magnitude fill what there is: a size above theirs would be no tight one.
  EXPECT_GT(static_cast<double>(longest), 0.75 * static_cast<double>(*wire));
}

TEST(WireBytesOfModels, HoldEveryMessageAndAnythingBehindIt) {
  expect_messages_fit("*=qsgd:bits=4");
  expect_messages_fit("*=atomo:bits=2,cap=2.2,atoms=blocks");
  expect_messages_fit("*=atomo:bits=4,cap=4,atoms=rows");
  expect_messages_fit("*=atomo:bits=2,cap=2.5");
  expect_messages_fit("*.bias=identity; *=atomo:bits=2,cap=2.2");
  expect_messages_fit("*.bias=sign; c=terngrad; *=atomo:bits=2,cap=2.2");
}

/// What a captured step reads from the memory of the tensors.
TEST(KeysOfModels, MayStandInMemory) {
  Compressor model(kLayers, Policy::parse("*=qsgd:bits=4"), {.device = test::kDevice});
  const test::Gradients gradients(kLayers);
  const Key key{.seed = 5, .step = 6, .worker = 8, .channel = 9};
  const test::Word<Key> word(key);
  const test::Word<std::uint32_t> step(7);
  std::vector<std::vector<std::byte>> messages;
  for (const bool in_memory : {false, true}) {
    const test::ModelBuffers buffers(model);
    Context context = buffers.context();
    context.key = in_memory ? word.data() : nullptr;
    context.step = step.data();
    ASSERT_FALSE(failed(
        model.encode(gradients.views(), in_memory ? Key{} : key, buffers.target(), context)));
    messages.push_back(buffers.message().bytes);
  }
  EXPECT_FALSE(messages[0].empty());
  EXPECT_TRUE(messages[0] == messages[1]);
}

/// A cap that no message could reach counts for no more than the longest messages.
TEST(WireBytesOfModels, AreAtMostWhatMessagesWithoutACapMayTake) {
  const Compressor loose(kLayers, Policy::parse("*=atomo:bits=2,cap=64"));
  EXPECT_EQ(loose.wire_bytes(), loose.max_encoded_bytes());
}

TEST(WireBytesOfModels, AreNothingWhereALayerHasNoBound) {
  for (const char* policy : {"*=atomo:bits=1", "*=topk:keep=0.1", "a=atomo:bits=1; *=qsgd"})
    EXPECT_EQ(Compressor(kLayers, Policy::parse(policy)).wire_bytes(), std::nullopt) << policy;
  const Compressor empty({{"none", {0, 5}}}, Policy::parse("*=atomo:bits=1"));
  EXPECT_TRUE(empty.wire_bytes().has_value());  // layers without entries send nothing
}

#ifndef ATOMO_TEST_CUDA
/// A lossless stage makes no message longer.
TEST(WireBytesOfModels, ALosslessStageKeepsThem) {
  const Compressor packed(kLayers, Policy::parse("*=qsgd:bits=4+blosc"));
  EXPECT_EQ(packed.wire_bytes(), Compressor(kLayers, Policy::parse("*=qsgd:bits=4")).wire_bytes());
  EXPECT_FALSE(Codec::parse("qsgd:bits=4+blosc").traits().fixed_size);
}
#endif

}  // namespace
}  // namespace atomo
