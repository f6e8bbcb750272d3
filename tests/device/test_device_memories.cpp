// SPDX-License-Identifier: Apache-2.0
/// Memories on a device: messages and what is kept are the CPU's to the bit, over steps some of which are
/// not finite, whole, in parts and layer by layer; states go from one side to the other.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "atomo/cuda.hpp"
#include "support/on_cpu.hpp"

namespace atomo {
namespace {

/// Long, short, halves, misaligned, empty; a warp's unit and a little more.
const std::vector<LayerSpec> kLayers{
    {"a.weight", {64, 33}}, {"a.bias", {7}},      {"b.weight", {3, 700}, DType::bf16},
    {"b.bias", {2049}},     {"c.weight", {0, 4}}, {"c.bias", {1001}, DType::f16}};

/// Gradients of a step where both sides have them.
struct Entries {
  std::vector<std::vector<std::byte>> entries;
  std::vector<std::unique_ptr<test::Memory>> tensors;
  std::vector<ConstTensorView> on_host, on_device;

  explicit Entries(const std::vector<LayerSpec>& layers) {
    entries.resize(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const LayerSpec& layer = layers[i];
      const std::size_t each = size_of(layer.dtype);
      entries[i].resize(layer.shape.elements() * each);
      tensors.push_back(std::make_unique<test::Memory>(entries[i].size(), each * (i % 3)));
      on_host.push_back({entries[i].data(), layer.dtype, layer.shape});
      on_device.push_back({tensors[i]->data(), layer.dtype, layer.shape, Device::cuda});
    }
  }
  /// All different; layer `bad` is not finite.
  void set(std::uint32_t step, std::size_t bad = ~std::size_t{0}) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      auto x = test::heavy_tailed(on_host[i].shape.elements(), 100 * step + i, 40);
      if (i == bad) x[x.size() / 2] = std::numeric_limits<float>::infinity();
      const auto values = test::entries_of(x, on_host[i].dtype);
      std::copy(values.begin(), values.end(), entries[i].begin());
      tensors[i]->put(entries[i]);
    }
  }
};

/// A model on both sides.
struct Twins {
  explicit Twins(const std::string& policy, const std::vector<LayerSpec>& layers = kLayers,
                 bool takes_back = false)
      : on_host(layers, Policy::parse(policy), {.takes_back = takes_back}),
        on_device(layers, Policy::parse(policy),
                  {.device = Device::cuda, .takes_back = takes_back}),
        gradients(layers),
        buffers(on_device) {}

  /// A whole message of what `gradients` holds.
  void expect_the_cpus_message(std::uint32_t step) {
    const Key key{.seed = 3, .step = step, .worker = 2};
    const auto expected = test::encode_on_host(on_host, gradients.on_host, key);
    ASSERT_EQ(on_device.encode(gradients.on_device, key, buffers.target(), buffers.context()),
              Status::ok);
    const auto found = buffers.message();
    ASSERT_EQ(found.status, expected.status);
    ASSERT_TRUE(found.bytes == expected.bytes) << "step " << step;
    expect_the_cpus_memories();
  }
  void expect_the_cpus_memories() {
    ASSERT_TRUE(on_device.save(Saved::memories) == on_host.save(Saved::memories));
  }

  Compressor on_host, on_device;
  Entries gradients;
  test::ModelBuffers buffers;
};

/// Memories in front of codecs whose bytes are the CPU's.
std::vector<std::string> specs() {
  std::vector<std::string> all;
  for (const std::string& codec : test::specs_with_the_cpus_bytes()) all.push_back("ef+" + codec);
  for (const std::string codec : {"topk:keep=0.1", "sign:scale=mean", "atomo:bits=1,atoms=rows",
                                  "topk:chunk=64,k=4,values=2"}) {
    for (const std::string memory :
         {"ef:decay=0.95", "momentum:beta=0.9", "dgc", "ef:memory=bf16", "momentum:memory=int8",
          "dgc:memory=bf16", "dgc:memory=int8", "ef21"})
      all.push_back(memory + "+" + codec);
  }
  for (const std::string codec : {"natural", "qsgd:bits=4"}) {
    for (const std::string type : {"bf16", "int8"})
      all.push_back("ef:scale=contract,memory=" + type + ",decay=0.5+" + codec);
    all.push_back("ef21:scale=contract+" + codec);
  }
  return all;
}

class DeviceMemories : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Specs, DeviceMemories, testing::ValuesIn(specs()), test::spec_name);

