// SPDX-License-Identifier: Apache-2.0
/// `cap=` on a device: the CPU's messages, byte for byte, whether a cap binds or not, of tensors
/// and of models whose layers share the room under it.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <sstream>

#include "cuda/tuning.hpp"

#include "codec/layer.hpp"
#include "format/container_head.hpp"
#include "format/thinning.hpp"
#include "support/on_cpu.hpp"

namespace atomo {

using namespace model;
namespace {

/// What was compared so far, printed so that a suite that thins nothing is seen.
struct Tally {
  std::size_t messages = 0, layers = 0, thinned = 0;
  double least_kept = 1;  ///< (K - d) / K

  void add(ConstBytes message) {
    format::Head head;
    ASSERT_EQ(format::Head::parse(message, true, head), Status::ok);
    format::LayerCursor layer(head);
    Status status = Status::ok;
    ++messages;
    while (layer.next(status)) {
      ++layers;
      if ((layer.row.flags & format::LayerRecord::kThinned) == 0) continue;
      ++thinned;
      const std::size_t price = (layer.row.flags & format::LayerRecord::kOwnPrice) != 0 ? 4 : 0;
      std::uint32_t word = 0;
      std::memcpy(&word, layer.body.data() + price, sizeof word);
      format::Thinning thinning;
      ASSERT_TRUE(format::Thinning::read(word, thinning));
      least_kept = std::min(least_kept, 1 / static_cast<double>(thinning.gain()));
    }
  }
  void print(const char* what) const {
    std::cout << "[ cap      ] " << what << ": " << messages << " messages, " << thinned << " of "
              << layers << " layers thinned, at least " << least_kept << " of the runs kept\n";
  }
};

enum class Data { heavy, flat, spiky };

/// Gradients whose bodies take about what is expected, and others that take more.
std::vector<float> make_data(Data data, std::size_t n, std::uint64_t seed, std::size_t row) {
  std::vector<float> x = test::heavy_tailed(n, seed, row);
  for (std::size_t i = 0; i < n; ++i) {
    if (data == Data::flat) x[i] = x[i] < 0 ? -0.01f : 0.01f;
    if (data == Data::spiky && (i * 2654435761u >> 7) % 61 != 0) x[i] *= 0x1p-7f;
  }
  return x;
}

/// Bits a parameter: the tightest cap of a tensor under `atoms`, and a little more.
double tightest_cap(const std::string& atoms, const Shape& shape) {
  const Codec codec = Codec::parse("atomo:bits=1,cap=1,atoms=" + atoms);
  const codec::EncoderPlan plan(codec::Access::stages(codec), shape, DType::f32);
  const std::size_t bytes = format::one_layer_head_bytes(plan.kind) + plan.min_limit_bytes;
  return 8.0 * static_cast<double>(bytes) / static_cast<double>(plan.n) * (1 + 1e-9);
}

std::string spec_of(const std::string& atoms, double bits, double cap) {
  std::ostringstream spec;
  spec.precision(17);
  spec << "atomo:bits=" << bits << ",cap=" << cap << ",atoms=" << atoms;
  return spec.str();
}

class DeviceCap : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { cuda::warps_per_block = 4; }
  Tally tally;
};
INSTANTIATE_TEST_SUITE_P(Atoms, DeviceCap, testing::Values("rows", "blocks"),
                         [](const auto& made) { return std::string(made.param); });

TEST_P(DeviceCap, MessagesAreTheCpus) {
  constexpr unsigned kWarps[] = {1, 4, 8};
  std::size_t turn = 0;
  for (const Shape& shape : {Shape{3000}, Shape{40, 25}, Shape{9, 513}, Shape{300, 16},
                             Shape{7, 1051}, Shape{40, 33, 3}, Shape{2, 5011}, Shape{70, 130}}) {
    const double tightest = tightest_cap(GetParam(), shape);
    for (const double cap : {tightest, 1.02 * tightest, 1.3 * tightest, 64.0}) {
      if (cap > 64 || cap < tightest) continue;
      const double bits = cap == 64 ? 1 : std::min(cap, 32.0);
      const std::string spec = spec_of(GetParam(), bits, cap);
      const Codec codec = Codec::parse(spec);
      for (const Data data : {Data::heavy, Data::flat, Data::spiky}) {
        const auto x = make_data(data, shape.elements(), 3 + shape.elements(), 47);
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
          const auto entries = test::entries_of(x, dtype);
          for (std::uint64_t seed = 0; seed < 2; ++seed, ++turn) {
            const Key key{.seed = seed, .step = 5, .tensor = 6, .worker = 7, .channel = 8};
            const auto expected = test::encode_on_cpu(codec, entries, dtype, shape, key);
            ASSERT_FALSE(failed(expected.status)) << describe(expected.status);
            cuda::warps_per_block = kWarps[turn % 3];
            const auto m =
                test::encode_bytes(codec, entries, dtype, shape, key, nullptr, turn / 3 % 4);
            const auto where = spec + " " + shape.to_string() + " " + std::string(name_of(dtype));
            ASSERT_EQ(m.status, expected.status) << where << ": " << describe(m.status);
            ASSERT_TRUE(m.bytes == expected.bytes)
                << where << ": " << m.bytes.size() << ", " << expected.bytes.size();
            ASSERT_LE(static_cast<double>(m.bytes.size()),
                      cap * static_cast<double>(shape.elements()) / 8);
            tally.add(m.bytes);
          }
        }
      }
    }
  }
  tally.print(GetParam());
  EXPECT_GT(tally.thinned, tally.messages / 20);
  EXPECT_LT(tally.thinned, tally.messages);
}

