// SPDX-License-Identifier: Apache-2.0
/// Steps whose layers come one by one, on a device: the CPU's messages, statuses and controller
/// over many steps of changing gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "atomo/container.hpp"
#include "atomo/cuda.hpp"
#include "support/on_cpu.hpp"

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
        workspace(test::workspace_bytes(on_device, i)),
        payload(on_device.max_encoded_bytes(i), i % 4) {
    // Mostly zeros: worth a grid.
    for (std::size_t k = 0; k < values.size() && values.size() == 9000; ++k)
      values[k] *= k % 9 == 0 ? 1.0f : 0.0f;
  }
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
  int bound = 0;   ///< layers that a cap changed
  int bodies = 0;  ///< layers that sent something
  HandlesPtr handles = make_handles();

  [[nodiscard]] Context context(std::size_t i, bool device_step = false) const {
    Context context;
    context.stream = stream.get();
    context.workspace = layers[i]->workspace.bytes();
    context.status = layers[i]->status.data();
    context.handles = handles.get();
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
    std::vector<std::byte> workspace(test::workspace_bytes(on_host, i));
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
    ContainerInfo info;
    if (!failed(m.status)) {
      ASSERT_EQ(inspect(m.bytes, info, true), Status::ok);
      const auto& layer = info.layers[0];
      const bool raised = info.prices.atoms > 0 && layer.price > info.prices.atoms;
      bound += layer.thinned || raised ? 1 : 0;
      bodies += layer.bytes > 0 ? 1 : 0;
    }
  }
  void share(double of_budgets) {
    on_host.set_budget_share(of_budgets);
    on_device.set_budget_share(of_budgets);
  }
  void begin(const Key& key) {
    ASSERT_EQ(on_host.begin_step(key), Status::ok);
    ASSERT_EQ(on_device.begin_step(key), Status::ok);
  }
  void end_on_device(Stream of) {
    Context context;
    context.stream = of;
    context.status = status.data();
    ASSERT_EQ(on_device.end_step(context), Status::ok);
  }
  void expect_the_cpus_end() {
    ASSERT_NO_FATAL_FAILURE(end_on_device(stream.get()));
    expect_the_cpus_controller();
  }
  void expect_the_cpus_controller() {
    const Status expected = on_host.end_step();
    const Prices prices = on_host.prices();
    ASSERT_TRUE(on_device.save() == on_host.save());
    EXPECT_EQ(status.get(), expected);
    EXPECT_EQ(on_device.prices(), prices);
    EXPECT_EQ(on_device.predicted_prices(), on_host.predicted_prices());
  }
};

struct Streamed {
  const char* name;
  const char* policy;
};
void PrintTo(const Streamed& streamed, std::ostream* out) { *out << streamed.policy; }

class DeviceStreaming : public testing::TestWithParam<Streamed> {
 protected:
  Twins twins{test::mixed_layers(), GetParam().policy};
};
INSTANTIATE_TEST_SUITE_P(
    Policies, DeviceStreaming,
    testing::Values(
        Streamed{"rows", "*=atomo:bits=1,atoms=rows"},
        Streamed{"blocks", "*=atomo:bits=0.3,atoms=blocks"},
        Streamed{"grid", "?.weight=identity; *=atomo:bits=1,atoms=coordinate"},
        Streamed{"chosen", "*=atomo:bits=1.1,atoms=auto"},
        Streamed{"capped",
                 "a.*=atomo:bits=16,cap=17,atoms=rows; b.*=atomo:bits=14,cap=16,atoms=blocks; "
                 "*=atomo:bits=16,atoms=rows"},
        Streamed{"mixed",
                 "a.weight=qsgd:bits=3; a.bias=atomo:bits=4,atoms=coordinate; "
                 "b.weight=atomo:price=0.01,atoms=rows; b.bias=atomo:bits=1,atoms=blocks; "
                 "c.weight=topk:keep=0.1; c.bias=atomo:bits=2,atoms=coordinate; "
                 "d.weight=atomo:bits=1,atoms=rows; *=atomo:bits=0.7,atoms=auto"},
        Streamed{"poor",
                 "?.bias=atomo:bits=0.001,atoms=coordinate; *=atomo:bits=0.001,atoms=blocks"},
        Streamed{"unpriced", "*.bias=sign:scale=mean; a.weight=randomk:keep=0.1; *=terngrad"}),
    [](const auto& made) { return std::string(made.param.name); });