TEST_P(DeviceMemories, MessagesAndMemoriesAreTheCpus) {
  Twins twins("a.bias=identity; *=" + GetParam());
  EXPECT_TRUE(twins.on_device.memory(1).empty());
  for (std::uint32_t step = 0; step < 4; ++step) {
    // The whole step moves nothing, a layer without a memory or with one.
    twins.gradients.set(step, step == 1 ? 1 : step == 2 ? 3 : ~std::size_t{0});
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_message(step));
  }
  double kept = 0;
  for (const float v : twins.on_device.memory(0)) kept += double{v} * v;
  if (GetParam().find("dtype=f32") == std::string::npos && GetParam() != "ef+identity") {
    EXPECT_GT(kept, 0);
  }
}

/// What a message says of layers without a memory is decoded for nobody.
TEST_P(DeviceMemories, OfOtherLayersAreTheCpus) {
  std::string codec = GetParam().substr(GetParam().find('+') + 1);
  Twins twins("a.*=" + codec + "; *.weight=" + codec + "; *=ef+topk:keep=0.1");
  for (std::uint32_t step = 0; step < 2; ++step) {
    twins.gradients.set(step);
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_message(step));
  }
}

/// A message and what is kept are what there was, whatever the pairs are: the sum is exact but for the
/// one rounding that is the memory's.
TEST(DeviceMemoriesOfSketches, KeepWhatMessagesLeaveOut) {
  const std::vector<LayerSpec> layers{{"a", {64, 300}}, {"b", {40}}, {"c", {200, 60}}};
  for (const std::string spec :
       {"ef+atomo:bits=0.5", "ef+atomo:bits=1,atoms=sketch", "ef+atomo:bits=0.5,content=nearest"}) {
    Compressor model(layers, Policy::parse(spec), {.device = Device::cuda});
    const Compressor reader(layers, Policy::parse(spec));
    Entries gradients(layers);
    const test::ModelBuffers buffers(model);
    const auto handles = make_handles();
    for (std::uint32_t step = 0; step < 3; ++step) {
      gradients.set(step);
      std::vector<std::vector<float>> x, c;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        x.push_back(model.memory(i));
        c.emplace_back(x[i].size());
        const auto* const g = reinterpret_cast<const float*>(gradients.entries[i].data());
        for (std::size_t k = 0; k < x[i].size(); ++k) x[i][k] = g[k] + x[i][k];
      }
      ASSERT_EQ(model.encode(gradients.on_device, {.seed = 3, .step = step}, buffers.target(),
                             buffers.context(handles.get())),
                Status::ok);
      const auto message = buffers.message();
      ASSERT_FALSE(failed(message.status));
      std::vector<TensorView> views;
      for (std::size_t i = 0; i < layers.size(); ++i)
        views.push_back({c[i].data(), DType::f32, layers[i].shape});
      std::vector<std::byte> work(reader.decode_workspace_bytes());
      ASSERT_FALSE(failed(reader.decode(message.bytes, views, {.workspace = work})));
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const auto kept = model.memory(i);
        std::size_t wrong = 0;
        for (std::size_t k = 0; k < kept.size(); ++k) wrong += kept[k] != x[i][k] + (-1 * c[i][k]);
        EXPECT_EQ(wrong, 0) << spec << ", step " << step << ", layer " << i;
      }
    }
  }
}

constexpr const char* kMixed =
    "a.weight=ef+topk:keep=0.1; a.bias=dgc+topk:keep=0.3; b.weight=sign; "
    "b.bias=ef:memory=bf16+atomo:bits=2,atoms=blocks; "
    "c.bias=dgc:memory=int8+atomo:bits=2,atoms=coordinate; "
    "*=ef:memory=int8+qsgd:bits=4";

