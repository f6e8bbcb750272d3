// SPDX-License-Identifier: Apache-2.0
/// Models with sketches and with layers that choose their form, on a device: the CPU's bytes where
/// no layer has a sketch; elsewhere what the CPU decodes to the same values.
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "support/on_cpu.hpp"

namespace atomo {
namespace {

constexpr CompressorOptions kOnDevice{.device = Device::cuda};

/// Blocks, rows and grids, large and small, but no matrices whose rows are atoms.
std::vector<LayerSpec> layers_without_sketches() {
  return {{"a", {20000}}, {"b", {1, 3000}}, {"c", {3000, 9}},  {"d", {5, 1}},
          {"e", {700}},   {"f", {1, 9000}}, {"g", {40, 5, 3}}, {"h", {0, 4}}};
}

class FormModels : public testing::TestWithParam<const char*> {
 protected:
  std::vector<LayerSpec> specs = layers_without_sketches();
  Compressor on_host{specs, Policy::parse(GetParam())};
  Compressor on_device{specs, Policy::parse(GetParam()), kOnDevice};
  test::Gradients gradients{specs};
  test::ModelBuffers buffers{on_device};

  void compare(const Key& key) {
    const auto expected = test::encode_on_host(on_host, gradients.on_host(), key);
    ASSERT_EQ(on_device.encode(gradients.views(), key, buffers.target(), buffers.context()),
              Status::ok);
    const auto m = buffers.message();
    ASSERT_EQ(m.status, expected.status);
    ASSERT_TRUE(m.bytes == expected.bytes)
        << GetParam() << ": " << m.bytes.size() << ", " << expected.bytes.size();
  }
};
INSTANTIATE_TEST_SUITE_P(
    Policies, FormModels,
    testing::Values("*=atomo:bits=2,atoms=auto",
                    "a=atomo:price=0.01,atoms=auto; e=atomo:bits=1,atoms=coordinate; "
                    "*=atomo:bits=0.5,atoms=auto",
                    "*=atomo:bits=13,cap=13,atoms=auto",
                    "c=atomo:bits=4,atoms=auto; *=atomo:bits=14,cap=14.5,atoms=auto",
                    "a=atomo:bits=6,cap=6,atoms=blocks; *=atomo:bits=20,cap=20,atoms=auto"),
    [](const auto& made) { return std::to_string(made.index); });

TEST_P(FormModels, MessagesAreTheCpus) {
  for (std::uint32_t step = 0; step < 6; ++step)
    ASSERT_NO_FATAL_FAILURE(compare({.seed = 9, .step = step, .worker = 2}));
}

TEST_P(FormModels, WithLayersThatSendNothingOrMostlyZeros) {
  auto& values = gradients.values();
  std::fill(values[1].begin(), values[1].end(), 0.0f);
  values[4][3] = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < values[0].size(); ++i) values[0][i] *= i % 9 == 0 ? 1.0f : 0.0f;
  for (std::size_t i = 0; i < values[5].size(); ++i) values[5][i] *= i % 4 == 0 ? 1.0f : 0.0f;
  gradients.upload();
  for (std::uint32_t step = 0; step < 2; ++step)
    ASSERT_NO_FATAL_FAILURE(compare({.seed = 3, .step = step}));
  for (auto& layer : values) std::fill(layer.begin(), layer.end(), 0.0f);
  gradients.upload();
  ASSERT_NO_FATAL_FAILURE(compare({.seed = 4}));
}

TEST_P(FormModels, GraphsReplay) {
  test::expect_replays_are_the_cpus(on_host, on_device, gradients, buffers);
}

/// The budget up to which a message at the lowest price spends it, and the one from which it does not, lie
/// side by side: what all layers come to there decides, grids with them.
TEST(FormModelsAtTheLowestPrice, SayWhetherTheBudgetIsSpent) {
  const std::vector<LayerSpec> specs = {{"a", {700}}, {"b", {1000}}, {"c", {64}}, {"d", {1500}}};
  test::Gradients gradients(specs);
  for (auto& values : gradients.values()) {  // mostly zeros, so that coordinates take the least
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i % 20 == 0 ? 1.0f : 0.0f;
  }
  gradients.upload();
  const auto policy = [](double bits) {
    return Policy::parse("*=atomo:atoms=auto,bits=" + std::to_string(bits));
  };
  const auto status = [&](double bits) {
    Compressor on_host{specs, policy(bits)};
    return test::encode_on_host(on_host, gradients.on_host(), {}).status;
  };
  double spent = 0.5, unspent = 32;
  ASSERT_EQ(status(spent), Status::ok);
  ASSERT_EQ(status(unspent), Status::underspent);
  while (unspent - spent > 0.01) {
    const double middle = (spent + unspent) / 2;
    (status(middle) == Status::ok ? spent : unspent) = middle;
  }
  for (const double bits : {spent, unspent}) {
    Compressor on_device{specs, policy(bits), kOnDevice};
    const test::ModelBuffers buffers(on_device);
    ASSERT_EQ(on_device.encode(gradients.views(), {}, buffers.target(), buffers.context()),
              Status::ok);
    EXPECT_EQ(buffers.message().status, bits == spent ? Status::ok : Status::underspent) << bits;
  }
}

// ---- with sketches

class SketchModels : public testing::TestWithParam<const char*> {
 protected:
  std::vector<LayerSpec> specs = {{"a.weight", {64, 300}},  {"a.bias", {64}},
                                  {"c.weight", {30, 4000}}, {"d.weight", {500, 40}},
                                  {"d.bias", {500}},        {"e.weight", {128, 129}}};
  Compressor on_host{specs, Policy::parse(GetParam())};
  Compressor on_device{specs, Policy::parse(GetParam()), kOnDevice};
  test::Gradients gradients{specs};
  test::ModelBuffers buffers{on_device};