/// Noise from step to step, a jump by 100, layers that are not finite, zero, left out or encoded
/// twice, prices fixed by hand, the step read from device memory, steps with shares of the budget.
TEST_P(DeviceStreaming, MessagesAndControllerAreTheCpus) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  for (std::uint32_t step = 0; step < 21; ++step) {
    const Key key{.seed = 5, .step = step, .worker = 1};
    if (step == 9) {
      ASSERT_EQ(twins.on_host.begin_step(key, {0.0625f, 0.125f}), Status::ok);
      ASSERT_EQ(twins.on_device.begin_step(key, {0.0625f, 0.125f}), Status::ok);
    } else if (step == 17) {
      ASSERT_EQ(twins.on_host.begin_step(key, Prices{}), Status::ok);
      ASSERT_EQ(twins.on_device.begin_step(key, Prices{}), Status::ok);
    } else {
      ASSERT_NO_FATAL_FAILURE(twins.begin(key));
    }
    EXPECT_EQ(twins.on_device.prices(), twins.on_host.prices());
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
    if (step >= 10) twins.share(0.25 + 0.5 * (step % 4));  // of the next step
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_end()) << "step " << step;
  }
  const bool capped = std::string(GetParam().policy).find("cap=") != std::string::npos;
  EXPECT_GE(twins.bound, capped ? 15 : 0) << "the caps must bind for this to say anything";
}

/// Heads leave so little room under the cap that a body can only be sent from the reserve.
TEST(StreamedCaps, OneLayerHasTheReserve) {
  std::vector<LayerSpec> specs;
  for (int i = 0; i < 24; ++i) specs.push_back({std::to_string(i), {150 + i}});
  const auto policy_of = [](double bits) {
    const std::string text = std::to_string(bits);
    return "*=atomo:bits=" + text + ",cap=" + text + ",atoms=blocks";
  };
  double bits = 4;
  while (failed(Compressor(specs, Policy::parse(policy_of(bits))).begin_step({}))) bits += 0.02;
  bits += 1.2;  // for limits of half a body
  Twins twins(specs, policy_of(bits).c_str());
  const int steps = test::in_turns() ? 20 : 60, layers = 24 * steps;
  for (std::uint32_t step = 0; step < static_cast<std::uint32_t>(steps); ++step) {
    ASSERT_NO_FATAL_FAILURE(twins.begin({.seed = 3, .step = step}));
    for (std::size_t i = 0; i < twins.layers.size(); ++i) {
      twins.layers[i]->set(1.0f);
      ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_layer(i));
    }
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_end());
  }
  std::cout << "[ cap      ] " << twins.bodies << " of " << layers << " layers sent, with " << bits
            << " bits a parameter\n";
  EXPECT_GT(twins.bodies, 0);
  EXPECT_LT(twins.bodies, 400 * layers / 1440);
}

/// A step captured once and replayed with other gradients and steps, the controller going on.
TEST_P(DeviceStreaming, GraphsReplay) {
  const test::Captured captured([this](Stream stream) {
    ASSERT_EQ(twins.on_device.begin_step({.seed = 2}), Status::ok);
    for (std::size_t i = 0; i < twins.layers.size(); ++i) {
      Context context = twins.context(i, true);
      context.stream = stream;
      ASSERT_EQ(twins.encode_on_device(i, context), Status::ok);
    }
    ASSERT_NO_FATAL_FAILURE(twins.end_on_device(stream));
  });
  for (const std::uint32_t step : {3u, 4u, 8u}) {
    twins.step_word.set(step);
    for (const auto& layer : twins.layers) layer->set(step == 8 ? 0.7f : 1.0f);
    captured.replay(twins.stream);
    ASSERT_EQ(twins.on_host.begin_step({.seed = 2, .step = step}), Status::ok);
    for (std::size_t i = 0; i < twins.layers.size(); ++i)
      ASSERT_TRUE(twins.sent(i).bytes == twins.encode_on_host(i).bytes)
          << twins.layers[i]->spec.name << ", step " << step;
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_controller()) << "step " << step;
  }
}

