// SPDX-License-Identifier: Apache-2.0
/// What a streamed step asks of the CUDA runtime: nothing that allocates, waits or touches the
/// default stream; for a layer a launch more than for a tensor, at the end as many for hundreds of
/// layers as for one.
#include <gtest/gtest.h>

#include <functional>
#include <iostream>

#include "calls.hpp"
#include "support/device_model.hpp"

namespace atomo {
namespace {

struct StepLaunches {
  std::size_t layer = 0, end = 0;
};

/// While one lives, what is put into the stream is counted and captured, and never run.
class Counting {
 public:
  Counting() {
    EXPECT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  ~Counting() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  [[nodiscard]] Context context(const test::Memory& workspace) const {
    Context context;
    context.stream = stream.get();
    context.workspace = workspace.bytes();
    return context;
  }

  test::StreamOwner stream;
};

/// Of the layer that takes most.
StepLaunches launches_of(const std::vector<LayerSpec>& specs, const std::string& policy) {
  Compressor model(specs, Policy::parse(policy), {.device = Device::cuda});
  const test::Gradients gradients(specs);
  const test::ModelBuffers buffers(model);
  std::size_t most = 0;
  for (std::size_t i = 0; i < specs.size(); ++i)
    most = std::max(most, test::workspace_bytes(model, i));
  const test::Memory workspace(most);
  const Counting counting;
  StepLaunches launches;
  hostexec::reset_calls();
  EXPECT_EQ(model.begin_step({.seed = 1}), Status::ok);
  EXPECT_EQ(hostexec::launch_count(), 0u);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::size_t before = hostexec::launch_count();
    EXPECT_EQ(
        model.encode_layer(i, gradients.views()[i], buffers.target(), counting.context(workspace)),
        Status::ok);
    launches.layer = std::max(launches.layer, hostexec::launch_count() - before);
  }
  const std::size_t before = hostexec::launch_count();
  EXPECT_EQ(model.end_step(counting.context(workspace)), Status::ok);
  launches.end = hostexec::launch_count() - before;
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{}) << policy;
  return launches;
}

/// Of one tensor by its codec.
std::size_t launches_of_tensor(const LayerSpec& layer, const std::string& spec) {
  const Codec codec = Codec::parse(spec);
  const test::Gradients gradients({layer});
  const test::Memory payload(codec.max_encoded_bytes(layer.shape)),
      workspace(test::workspace_bytes(codec, layer.shape, DType::f32, Device::cuda));
  const test::Word<std::uint64_t> bytes;
  const Counting counting;
  hostexec::reset_calls();
  EXPECT_EQ(
      codec.encode(gradients.views()[0], {}, {payload.data(), payload.bytes().size(), bytes.data()},
                   counting.context(workspace)),
      Status::ok);
  return hostexec::launch_count();
}

TEST(StreamingLaunches, AreAConstant) {
  const LayerSpec one{"layer", {64, 40}};
  std::vector<LayerSpec> many;
  for (int i = 0; i < 300; ++i)
    many.push_back(
        {"layer" + std::to_string(i), i % 3 == 0 ? Shape{30 + i % 9} : Shape{i % 5, 40}});
  struct Expected {
    const char* spec;
    std::size_t kept, end;
  };
  for (const auto& [spec, kept, end] :
       {Expected{"qsgd:bits=4", 0, 3}, Expected{"atomo:bits=4,atoms=rows", 1, 5},
        Expected{"atomo:bits=8,cap=64,atoms=rows", 1, 6},
        Expected{"atomo:bits=4,atoms=coordinate", 1, 7},
        Expected{"atomo:price=0.01,atoms=rows", 0, 3}, Expected{"atomo:bits=4,atoms=auto", 1, 5}}) {
    const std::string policy = std::string("*=") + spec;
    const StepLaunches single = launches_of({one}, policy);
    std::cout << spec << ": a layer " << single.layer << ", end " << single.end << " launches\n";
    EXPECT_EQ(single.layer, launches_of_tensor(one, spec) + kept) << spec;
    EXPECT_EQ(single.end, end) << spec;
    if (std::string(spec).find("cap") != std::string::npos) continue;  // too small for caps
    const StepLaunches all = launches_of(many, policy);
    EXPECT_LE(all.layer, single.layer) << spec;
    EXPECT_EQ(all.end, single.end) << spec;
  }
}

/// Of a whole message, or of one of a part.
std::size_t launches_of_message(Compressor& model, std::span<const ConstTensorView> views,
                                const Key& key) {
  const test::ModelBuffers buffers(model);
  const test::Memory workspace(model.encode_workspace_bytes());
  const Counting counting;
  hostexec::reset_calls();
  EXPECT_EQ(model.encode(views, key, buffers.target(), counting.context(workspace)), Status::ok);
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  return hostexec::launch_count();
}

TEST(StreamingLaunches, APartTakesOneMoreThanAModel) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < 60; ++i) layers.push_back({"layer" + std::to_string(i), {30 + i % 9, 20}});
  const test::Gradients gradients(layers);
  const std::vector<LayerSpec> own(layers.begin() + 10, layers.begin() + 50);
  const auto views = std::span(gradients.views()).subspan(10, 40);
  for (const auto& [spec, kept] : {std::pair{"qsgd:bits=4", 0u},
                                   {"atomo:bits=4,atoms=rows", 1u},
                                   {"atomo:bits=4,atoms=coordinate", 1u},
                                   {"atomo:bits=4,atoms=auto", 1u}}) {
    const auto policy = Policy::parse(std::string("*=") + spec);
    Compressor model(layers, policy, {.device = Device::cuda});
    Compressor alone(own, policy, {.device = Device::cuda});
    Compressor part = model.part(10, 40);
    ASSERT_EQ(model.begin_step({.seed = 1}), Status::ok);
    EXPECT_EQ(launches_of_message(part, views, {.seed = 1}),
              launches_of_message(alone, views, {.seed = 1}) + kept)
        << spec;
  }
}

