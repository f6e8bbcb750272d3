// SPDX-License-Identifier: Apache-2.0
/// Steps whose layers come one by one, on a device: the CPU's messages, statuses and controller
/// over many steps of changing gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "on_cpu.hpp"

namespace atomo {
namespace {

constexpr CompressorOptions kOnDevice{.device = Device::cuda};

/// A layer's gradient on both sides, and where its messages go.
struct StreamedLayer {
  LayerSpec spec;
  std::vector<float> values;  ///< of a step without noise
  std::vector<std::byte> entries;
  test::Memory tensor, workspace, payload;
  test::Word<std::uint64_t> bytes;
  test::Word<Status> status;

  StreamedLayer(const LayerSpec& layer, const Compressor& on_device, std::size_t i)
      : spec(layer),
        values(test::heavy_tailed(layer.shape.elements(), 70 + i, 60)),
        tensor(values.size() * size_of(layer.dtype), size_of(layer.dtype) * (i % 3)),
        workspace(on_device.workspace_bytes(i)),
        payload(on_device.max_encoded_bytes(i), i % 4) {}
  /// All entries `scale` times as large, the first one as `first` has it.
  void set(float scale, std::optional<float> first = {}) {
    std::vector<float> scaled = values;
    for (float& x : scaled) x *= scale;
    if (first && !scaled.empty()) scaled[0] = *first;
    entries = test::entries_of(scaled, spec.dtype);
    tensor.put(entries);
  }
};

/// A model on the CPU and on the device.
class Twins {
 public:
  Twins(const std::vector<LayerSpec>& specs, const std::string& policy)
      : on_host(specs, Policy::parse(policy)), on_device(specs, Policy::parse(policy), kOnDevice) {
    for (std::size_t i = 0; i < specs.size(); ++i)
      layers.push_back(std::make_unique<StreamedLayer>(specs[i], on_device, i));
  }

  Compressor on_host, on_device;
  std::vector<std::unique_ptr<StreamedLayer>> layers;
  test::StreamOwner stream;
  test::Word<std::uint32_t> step_word;
  test::Word<Status> status;