/// Bodies of many segments, escapes that nobody expects; the first has more units than there are
/// runs.
TEST_P(DeviceCap, LargeTensors) {
  for (const Shape& shape : {Shape{36000, 20}, Shape{300, 700}, Shape{30, 4111}}) {
    const bool largest = shape[0] == 36000;
    for (const Data data : {Data::heavy, Data::flat, Data::spiky}) {
      auto x = make_data(data, shape.elements(), 5, 900);
      const auto entries = test::entries_of(x, DType::f32);
      for (const double wanted : {0.3, 1.0, 3.0}) {
        if (largest && wanted != 3.0) continue;  // of few bits only a few units are kept
        const double bits = std::max(wanted, 1.01 * tightest_cap(GetParam(), shape));
        const Codec codec = Codec::parse(spec_of(GetParam(), bits, bits));
        const auto expected = test::encode_on_cpu(codec, entries, DType::f32, shape, {.seed = 1});
        const auto m = test::encode(codec, x, shape, {.seed = 1});
        ASSERT_EQ(m.status, expected.status) << shape.to_string();
        ASSERT_TRUE(m.bytes == expected.bytes) << shape.to_string();
        tally.add(m.bytes);
        std::vector<float> y(shape.elements());
        std::vector<std::byte> workspace(codec.decode_workspace_bytes(shape));
        ASSERT_EQ(codec.decode(m.bytes, {y.data(), DType::f32, shape}, {.workspace = workspace}),
                  Status::ok);
        ASSERT_TRUE(test::decode(codec, m.bytes, shape).values == y) << shape.to_string();
      }
    }
  }
  tally.print(GetParam());
  EXPECT_GT(tally.thinned, 3u);
}

TEST(DeviceCaps, TooTightIsRefused) {
  const Codec codec = Codec::parse("atomo:bits=1,cap=1.2,atoms=rows");
  const Shape shape{100};
  EXPECT_THROW((void)codec.max_encoded_bytes(shape), Error);
  const test::Memory x(400), payload(4096), workspace(test::workspace_bytes(codec, shape));
  const test::Word<std::uint64_t> bytes;
  const test::StreamOwner stream;
  Context context;
  context.stream = stream.get();
  context.workspace = workspace.bytes();
  EXPECT_EQ(codec.encode({x.data(), DType::f32, shape, Device::cuda}, {},
                         {payload.data(), payload.bytes().size(), bytes.data()}, context),
            Status::unsupported);
  EXPECT_THROW(Compressor({{"a", shape}}, Policy::parse("*=atomo:bits=1,cap=1.2,atoms=rows"),
                          {.device = Device::cuda}),
               Error);
}

/// Layers of many sizes: rows short and long, blocks, others.
std::vector<LayerSpec> model_layers() {
  return {{"a.weight", {64, 300}},  {"a.bias", {64}},        {"b.weight", {40, 24, 9}},
          {"b.bias", {40}},         {"empty", {0, 5}},       {"c.weight", {3, 9000}},
          {"flat.weight", {20000}}, {"d.weight", {500, 40}}, {"d.bias", {500}},
          {"e.weight", {128, 129}}};
}

class DeviceCapModels : public testing::TestWithParam<const char*> {
 protected:
  std::vector<LayerSpec> specs = model_layers();
  Compressor on_host{specs, Policy::parse(GetParam())};
  Compressor on_device{specs, Policy::parse(GetParam()), {.device = Device::cuda}};
  test::Gradients gradients{specs};
  test::ModelBuffers buffers{on_device};
  Tally tally;