/// Layers one by one and the buckets of a step: the messages and memories of the CPU. A layer of a step is
/// sent once, finite or not.
TEST(DeviceMemoriesOfSteps, AreTheCpus) {
  Twins twins(kMixed);
  Compressor host_part = twins.on_host.part(2, 3), device_part = twins.on_device.part(2, 3);
  const test::ModelBuffers part_buffers(device_part);
  const std::span host_views(twins.gradients.on_host), views(twins.gradients.on_device);
  for (std::uint32_t step = 0; step < 5; ++step) {
    twins.gradients.set(step, step == 1 ? 0 : step == 2 ? 3 : ~std::size_t{0});
    const Key key{.seed = 3, .step = step};
    ASSERT_EQ(twins.on_host.begin_step(key), Status::ok);
    ASSERT_EQ(twins.on_device.begin_step(key), Status::ok);
    const auto expected =
        test::encode_on_host(host_part, {host_views.begin() + 2, host_views.begin() + 5}, key);
    ASSERT_EQ(
        device_part.encode(views.subspan(2, 3), key, part_buffers.target(), part_buffers.context()),
        Status::ok);
    const auto found = part_buffers.message();
    ASSERT_EQ(found.status, expected.status);
    ASSERT_TRUE(found.bytes == expected.bytes) << "step " << step;
    EXPECT_EQ(
        device_part.encode(views.subspan(2, 3), key, part_buffers.target(), part_buffers.context()),
        Status::wrong_stage);
    for (const std::size_t i : {0u, 1u, 5u}) {
      const test::Memory workspace(twins.on_device.encode_workspace_bytes(i));
      std::vector<std::byte> work(twins.on_host.encode_workspace_bytes(i));
      test::Message m;
      m.bytes.resize(twins.on_host.max_encoded_bytes(i));
      std::uint64_t bytes = 0;
      m.status = twins.on_host.encode_layer(
          i, host_views[i], {m.bytes.data(), m.bytes.size(), &bytes}, {.workspace = work});
      m.bytes.resize(bytes);
      Context context = twins.buffers.context();
      context.workspace = workspace.bytes().first(workspace.bytes().size() - 1);
      EXPECT_EQ(twins.on_device.encode_layer(i, views[i], twins.buffers.target(), context),
                Status::workspace_too_small);
      context.workspace = workspace.bytes();
      ASSERT_EQ(twins.on_device.encode_layer(i, views[i], twins.buffers.target(), context),
                Status::ok);
      const auto of_layer = twins.buffers.message();
      EXPECT_EQ(of_layer.status, m.status);
      EXPECT_TRUE(of_layer.bytes == m.bytes) << "step " << step << ", layer " << i;
      EXPECT_EQ(twins.on_device.encode_layer(i, views[i], twins.buffers.target(), context),
                Status::wrong_stage);
    }
    const Status ended = twins.on_host.end_step();
    ASSERT_EQ(twins.on_device.end_step(
                  {.stream = twins.buffers.stream.get(), .status = twins.buffers.status.data()}),
              Status::ok);
    ASSERT_TRUE(twins.on_device.save() == twins.on_host.save()) << "step " << step;
    EXPECT_EQ(twins.buffers.status.get(), ended);
  }
}

/// Captured once: replays go on from what the last one kept, through a step that is not finite.
TEST(DeviceMemoriesOfGraphs, GoOnInReplays) {
  Twins twins(kMixed, kLayers, true);
  const test::Word<std::uint32_t> step_word;
  const test::Captured captured([&](Stream stream) {
    Context context = twins.buffers.context();
    context.stream = stream;
    context.step = step_word.data();
    ASSERT_EQ(twins.on_device.encode(twins.gradients.on_device, {.seed = 3}, twins.buffers.target(),
                                     context),
              Status::ok);
  });
  for (const std::uint32_t step : {2u, 3u, 7u, 8u}) {
    step_word.set(step);
    twins.gradients.set(step, step == 7 ? 1 : ~std::size_t{0});
    captured.replay(twins.buffers.stream);
    const auto expected =
        test::encode_on_host(twins.on_host, twins.gradients.on_host, {.seed = 3, .step = step});
    const auto found = twins.buffers.message();
    EXPECT_EQ(found.status, expected.status);
    ASSERT_TRUE(found.bytes == expected.bytes) << "step " << step;
    if (step == 3 || step == 7) {  // between replays
      ASSERT_EQ(twins.on_host.take_memory_back(), Status::ok);
      ASSERT_EQ(twins.on_device.take_memory_back(twins.buffers.context()), Status::ok);
    }
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_memories()) << "step " << step;
  }
}

/// From the device to the CPU and back, under the layers' names; other layers begin at zero.
TEST(DeviceMemoriesSaved, GoOnOnTheOtherSide) {
  Twins twins(kMixed);
  for (std::uint32_t step = 0; step < 2; ++step) {
    twins.gradients.set(step);
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_message(step));
  }
  Twins other(kMixed);
  other.gradients.set(9);
  ASSERT_NO_FATAL_FAILURE(other.expect_the_cpus_message(9));
  other.on_host.load(twins.on_device.save());
  other.on_device.load(twins.on_host.save());
  ASSERT_NO_FATAL_FAILURE(other.expect_the_cpus_memories());
  EXPECT_TRUE(other.on_device.save() == twins.on_device.save());
  other.gradients.set(2);
  ASSERT_NO_FATAL_FAILURE(other.expect_the_cpus_message(2));

  std::vector<LayerSpec> changed{kLayers[3], kLayers[0], kLayers[1], {"new", {5}}};
  changed[1].shape = Shape{64, 34};
  Twins less("new=sign; *=ef+topk:keep=0.1", changed);
  Twins from("*=ef+topk:keep=0.1");
  from.gradients.set(1);
  ASSERT_NO_FATAL_FAILURE(from.expect_the_cpus_message(1));
  less.on_device.load(from.on_device.save());
  EXPECT_EQ(less.on_device.memory(0), from.on_host.memory(3));
  EXPECT_EQ(less.on_device.memory(1), std::vector<float>(64 * 34)) << "another shape";
  EXPECT_EQ(less.on_device.memory(2), from.on_host.memory(1));
  EXPECT_TRUE(less.on_device.memory(3).empty());

  auto state = from.on_device.save();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(state.data() + state.size() - 8, &nan, sizeof nan);
  EXPECT_THROW(from.on_device.load(state), Error);
  ASSERT_NO_FATAL_FAILURE(from.expect_the_cpus_memories());
  from.on_device.reset_memory();
  for (std::size_t i = 0; i < kLayers.size(); ++i)
    EXPECT_EQ(from.on_device.memory(i), std::vector<float>(kLayers[i].shape.elements()));
  EXPECT_THROW(from.on_device.part(0, 1).reset_memory(), Error);
}