  [[nodiscard]] Context context(std::size_t i, bool device_step = false) const {
    Context context;
    context.stream = stream.get();
    context.workspace = layers[i]->workspace.bytes();
    context.status = layers[i]->status.data();
    if (device_step) context.step = step_word.data();
    return context;
  }
  [[nodiscard]] Payload target(std::size_t i) const {
    const auto& layer = *layers[i];
    return {layer.payload.data(), layer.payload.bytes().size(), layer.bytes.data()};
  }
  Status encode_on_device(std::size_t i, const Context& context) {
    const auto& layer = *layers[i];
    return on_device.encode_layer(
        i, {layer.tensor.data(), layer.spec.dtype, layer.spec.shape, Device::cuda}, target(i),
        context);
  }
  test::Message encode_on_host(std::size_t i, const std::uint32_t* step = nullptr) {
    const auto& layer = *layers[i];
    std::vector<std::byte> workspace(on_host.workspace_bytes(i));
    test::Message m;
    m.bytes.resize(on_host.max_encoded_bytes(i));
    std::uint64_t bytes = 0;
    m.status = on_host.encode_layer(i, {layer.entries.data(), layer.spec.dtype, layer.spec.shape},
                                    {m.bytes.data(), m.bytes.size(), &bytes},
                                    {.workspace = workspace, .step = step});
    m.bytes.resize(bytes);
    return m;
  }
  [[nodiscard]] test::Message sent(std::size_t i) const {
    stream.wait();
    test::Message m{layers[i]->status.get(), {}};
    if (!failed(m.status)) m.bytes = layers[i]->payload.get(layers[i]->bytes.get());
    return m;
  }
  void expect_the_cpus_layer(std::size_t i, const std::uint32_t* step = nullptr) {
    ASSERT_EQ(encode_on_device(i, context(i, step != nullptr)), Status::ok);
    const auto expected = encode_on_host(i, step);
    const auto m = sent(i);
    ASSERT_EQ(m.status, expected.status) << layers[i]->spec.name;
    ASSERT_TRUE(m.bytes == expected.bytes)
        << layers[i]->spec.name << ": " << m.bytes.size() << ", " << expected.bytes.size();
  }
  void expect_the_cpus_end() {
    Context context;
    context.stream = stream.get();
    context.status = status.data();
    const Status expected = on_host.end_step();
    const float price = on_host.price(), grid_step = on_host.grid_step();
    ASSERT_EQ(on_device.end_step(context), Status::ok);
    ASSERT_TRUE(on_device.save() == on_host.save());
    EXPECT_EQ(status.get(), expected);
    EXPECT_EQ(on_device.price(), price);
    EXPECT_EQ(on_device.grid_step(), grid_step);
    EXPECT_EQ(on_device.predicted_price(), on_host.predicted_price());
    EXPECT_EQ(on_device.predicted_grid_step(), on_host.predicted_grid_step());
  }
};

/// Matrices, long and short ones, halves, tensors that try coordinates, and an empty one; none
/// whose sketch a device finds by other sums than the CPU.
std::vector<LayerSpec> mixed_layers() {
  return {{"a.weight", {2, 1500}},
          {"a.bias", {24}},
          {"b.weight", {300, 9}},
          {"b.bias", {9000}},
          {"c.weight", {1, 1300}, DType::bf16},
          {"c.bias", {700}, DType::f16},
          {"d.weight", {0, 4}},
          {"e.weight", {40, 5, 3}}};
}

struct Streamed {
  const char* name;
  const char* policy;
};
void PrintTo(const Streamed& streamed, std::ostream* out) { *out << streamed.policy; }

class DeviceStreaming : public testing::TestWithParam<Streamed> {
 protected:
  Twins twins{mixed_layers(), GetParam().policy};
};
INSTANTIATE_TEST_SUITE_P(
    Policies, DeviceStreaming,
    testing::Values(
        Streamed{"rows", "*=atomo:bits=1,atoms=rows"},
        Streamed{"blocks", "*=atomo:bits=0.3,atoms=blocks"},
        Streamed{"grid", "*=atomo:bits=1,atoms=coordinate"},
        Streamed{"chosen", "*=atomo:bits=1.1,atoms=auto"},
        Streamed{"capped",
                 "a.*=atomo:bits=16,cap=17,atoms=rows; b.*=atomo:bits=14,cap=16,atoms=blocks; "
                 "*=atomo:bits=16,atoms=rows"},
        Streamed{"mixed",
                 "a.weight=qsgd:bits=3; a.bias=atomo:bits=4,atoms=coordinate; "
                 "b.weight=atomo:price=0.01,atoms=rows; b.bias=atomo:bits=1,atoms=blocks; "
                 "c.weight=topk:keep=0.1; c.bias=atomo:bits=2,atoms=coordinate; "
                 "d.weight=atomo:bits=1,atoms=rows; *=atomo:bits=0.7,atoms=auto"},
        Streamed{"unpriced", "*.bias=sign:scale=mean; a.weight=randomk:keep=0.1; *=terngrad"}),
    [](const auto& made) { return std::string(made.param.name); });

/// Noise from step to step, a jump by 100, layers that are not finite, zero, left out or encoded
/// twice, prices fixed by hand, the step read from device memory.
TEST_P(DeviceStreaming, MessagesAndControllerAreTheCpus) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  for (std::uint32_t step = 0; step < 24; ++step) {
    const Key key{.seed = 5, .step = step, .worker = 1};
    if (step == 9) {
      ASSERT_EQ(twins.on_host.begin_step(key, 0.0625f, 0.125f), Status::ok);
      ASSERT_EQ(twins.on_device.begin_step(key, 0.0625f, 0.125f), Status::ok);
    } else if (step == 17) {
      ASSERT_EQ(twins.on_host.begin_step(key, 0, 0), Status::ok);
      ASSERT_EQ(twins.on_device.begin_step(key, 0, 0), Status::ok);
    } else {
      ASSERT_EQ(twins.on_host.begin_step(key), Status::ok);
      ASSERT_EQ(twins.on_device.begin_step(key), Status::ok);
    }
    EXPECT_EQ(twins.on_device.price(), twins.on_host.price());
    const std::uint32_t other = step + 100;
    if (step % 5 == 1) twins.step_word.set(other);
    for (std::size_t i = 0; i < twins.layers.size(); ++i) {
      const float scale = (step < 12 ? 1.0f : 100.0f) * std::exp(0.2f * normal(generator));
      std::optional<float> first;
      if ((step + i) % 11 == 7) first = std::numeric_limits<float>::quiet_NaN();
      twins.layers[i]->set((step + i) % 13 == 5 ? 0.0f : scale, first);
      if (step > 2 && (step + 3 * i) % 7 == 0) continue;
      if ((step + i) % 6 == 2) {  // the first of the two does not count
        ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_layer(i));
        twins.layers[i]->set(0.5f * scale);
      }
      ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_layer(i, step % 5 == 1 ? &other : nullptr))
          << "step " << step;
    }
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_end()) << "step " << step;
  }
}

}  // namespace
}  // namespace atomo