  std::vector<std::byte> encode(const Key& key) {
    EXPECT_EQ(on_device.encode(gradients.views(), key, buffers.target(), buffers.context()),
              Status::ok);
    const auto m = buffers.message();
    EXPECT_FALSE(failed(m.status));
    return m.bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, SketchModels,
                         testing::Values("*=atomo:bits=1,atoms=sketch",
                                         "*.bias=identity; *=atomo:bits=0.5,atoms=auto",
                                         "*=atomo:bits=14,cap=14,atoms=sketch",
                                         "*=atomo:bits=14,cap=14,atoms=auto"),
                         [](const auto& made) { return std::to_string(made.index); });

TEST_P(SketchModels, TheCpuDecodesThemAlike) {
  std::vector<std::vector<std::byte>> sent;
  std::size_t elements = 0, on_cpu = 0, on_gpu = 0;
  for (const LayerSpec& spec : specs) elements += spec.shape.elements();
  for (std::uint32_t step = 0; step < 4; ++step) {
    sent.push_back(encode({.step = step}));
    on_gpu += sent.back().size();
    on_cpu += test::encode_on_host(on_host, gradients.on_host(), {.step = step}).bytes.size();
    if (std::string(GetParam()).find("cap=14") == std::string::npos) continue;
    EXPECT_LE(static_cast<double>(sent.back().size()), 14 * static_cast<double>(elements) / 8);
  }
  EXPECT_NEAR(static_cast<double>(on_gpu) / static_cast<double>(on_cpu), 1, 0.003);
  test::expect_the_cpus_sums(on_host, on_device, sent, gradients, buffers);
}

/// A capture replays with the step of the device, and what its sketches learn: the same messages as
/// those of a twin.
TEST_P(SketchModels, GraphsReplay) {
  Compressor twin{specs, Policy::parse(GetParam()), kOnDevice};
  const test::ModelBuffers own(twin);
  test::replay_encoding(on_device, gradients, buffers, [&](std::uint32_t step) {
    EXPECT_EQ(
        twin.encode(gradients.views(), {.seed = 4, .step = step}, own.target(), own.context()),
        Status::ok);
    EXPECT_TRUE(buffers.message().bytes == own.message().bytes) << "step " << step;
  });
  EXPECT_EQ(on_device.save(), twin.save());
}

TEST_P(SketchModels, NonFiniteLayersAreLeftOut) {
  gradients.values()[0][7] = std::numeric_limits<float>::quiet_NaN();
  std::fill(gradients.values()[5].begin(), gradients.values()[5].end(), 0.0f);
  gradients.upload();
  const auto expected = test::encode_on_host(on_host, gradients.on_host(), {});
  ASSERT_EQ(on_device.encode(gradients.views(), {}, buffers.target(), buffers.context()),
            Status::ok);
  const auto m = buffers.message();
  EXPECT_EQ(m.status, expected.status);
  EXPECT_GE(m.status, Status::non_finite);
  ContainerInfo info;
  ASSERT_EQ(inspect(m.bytes, info, true), Status::ok);
  EXPECT_TRUE(info.layers[0].non_finite);
  EXPECT_FALSE(info.layers[2].non_finite);
  EXPECT_EQ(info.layers[5].bytes, 0u);
}

}  // namespace
}  // namespace atomo