/// Layers decode to the CPU's values, written and added.
TEST(DeviceStreamedLayers, DecodeToTheCpusValues) {
  Twins twins(test::mixed_layers(), "*.weight=atomo:bits=2,atoms=rows; *=qsgd:bits=4");
  ASSERT_NO_FATAL_FAILURE(twins.begin({.seed = 6}));
  for (std::size_t i = 0; i < twins.layers.size(); ++i) {
    const auto& layer = *twins.layers[i];
    const std::size_t n = layer.values.size();
    twins.layers[i]->set(1);
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_layer(i));
    const auto message = twins.sent(i).bytes;
    const ConstBytes on_device(layer.payload.data(), message.size());
    for (const bool add : {false, true}) {
      std::vector<float> y = test::heavy_tailed(n, 3);
      const test::Memory target(4 * n, 4);
      target.put(std::as_bytes(std::span(y)));
      const TensorView view{target.data(), DType::f32, layer.spec.shape, Device::cuda};
      const TensorView host_view{y.data(), DType::f32, layer.spec.shape};
      std::vector<std::byte> workspace(test::workspace_bytes(twins.on_host, i));
      const Context host{.workspace = workspace};
      if (add) {
        ASSERT_EQ(twins.on_host.decode_layer_add(i, message, 0.5f, host_view, host), Status::ok);
        ASSERT_EQ(twins.on_device.decode_layer_add(i, on_device, 0.5f, view, twins.context(i)),
                  Status::ok);
      } else {
        ASSERT_EQ(twins.on_host.decode_layer(i, message, host_view, host), Status::ok);
        ASSERT_EQ(twins.on_device.decode_layer(i, on_device, view, twins.context(i)), Status::ok);
      }
      twins.stream.wait();
      EXPECT_EQ(layer.status.get(), Status::ok);
      EXPECT_TRUE(target.get(4 * n) == test::entries_of(y)) << layer.spec.name;
    }
  }
}

/// Layers of one shape may have two codecs: the layer's number says which reads the message.
TEST(DeviceStreamedLayers, OfOneShapeDecodeWithTheirOwnCodecs) {
  const std::vector<LayerSpec> specs{{"a", {70}}, {"b", {70}}, {"c", {71}}};
  Compressor model(specs, Policy::parse("a=sign; *=identity"), kOnDevice);
  const std::vector<float> x(70, 1.0f);
  const test::Memory tensor(4 * 70),
      workspace(test::workspace_bytes(model, 0) + test::workspace_bytes(model, 1));
  const test::StreamOwner stream;
  const test::Word<Status> status;
  Context context{.stream = stream.get(), .workspace = workspace.bytes()};
  context.status = status.data();
  const TensorView view{tensor.data(), DType::f32, {70}, Device::cuda};
  for (const std::size_t i : {0u, 1u}) {
    const auto sent = test::encode(model.codec(i), x, {70});
    const test::Memory message(sent.bytes.size());
    message.put(sent.bytes);
    ASSERT_EQ(model.decode_layer(i, message.bytes(), view, context), Status::ok);
    stream.wait();
    EXPECT_EQ(status.get(), Status::ok);
    EXPECT_TRUE(tensor.get(4 * 70) == test::entries_of(x)) << i;
    ASSERT_EQ(model.decode_layer(1 - i, message.bytes(), view, context), Status::ok);
    stream.wait();
    EXPECT_EQ(status.get(), Status::codec_mismatch);
  }
  const test::Memory message(1000);
  EXPECT_EQ(model.decode_layer(2, message.bytes(), view, context), Status::shape_mismatch);
  EXPECT_EQ(model.decode_layer(3, message.bytes(), view, context), Status::shape_mismatch);
}