  /// Of one magnitude, so that bodies take more than is expected.
  DeviceCapModels() {
    for (auto& layer : gradients.values()) {
      for (float& v : layer) v = std::copysign(0.01f, v);
    }
    gradients.upload();
  }
  void compare(const Key& key) {
    const auto expected = test::encode_on_host(on_host, gradients.on_host(), key);
    ASSERT_EQ(on_device.encode(gradients.views(), key, buffers.target(), buffers.context()),
              Status::ok);
    const auto m = buffers.message();
    ASSERT_EQ(m.status, expected.status);
    ASSERT_TRUE(m.bytes == expected.bytes) << m.bytes.size() << ", " << expected.bytes.size();
    tally.add(m.bytes);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Policies, DeviceCapModels,
    testing::Values(
        "*=atomo:bits=7,cap=7,atoms=rows", "*=atomo:bits=3,cap=3,atoms=blocks",
        "*.bias=identity; a.*=atomo:bits=1,atoms=rows; d.weight=atomo:bits=3,cap=9,atoms=blocks; "
        "*=atomo:bits=8,cap=8,atoms=rows",
        "e.weight=atomo:bits=3,cap=3,atoms=rows; *.bias=atomo:bits=4,atoms=coordinate; "
        "*=atomo:bits=6,atoms=rows",
        "*.bias=atomo:bits=4,atoms=rows; *=atomo:bits=2,cap=30,atoms=rows"),
    [](const auto& made) { return std::to_string(made.index); });

TEST_P(DeviceCapModels, MessagesAreTheCpus) {
  for (std::uint32_t step = 0; step < 6; ++step)
    ASSERT_NO_FATAL_FAILURE(compare({.seed = 9, .step = step, .worker = 2}));
  tally.print(GetParam());
  const bool binds = std::strstr(GetParam(), "cap=3,") != nullptr;
  EXPECT_EQ(tally.thinned > 0, binds);
}

/// Layers of one run each, of which some are left out.
TEST(DeviceCaps, LayersAreLeftOutAsOnTheCpu) {
  for (const std::size_t count : {37u, 300u}) {
    std::vector<LayerSpec> specs;
    for (std::size_t i = 0; i < count; ++i)
      specs.push_back({std::to_string(i), {static_cast<std::int64_t>(150 + i % 60)}});
    const Policy policy = Policy::parse("*=atomo:bits=3.5,cap=3.5,atoms=blocks");
    Compressor on_host(specs, policy), on_device(specs, policy, {.device = Device::cuda});
    test::Gradients gradients(specs);
    for (auto& layer : gradients.values()) {
      for (float& v : layer) v = std::copysign(0.01f, v);
    }
    gradients.upload();
    const test::ModelBuffers buffers(on_device);
    std::size_t left_out = 0;
    for (std::uint32_t step = 0; step < 4; ++step) {
      const auto expected = test::encode_on_host(on_host, gradients.on_host(), {.step = step});
      ASSERT_EQ(
          on_device.encode(gradients.views(), {.step = step}, buffers.target(), buffers.context()),
          Status::ok);
      const auto m = buffers.message();
      ASSERT_EQ(m.status, expected.status);
      ASSERT_TRUE(m.bytes == expected.bytes) << m.bytes.size() << ", " << expected.bytes.size();
      ContainerInfo info;
      ASSERT_EQ(inspect(m.bytes, info, true), Status::ok);
      for (const auto& layer : info.layers) left_out += layer.bytes == 0 ? 1 : 0;
    }
    std::cout << "[ cap      ] " << left_out << " of " << 4 * count << " layers left out\n";
    EXPECT_GT(left_out, 3u);
    EXPECT_LT(left_out, 2 * count);
  }
}

/// The gradient of a network, the cap just above its budget.
TEST(DeviceCaps, RealModelsAreTheCpus) {
  const test::RealGradient model;
  const Policy policy = Policy::parse("*=atomo:bits=0.5,cap=0.505,atoms=rows");
  Compressor on_host(model.specs, policy), on_device(model.specs, policy, {.device = Device::cuda});
  test::Gradients gradients(model.specs);
  gradients.values() = model.values;
  gradients.upload();
  const test::ModelBuffers buffers(on_device);
  const double limit = 0.505 * static_cast<double>(model.elements) / 8;
  Tally tally;
  for (std::uint32_t step = 0; step < 16; ++step) {
    const auto expected = test::encode_on_host(on_host, model.views, {.step = step});
    ASSERT_EQ(
        on_device.encode(gradients.views(), {.step = step}, buffers.target(), buffers.context()),
        Status::ok);
    const auto m = buffers.message();
    ASSERT_EQ(m.status, expected.status);
    ASSERT_TRUE(m.bytes == expected.bytes) << m.bytes.size() << ", " << expected.bytes.size();
    ASSERT_LE(static_cast<double>(m.bytes.size()), limit);
    tally.add(m.bytes);
  }
  tally.print("a real gradient");
  EXPECT_GT(tally.thinned, 4u);
}

/// Layers that send nothing leave their share to the others.
TEST_P(DeviceCapModels, WithLayersThatSendNothing) {
  std::fill(gradients.values()[0].begin(), gradients.values()[0].end(), 0.0f);
  gradients.values()[2][1] = std::numeric_limits<float>::quiet_NaN();
  gradients.upload();
  for (std::uint32_t step = 0; step < 3; ++step)
    ASSERT_NO_FATAL_FAILURE(compare({.seed = 3, .step = step}));
  for (auto& layer : gradients.values()) std::fill(layer.begin(), layer.end(), 0.0f);
  gradients.upload();
  ASSERT_NO_FATAL_FAILURE(compare({.seed = 4}));
}

/// A capture replays with the step of the device: another step's runs are left out.
TEST_P(DeviceCapModels, GraphsReplay) {
  test::expect_replays_are_the_cpus(on_host, on_device, gradients, buffers);
}

}  // namespace
}  // namespace atomo