/// DGC's warm-up: models of ever smaller shares hand their memories on, and none begins at zero.
TEST(DeviceMemoriesWarmUp, GoOnWithFewerEntries) {
  std::unique_ptr<Twins> before;
  std::size_t bytes = ~std::size_t{0};
  std::uint32_t step = 0;
  for (const std::string share : {"0.25", "0.0625", "0.015625", "0.01"}) {
    auto twins = std::make_unique<Twins>("*=dgc+topk:keep=" + share);
    if (before != nullptr) {
      const auto kept = before->on_device.save(Saved::memories);
      twins->on_host.load(kept);
      twins->on_device.load(kept);
      ASSERT_TRUE(twins->on_device.save(Saved::memories) == kept) << share;
    }
    for (const std::uint32_t end = step + 2; step < end; ++step) {
      twins->gradients.set(step);
      ASSERT_NO_FATAL_FAILURE(twins->expect_the_cpus_message(step)) << share;
    }
    EXPECT_LT(twins->buffers.message().bytes.size(), bytes) << share;
    bytes = twins->buffers.message().bytes.size();
    before = std::move(twins);
  }
}

/// A step that nobody used: the memories are those before it, once, and only where the word says so.
TEST(DeviceMemoriesTakenBack, AreThoseBeforeTheMessage) {
  Twins twins(kMixed, kLayers, true);
  const test::Word<Status> word;
  const Context context = twins.buffers.context();
  const auto take_back = [&](Status said) {
    word.set(said | Status::underspent);
    const Status on_host = said | Status::underspent;
    ASSERT_EQ(twins.on_host.take_memory_back({}, &on_host), Status::ok);
    ASSERT_EQ(twins.on_device.take_memory_back(context, word.data()), Status::ok);
    twins.buffers.stream.wait();
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_memories());
  };
  std::vector<std::byte> before = twins.on_device.save(Saved::memories);
  for (std::uint32_t step = 0; step < 6; ++step) {
    const bool bad = step == 3;
    twins.gradients.set(step, bad ? 1 : ~std::size_t{0});
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_message(step));
    const auto after = twins.on_device.save(Saved::memories);
    EXPECT_EQ(after == before, bad);
    ASSERT_NO_FATAL_FAILURE(take_back(Status::ok));
    EXPECT_TRUE(twins.on_device.save(Saved::memories) == after);
    if (step % 2 == 0) {
      before = after;
      continue;
    }
    for (int again = 0; again < 2; ++again) {
      ASSERT_NO_FATAL_FAILURE(take_back(Status::non_finite));
      EXPECT_TRUE(twins.on_device.save(Saved::memories) == before) << "step " << step;
    }
  }
  EXPECT_EQ(twins.on_host.memory_bytes() % 2, 0);
  ASSERT_EQ(twins.on_device.begin_step({.step = 9}), Status::ok);
  EXPECT_EQ(twins.on_device.take_memory_back(context), Status::wrong_stage);
  ASSERT_FALSE(failed(twins.on_device.end_step(context)));
  EXPECT_EQ(twins.on_device.take_memory_back({}), Status::invalid_argument) << "no stream";
  Twins without(kMixed);
  EXPECT_EQ(without.on_device.take_memory_back(context), Status::unsupported);
  EXPECT_EQ(without.on_host.take_memory_back(), Status::unsupported);
}

/// Room that is too small is seen before anything runs.
TEST(DeviceMemoriesRefuse, AShortWorkspace) {
  Twins twins(kMixed);
  twins.gradients.set(0);
  const test::Memory exact(twins.on_device.encode_workspace_bytes());
  Context context = twins.buffers.context();
  context.workspace = exact.bytes().first(exact.bytes().size() - 1);
  EXPECT_EQ(twins.on_device.encode(twins.gradients.on_device, {}, twins.buffers.target(), context),
            Status::workspace_too_small);
  context.workspace = exact.bytes();
  EXPECT_EQ(twins.on_device.encode(twins.gradients.on_device, {}, twins.buffers.target(), context),
            Status::ok);
  EXPECT_FALSE(failed(twins.buffers.message().status));
}

}  // namespace
}  // namespace atomo