/// A null stream would be the legacy default stream in silence.
TEST(DeviceStreamedLayers, RefuseANullStream) {
  Twins twins(test::mixed_layers(), "*=atomo:bits=1,atoms=rows");
  Compressor& model = twins.on_device;
  const auto& layer = *twins.layers[0];
  const ConstTensorView view{layer.tensor.data(), DType::f32, layer.spec.shape, Device::cuda};
  const TensorView out{layer.tensor.data(), DType::f32, layer.spec.shape, Device::cuda};
  Context context = twins.context(0);
  context.stream = nullptr;
  const Codec& codec = model.codec(0);
  const ConstBytes message(layer.payload.data(), 100);
  EXPECT_EQ(codec.encode(view, {}, twins.target(0), context), Status::invalid_argument);
  EXPECT_EQ(codec.decode(message, out, context), Status::invalid_argument);
  EXPECT_EQ(model.decode_layer(0, message, out, context), Status::invalid_argument);
  ASSERT_EQ(model.begin_step({}), Status::ok);
  EXPECT_EQ(model.encode_layer(0, view, twins.target(0), context), Status::invalid_argument);
  EXPECT_EQ(model.end_step(context), Status::invalid_argument);
}

/// Also where the device's pairs are not the CPU's: streamed at the price of the whole message,
/// layers join to it, on two streams at once and in any order; sizes then are those that the
/// controller learns from.
TEST(DeviceStreamedLayers, JoinToTheWholeMessage) {
  const std::vector<LayerSpec> specs{
      {"a", {64, 300}}, {"b", {64}}, {"c", {30, 2000}}, {"d", {500, 40}}, {"e", {12, 9, 2}}};
  for (const std::string policy :
       {"*=atomo:bits=1,atoms=sketch", "*=atomo:bits=0.5,atoms=auto", "*=atomo:bits=2,atoms=svd",
        "a=atomo:bits=1,atoms=coordinate; b=sign; *=atomo:bits=0.5,atoms=auto"}) {
    Twins twins(specs, policy);
    const test::ModelBuffers whole(twins.on_device);
    std::vector<ConstTensorView> views;
    for (const auto& layer : twins.layers) {
      layer->set(1);
      views.push_back({layer->tensor.data(), DType::f32, layer->spec.shape, Device::cuda});
    }
    ASSERT_EQ(twins.on_device.encode(views, {.seed = 3}, whole.target(),
                                     whole.context(twins.handles.get())),
              Status::ok);
    const auto expected = whole.message();
    const Prices prices = twins.on_device.prices();
    const float price = prices.atoms;
    EXPECT_EQ(twins.on_device.predicted_prices(), prices);
    ASSERT_EQ(twins.on_device.begin_step({.seed = 3}, prices), Status::ok);
    const test::StreamOwner second;
    const HandlesPtr of_second = make_handles();
    for (const std::size_t i : {3u, 1u, 4u, 0u, 2u}) {
      Context context = twins.context(i);
      if (i % 2 == 0) context.stream = second.get(), context.handles = of_second.get();
      ASSERT_EQ(twins.encode_on_device(i, context), Status::ok);
    }
    second.wait();
    std::vector<std::vector<std::byte>> parts;
    for (std::size_t i = 0; i < specs.size(); ++i) parts.push_back(twins.sent(i).bytes);
    ASSERT_NO_FATAL_FAILURE(twins.end_on_device(twins.stream.get()));
    const std::vector<ConstBytes> spans(parts.begin(), parts.end());
    std::vector<std::byte> joined(joined_bytes_bound(spans));
    std::uint64_t bytes = 0;
    ASSERT_EQ(join(spans, {joined.data(), joined.size(), &bytes}), Status::ok);
    joined.resize(bytes);
    EXPECT_TRUE(joined == expected.bytes) << policy;
    // The same gradients once more: what the whole message was found to need, less its head.
    EXPECT_NEAR(std::log2(twins.on_device.predicted_prices().atoms / price), 0, 0.1) << policy;
  }
}

