// SPDX-License-Identifier: Apache-2.0
/// Whole models on a device: the CPU's bytes and values, captured into graphs, on several streams.
#include <gtest/gtest.h>

#include <limits>

#include "device_model.hpp"

namespace atomo {
namespace {

constexpr CompressorOptions kOnDevice{.device = Device::cuda};

/// Policies that use every operation that has a device twin.
const char* const kPolicies[] = {
    "*=atomo:bits=0.5", "*.bias=identity; *=atomo:bits=1,atoms=blocks",
    "*.norm.*=atomo:bits=2,atoms=coordinate; *=atomo:bits=0.25",
    "*.norm.weight=sign:scale=mean; *.norm.bias=terngrad; *.reduce.weight=qsgd:bits=3; "
    "*.middle.weight=topk:keep=0.02; *.expand.weight=randomk:keep=0.1; "
    "*.shortcut.weight=atomo:atoms=coordinate,bits=0.5; *=atomo:bits=1"};

class DeviceModel : public testing::TestWithParam<const char*> {
 protected:
  std::vector<LayerSpec> specs = test::resnet50(16);
  Compressor on_host{specs, Policy::parse(GetParam())};
  Compressor on_device{specs, Policy::parse(GetParam()), kOnDevice};
  test::Gradients gradients{specs};
  test::ModelBuffers buffers{on_device};
};
INSTANTIATE_TEST_SUITE_P(Policies, DeviceModel, testing::ValuesIn(kPolicies),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(DeviceModel, MessagesAreTheCpus) {
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Key key{.seed = 9, .step = step, .worker = 2};
    const auto expected = test::encode_on_host(on_host, gradients.on_host(), key);
    ASSERT_EQ(on_device.encode(gradients.views(), key, buffers.target(), buffers.context()),
              Status::ok);
    const auto m = buffers.message();
    ASSERT_EQ(m.status, expected.status);
    ASSERT_TRUE(m.bytes == expected.bytes) << m.bytes.size() << " " << expected.bytes.size();
  }
}

/// Messages of several workers added in one call are those added one by one, on either side.
TEST_P(DeviceModel, AddsMessagesInRankOrder) {
  std::vector<std::vector<std::byte>> sent;
  for (std::uint16_t worker = 0; worker < 3; ++worker) {
    const test::Gradients own(specs, 10 + worker);
    sent.push_back(
        test::encode_on_host(on_host, own.on_host(), {.seed = 9, .worker = worker}).bytes);
  }
  std::vector<std::vector<float>> sums = gradients.values();
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < specs.size(); ++i)
    views.push_back({sums[i].data(), DType::f32, specs[i].shape});
  std::vector<ConstBytes> messages(sent.begin(), sent.end());
  std::vector<std::byte> workspace(on_host.workspace_bytes());
  ASSERT_FALSE(failed(on_host.decode_add(messages, 0.25f, views, {.workspace = workspace})));

  std::vector<std::unique_ptr<test::Memory>> received;
  std::vector<ConstBytes> on_device_bytes;
  for (const auto& message : sent) {
    received.push_back(std::make_unique<test::Memory>(message.size() + 100, received.size()));
    received.back()->fill(0xEE);  // an all-gather pads to the longest
    received.back()->put(message);
    on_device_bytes.push_back(received.back()->bytes());
  }
  ASSERT_EQ(on_device.decode_add(on_device_bytes, 0.25f, gradients.targets(), buffers.context()),
            Status::ok);
  buffers.stream.wait();
  EXPECT_EQ(buffers.status.get(), Status::ok);
  const auto all = gradients.download();
  std::size_t at = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(std::memcmp(all.data() + at, sums[i].data(), 4 * sums[i].size()), 0) << specs[i].name;
    at += 4 * sums[i].size();
  }
}

TEST_P(DeviceModel, NonFiniteLayersAreLeftOut) {
  gradients.values()[3][1] = std::numeric_limits<float>::quiet_NaN();
  gradients.values()[12][0] = std::numeric_limits<float>::infinity();
  gradients.upload();
  const auto expected = test::encode_on_host(on_host, gradients.on_host(), {.seed = 1});
  ASSERT_EQ(expected.status, Status::non_finite);
  ASSERT_EQ(on_device.encode(gradients.views(), {.seed = 1}, buffers.target(), buffers.context()),
            Status::ok);
  const auto m = buffers.message();
  EXPECT_EQ(m.status, Status::non_finite);
  EXPECT_TRUE(m.bytes == expected.bytes);
}

TEST_P(DeviceModel, RefusesOtherMessages) {
  Compressor other(specs, Policy::parse("*=qsgd:bits=5"));
  const auto message = test::encode_on_host(other, gradients.on_host(), {.seed = 1}).bytes;
  const test::Memory received(message.size());
  received.put(message);
  const ConstBytes bytes = received.bytes();
  ASSERT_FALSE(failed(on_device.decode(bytes, gradients.targets(), buffers.context())));
  buffers.stream.wait();
  EXPECT_EQ(buffers.status.get(), Status::codec_mismatch);
}

/// Encode and decode captured once and replayed with another step, read from device memory.
TEST_P(DeviceModel, GraphsReplayWithTheStepOfTheDevice) {
  const test::Word<std::uint32_t> step(0);
  Context context = buffers.context();
  context.step = step.data();
  const test::StreamOwner capturing;
  context.stream = capturing.get();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(capturing.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(on_device.encode(gradients.views(), {.seed = 4}, buffers.target(), context),
            Status::ok);
  ASSERT_EQ(cudaStreamEndCapture(capturing.get(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (const std::uint32_t now : {3u, 11u}) {
    step.set(now);
    ASSERT_EQ(cudaGraphLaunch(replay, buffers.stream.get()), cudaSuccess);
    const auto m = buffers.message();
    const auto expected =
        test::encode_on_host(on_host, gradients.on_host(), {.seed = 4, .step = now});
    EXPECT_TRUE(m.bytes == expected.bytes) << "step " << now;
  }
  EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

/// Two messages under way at once need nothing of each other.
TEST_P(DeviceModel, TwoStreamsAtOnce) {
  const test::ModelBuffers second(on_device);
  const test::Gradients others(specs, 50);
  const Key first_key{.seed = 1, .worker = 0}, second_key{.seed = 1, .worker = 1};
  ASSERT_EQ(on_device.encode(gradients.views(), first_key, buffers.target(), buffers.context()),
            Status::ok);
  ASSERT_EQ(on_device.encode(others.views(), second_key, second.target(), second.context()),
            Status::ok);
  const auto b = second.message(), a = buffers.message();
  EXPECT_TRUE(a.bytes == test::encode_on_host(on_host, gradients.on_host(), first_key).bytes);
  EXPECT_TRUE(b.bytes == test::encode_on_host(on_host, others.on_host(), second_key).bytes);
}

}  // namespace
}  // namespace atomo