/// A model's tables are on the device that it was set up on.
TEST(StreamingLaunches, AnotherCurrentDeviceIsRefused) {
  const std::vector<LayerSpec> layers{{"layer", {64, 40}}};
  Compressor model(layers, Policy::parse("*=atomo:bits=1,atoms=rows"), {.device = Device::cuda});
  const test::Gradients gradients(layers);
  const test::ModelBuffers buffers(model);
  const test::Memory workspace(
      std::max({model.encode_workspace_bytes(), model.decode_workspace_bytes(),
                test::workspace_bytes(model, 0)}));
  const Counting counting;
  const Context context = counting.context(workspace);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  hostexec::reset_calls();
  EXPECT_EQ(model.encode(gradients.views(), {}, buffers.target(), context), Status::unsupported);
  ASSERT_EQ(model.begin_step({.seed = 1}), Status::ok);
  EXPECT_EQ(model.encode_layer(0, gradients.views()[0], buffers.target(), context),
            Status::unsupported);
  EXPECT_EQ(hostexec::launch_count(), 0u);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(model.encode_layer(0, gradients.views()[0], buffers.target(), context), Status::ok);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(model.end_step(context), Status::unsupported);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

/// Calls that wait, wait for the model's device, and leave the caller's current.
TEST(StreamingLaunches, WaitingCallsGoToTheModelsDevice) {
  const std::vector<LayerSpec> layers{{"layer", {64, 40}}};
  Compressor model(layers, Policy::parse("*=ef+topk:keep=0.1"), {.device = Device::cuda});
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  std::vector<std::byte> state;
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { static_cast<void>(model.prices()); }, [&] { state = model.save(); },
           [&] { static_cast<void>(model.memory(0)); }, [&] { model.load(state); },
           [&] { model.reset_memory(); }}) {
    hostexec::reset_calls();
    call();
    std::size_t changes = 0;
    for (const hostexec::Call& made : hostexec::calls())
      changes += made.name == "cudaSetDevice" ? made.count : 0;
    EXPECT_GE(changes, 2u) << "there and back";
    int now = -1;
    ASSERT_EQ(cudaGetDevice(&now), cudaSuccess);
    EXPECT_EQ(now, 1);
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

}  // namespace
}  // namespace atomo