/// A whole message tells the controller its price; a saved state goes on elsewhere, here on the
/// other side.
void expect_to_go_on_from_saved_states(const char* policy) {
  const std::vector<LayerSpec> specs{{"a.weight", {40, 30}}, {"b.weight", {3000}}};
  Twins twins(specs, policy);
  const test::ModelBuffers whole(twins.on_device);
  std::vector<ConstTensorView> views, host_views;
  for (const auto& layer : twins.layers) {
    layer->set(1);
    views.push_back({layer->tensor.data(), DType::f32, layer->spec.shape, Device::cuda});
    host_views.push_back({layer->entries.data(), DType::f32, layer->spec.shape});
  }
  const auto expected = test::encode_on_host(twins.on_host, host_views, {.seed = 3});
  ASSERT_EQ(twins.on_device.encode(views, {.seed = 3}, whole.target(), whole.context()),
            Status::ok);
  EXPECT_TRUE(whole.message().bytes == expected.bytes);
  EXPECT_TRUE(twins.on_device.save() == twins.on_host.save());
  for (std::uint32_t step = 0; step < 5; ++step) {
    ASSERT_NO_FATAL_FAILURE(twins.begin({.seed = 3, .step = step}));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      twins.layers[i]->set(1 + 0.1f * static_cast<float>(step));
      ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_layer(i)) << "step " << step;
    }
    ASSERT_NO_FATAL_FAILURE(twins.expect_the_cpus_end()) << "step " << step;
    if (step != 3) continue;
    const auto state = twins.on_device.save();
    twins.on_device = Compressor(specs, Policy::parse(policy), kOnDevice);
    twins.on_host = Compressor(specs, Policy::parse(policy));
    EXPECT_EQ(twins.on_device.predicted_prices().atoms, 0);
    twins.on_device.load(state);
    twins.on_host.load(state);
    EXPECT_TRUE(twins.on_device.save() == state);
    EXPECT_TRUE(twins.on_host.save() == state);
    EXPECT_GT(twins.on_device.predicted_prices().atoms, 0);
    EXPECT_THROW(twins.on_device.load(ConstBytes(state).first(state.size() - 1)), Error);
  }
}

TEST(DeviceStreamedLayers, GoOnFromWholeMessagesAndSavedStates) {
  expect_to_go_on_from_saved_states(
      "a.*=atomo:bits=1,atoms=coordinate; *=atomo:bits=1,atoms=blocks");
}

TEST(DeviceStreamedLayers, GoOnUnderACapFromSavedStates) {
  expect_to_go_on_from_saved_states("*=atomo:bits=20,cap=20,atoms=blocks");
}

TEST(DeviceStreamedLayers, RefuseWrongCalls) {
  Twins twins(test::mixed_layers(), "*=atomo:bits=1,atoms=rows");
  Compressor& model = twins.on_device;
  const auto encode = [&](std::size_t i, const ConstTensorView& view, const Payload& payload,
                          const Context& context) {
    return model.encode_layer(i, view, payload, context);
  };
  const auto& layer = *twins.layers[0];
  const ConstTensorView view{layer.tensor.data(), DType::f32, layer.spec.shape, Device::cuda};
  EXPECT_EQ(encode(0, view, twins.target(0), twins.context(0)), Status::wrong_stage);
  EXPECT_EQ(model.end_step(), Status::wrong_stage);
  ASSERT_EQ(model.begin_step({}), Status::ok);
  EXPECT_EQ(model.begin_step({}), Status::wrong_stage);
  EXPECT_EQ(encode(99, view, twins.target(0), twins.context(0)), Status::shape_mismatch);
  EXPECT_EQ(encode(1, view, twins.target(1), twins.context(1)), Status::shape_mismatch);
  EXPECT_EQ(encode(0, {layer.tensor.data(), DType::f32, layer.spec.shape}, twins.target(0),
                   twins.context(0)),
            Status::unsupported);
  EXPECT_EQ(encode(0, {layer.tensor.data(), DType::f16, layer.spec.shape, Device::cuda},
                   twins.target(0), twins.context(0)),
            Status::unsupported);
  EXPECT_EQ(encode(0, {nullptr, DType::f32, layer.spec.shape, Device::cuda}, twins.target(0),
                   twins.context(0)),
            Status::invalid_argument);
  Payload small = twins.target(0);
  --small.capacity;
  EXPECT_EQ(encode(0, view, small, twins.context(0)), Status::buffer_too_small);
  Context tight = twins.context(0);
  tight.workspace = tight.workspace.first(model.encode_workspace_bytes(0) - 1);
  EXPECT_EQ(encode(0, view, twins.target(0), tight), Status::workspace_too_small);
}

}  // namespace
}  // namespace atomo
