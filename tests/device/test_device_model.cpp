// SPDX-License-Identifier: Apache-2.0
/// Whole models on a device: the CPU's bytes and values, captured into graphs, on several streams.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/on_cpu.hpp"

namespace atomo {
namespace {

constexpr CompressorOptions kOnDevice{.device = Device::cuda};

/// Policies that use every operation whose messages are the CPU's to the bit.
const char* const kPolicies[] = {
    "*=atomo:bits=0.5,atoms=rows", "*.bias=identity; *=atomo:bits=1,atoms=blocks",
    "*.bias=atomo:bits=0.001,atoms=coordinate; *=atomo:bits=0.001,atoms=blocks",
    "*.norm.*=atomo:bits=2,atoms=coordinate; *=atomo:bits=0.25,atoms=rows",
    "*.norm.weight=sign:scale=mean; *.norm.bias=terngrad; *.reduce.weight=qsgd:bits=3; "
    "*.middle.weight=topk:keep=0.02; *.expand.weight=randomk:keep=0.1; "
    "*.shortcut.weight=atomo:atoms=coordinate,bits=0.5; *=atomo:bits=1,atoms=rows"};

class DeviceModel : public testing::TestWithParam<const char*> {
 protected:
  std::vector<LayerSpec> specs = test::resnet50(16);
  Compressor on_host{specs, Policy::parse(GetParam())};
  Compressor on_device{specs, Policy::parse(GetParam()), kOnDevice};
  test::Gradients gradients{specs};
  test::ModelBuffers buffers{on_device};
};
INSTANTIATE_TEST_SUITE_P(Policies, DeviceModel, testing::ValuesIn(kPolicies),
                         [](const auto& made) { return std::to_string(made.index); });

TEST_P(DeviceModel, MessagesAreTheCpus) {
  test::expect_the_cpus_messages(on_host, on_device, gradients, buffers, test::kSanitized ? 1 : 3);
}

/// Messages of several workers added in one call are those added one by one, on either side.
TEST_P(DeviceModel, AddsMessagesInRankOrder) {
  std::vector<std::vector<std::byte>> sent;
  for (std::uint16_t worker = 0; worker < 3; ++worker) {
    const test::Gradients own(specs, 10 + worker);
    sent.push_back(
        test::encode_on_host(on_host, own.on_host(), {.seed = 9, .worker = worker}).bytes);
  }
  test::expect_the_cpus_sums(on_host, on_device, sent, gradients, buffers);
}

TEST_P(DeviceModel, NonFiniteLayersAreLeftOut) {
  gradients.values()[3][1] = std::numeric_limits<float>::quiet_NaN();
  gradients.values()[12][0] = std::numeric_limits<float>::infinity();
  gradients.upload();
  const auto expected = test::encode_on_host(on_host, gradients.on_host(), {.seed = 1});
  ASSERT_TRUE(has(expected.status, Status::non_finite));
  ASSERT_EQ(on_device.encode(gradients.views(), {.seed = 1}, buffers.target(), buffers.context()),
            Status::ok);
  const auto m = buffers.message();
  EXPECT_EQ(m.status, expected.status);  // of a small budget `overspent` stands beside it
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

/// A capture that an allocation ended takes no kernels: the status says so, and the runtime's last
/// error is left to the program's own calls.
TEST_P(DeviceModel, RefusedLaunchesLeaveNoErrorBehind) {
  const test::StreamOwner stream;
  Context context = buffers.context();
  context.stream = stream.get();
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  void* memory = nullptr;
  ASSERT_NE(cudaMalloc(&memory, 4), cudaSuccess);
  (void)cudaGetLastError();
  EXPECT_EQ(on_device.encode(gradients.views(), {.seed = 1}, buffers.target(), context),
            Status::external);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  (void)cudaGetLastError();
}

/// Encoding captured once and replayed with another step, read from device memory.
TEST_P(DeviceModel, GraphsReplayWithTheStepOfTheDevice) {
  test::expect_replays_are_the_cpus(on_host, on_device, gradients, buffers);
}

/// One message decoded and three added, captured once and replayed with other messages, whose
/// lengths the device reads from them.
TEST_P(DeviceModel, GraphsReplayDecoding) {
  constexpr std::uint16_t kWorkers = 4;
  std::vector<std::unique_ptr<test::Memory>> received;
  std::vector<ConstBytes> bytes;
  for (std::uint16_t worker = 0; worker < kWorkers; ++worker) {
    received.push_back(std::make_unique<test::Memory>(on_host.max_encoded_bytes()));
    received.back()->fill(0xEE);
    bytes.push_back(received.back()->bytes());
  }
  const std::span<const ConstBytes> others = std::span(bytes).subspan(1);
  const test::Captured captured([&](Stream stream) {
    Context context = buffers.context();
    context.stream = stream;
    EXPECT_EQ(on_device.decode(bytes[0], gradients.targets(), context), Status::ok);
    EXPECT_EQ(on_device.decode_add_all(others, 0.5f, gradients.targets(), context), Status::ok);
  });
  std::vector<std::vector<float>> sums = gradients.values();
  std::vector<TensorView> on_cpu;
  for (std::size_t i = 0; i < sums.size(); ++i)
    on_cpu.push_back({sums[i].data(), DType::f32, specs[i].shape});
  std::vector<std::byte> workspace(test::workspace_bytes(on_host));
  for (const std::uint32_t step : {1u, 2u}) {
    std::vector<std::vector<std::byte>> sent;
    for (std::uint16_t worker = 0; worker < kWorkers; ++worker) {
      sent.push_back(test::encode_on_host(on_host, gradients.on_host(),
                                          {.seed = 9, .step = step, .worker = worker})
                         .bytes);
      received[worker]->put(sent.back());
    }
    captured.replay(buffers.stream);
    buffers.stream.wait();
    ASSERT_EQ(buffers.status.get(), Status::ok);
    ASSERT_FALSE(failed(on_host.decode(sent[0], on_cpu, {.workspace = workspace})));
    const std::vector<ConstBytes> added(sent.begin() + 1, sent.end());
    ASSERT_FALSE(failed(on_host.decode_add_all(added, 0.5f, on_cpu, {.workspace = workspace})));
    const auto found = gradients.download();
    std::size_t at = 0;
    for (const auto& sum : sums) {
      ASSERT_EQ(std::memcmp(found.data() + at, sum.data(), 4 * sum.size()), 0) << "step " << step;
      at += 4 * sum.size();
    }
  }
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

/// With so many large layers the search for their common step looks three levels ahead, not five.
TEST(DeviceModelOfGrids, MessagesAreTheCpus) {
  const auto policy = Policy::parse("*=atomo:bits=1,atoms=coordinate");
  std::vector<LayerSpec> specs;
  for (unsigned i = 0; i < 12; ++i) specs.push_back({"large." + std::to_string(i), {i + 37, 300}});
  for (unsigned i = 0; i < 6; ++i) specs.push_back({"small." + std::to_string(i), {1 << (2 * i)}});
  Compressor on_host(specs, policy), on_device(specs, policy, kOnDevice);
  const test::Gradients gradients(specs);
  const test::ModelBuffers buffers(on_device);
  test::expect_the_cpus_messages(on_host, on_device, gradients, buffers, 1);
}

/// Gaps of bodies that are longer and shorter than what a block moves at once, at the front, the end, several,
/// wherever the message stands; captured once, so that a message with gaps comes before and behind one without.
void expect_gaps_closed(const std::string& names, const std::string& policy_text) {
  const auto policy = Policy::parse(policy_text);
  std::vector<LayerSpec> specs;
  for (const char name : names)
    specs.push_back({std::string(1, name), {name % 2 == 0 ? 700 : 3, 90 + name % 5}});
  Compressor on_host(specs, policy), on_device(specs, policy, kOnDevice);
  test::Gradients gradients(specs);
  const auto sound = gradients.values();
  const test::ModelBuffers buffers(on_device);
  std::vector<std::size_t> all(names.size());
  std::iota(all.begin(), all.end(), 0);
  for (const std::size_t offset : {0, 1, 4}) {
    const test::Memory payload(on_device.max_encoded_bytes(), offset);
    const test::Captured captured([&](Stream stream) {
      Context context = buffers.context();
      context.stream = stream;
      EXPECT_EQ(
          on_device.encode(gradients.views(), {.seed = 1},
                           {payload.data(), payload.bytes().size(), buffers.bytes.data()}, context),
          Status::ok);
    });
    for (const std::vector<std::size_t>& broken : std::vector<std::vector<std::size_t>>{
             {0}, {}, {1}, {2}, {8}, {0, 1, 5}, {}, {1, 2, 3, 4, 5, 6, 7}, all}) {
      gradients.values() = sound;
      for (const std::size_t layer : broken)
        gradients.values()[layer].back() = std::numeric_limits<float>::infinity();
      gradients.upload();
      captured.replay(buffers.stream);
      buffers.stream.wait();
      const auto expected = test::encode_on_host(on_host, gradients.on_host(), {.seed = 1});
      ASSERT_EQ(expected.status, broken.empty() ? Status::ok : Status::non_finite);
      EXPECT_EQ(buffers.status.get(), expected.status);
      ASSERT_EQ(buffers.bytes.get(), expected.bytes.size());
      EXPECT_TRUE(payload.get(expected.bytes.size()) == expected.bytes)
          << "offset " << offset << ", " << broken.size() << " layers";
    }
  }
}

constexpr char kFixedLengths[] =
    "a=sign; b=qsgd:bits=8; c=minmax:bits=4; d=identity; e=natural; f=terngrad; "
    "g=identity:dtype=f16; h=randomk:keep=0.1; i=identity:dtype=e4m3";
TEST(DeviceModelOfGaps, MessagesAreTheCpus) { expect_gaps_closed("abcdefghi", kFixedLengths); }
TEST(DeviceModelOfGaps, MessagesAreTheCpusBesideLengthsThatVary) {
  expect_gaps_closed("ajbcdefghik", std::string(kFixedLengths) +
                                        "; j=topk:keep=0.05; k=atomo:atoms=blocks,bits=2");
}

/// With so many layers more than one launch says where bodies of fixed lengths stand; layers of the first and of a
/// later one are not finite.
TEST(DeviceModelOfManyLayers, MessagesAreTheCpus) {
  const auto policy = Policy::parse("*=sign:scale=mean");
  const std::vector<LayerSpec> specs = test::many_layers(4000);
  Compressor on_host(specs, policy), on_device(specs, policy, kOnDevice);
  test::Gradients gradients(specs);
  const test::ModelBuffers buffers(on_device);
  test::expect_the_cpus_messages(on_host, on_device, gradients, buffers, 1);
  for (const std::size_t layer : {3, 3000})
    gradients.values()[layer][1] = std::numeric_limits<float>::infinity();
  gradients.upload();
  test::expect_the_cpus_messages(on_host, on_device, gradients, buffers, 1);
}

}  // namespace
}  // namespace atomo
