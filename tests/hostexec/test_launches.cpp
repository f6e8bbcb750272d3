// SPDX-License-Identifier: Apache-2.0
/// What a message asks of the CUDA runtime: nothing that allocates, waits or touches the default
/// stream, and as many launches for a thousand layers as for one.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>

#include "calls.hpp"
#include "captured_launches.hpp"
#include "support/device_model.hpp"

namespace atomo {
namespace {

constexpr CompressorOptions kOnDevice{.device = Device::cuda};

struct Launches {
  std::size_t encode = 0, decode = 0;
  std::vector<std::string> kernels;
};

/// Encodes and decodes once; nothing forbidden may be called.
Launches launches_of(const std::vector<LayerSpec>& specs, const std::string& policy) {
  Compressor model(specs, Policy::parse(policy), kOnDevice);
  const test::Gradients gradients(specs);
  const test::ModelBuffers buffers(model);
  Launches launches;
  hostexec::reset_calls();
  EXPECT_EQ(model.encode(gradients.views(), {.seed = 1}, buffers.target(), buffers.context()),
            Status::ok);
  launches.encode = hostexec::launch_count();
  for (const auto& launch : hostexec::launches()) launches.kernels.push_back(launch.kernel);
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  const ConstBytes message = buffers.payload.bytes();
  buffers.stream.wait();
  hostexec::reset_calls();
  EXPECT_EQ(model.decode_add(message, 1, gradients.targets(), buffers.context()), Status::ok);
  launches.decode = hostexec::launch_count();
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  buffers.stream.wait();
  EXPECT_EQ(buffers.status.get(), Status::ok);
  return launches;
}

/// The same calls, captured into a graph that nobody launches: no kernel runs.
Launches captured_launches_of(const std::vector<LayerSpec>& specs, const std::string& policy) {
  Compressor model(specs, Policy::parse(policy), kOnDevice);
  const test::Gradients gradients(specs);
  const test::ModelBuffers buffers(model);
  const auto captured = [&](auto call) {
    return test::captured_launches(buffers.stream.get(), call);
  };
  Launches launches;
  launches.encode = captured([&] {
    return model.encode(gradients.views(), {.seed = 1}, buffers.target(), buffers.context());
  });
  launches.decode = captured([&] {
    return model.decode_add(buffers.payload.bytes(), 1, gradients.targets(), buffers.context());
  });
  return launches;
}

/// The kernels of atoms and of qsgd run over all layers; those of the others for one layer.
TEST(Launches, AreAsManyForAThousandLayersAsForOne) {
  const std::vector<LayerSpec> one{{"layer", {64, 300}}};
  for (const std::string policy :
       {"*=atomo:bits=1,atoms=rows", "*=atomo:bits=1,atoms=coordinate", "*=qsgd:bits=4",
        "*=terngrad", "*=sign", "*=sign:scale=mean", "*=sign:scale=means,bucket=128",
        "*=minmax:bits=8", "*=identity:dtype=e4m3", "*=topk:keep=0.05", "*=randomk:keep=0.1",
        "*=identity"}) {
    const Launches single = launches_of(one, policy);
    std::cout << policy << ": encode " << single.encode << ", decode_add " << single.decode
              << " launches\n";
    for (const auto& specs : {test::resnet50(16), test::many_layers(1000)}) {
      const bool run = policy == "*=atomo:bits=1,atoms=rows" || policy == "*=qsgd:bits=4";
      const Launches many = run ? launches_of(specs, policy) : captured_launches_of(specs, policy);
      EXPECT_EQ(many.encode, single.encode) << policy << ", " << specs.size() << " layers";
      EXPECT_EQ(many.decode, single.decode) << policy << ", " << specs.size() << " layers";
    }
    EXPECT_LE(single.encode, 14u) << policy;
    EXPECT_LE(single.decode, 13u) << policy;
  }
}

/// Where all bodies are of fixed length, the first launch places them; one body that varies, and another launch does.
TEST(Launches, PlacesOfFixedLengthsTakeNoneOfTheirOwn) {
  const std::vector<LayerSpec> two{{"a", {640}}, {"b", {64, 300}}};
  for (const std::string policy : {"*=sign", "*=qsgd:bits=4", "*=identity", "*=natural",
                                   "*=minmax:bits=8", "*=randomk:keep=0.1"}) {
    EXPECT_EQ(captured_launches_of(two, policy).encode, 3u) << policy;
  }
  EXPECT_EQ(captured_launches_of(two, "*=terngrad").encode, 4u);
  const auto kernels = launches_of(two, "a=sign; b=topk:keep=0.1").kernels;
  const auto places = [](const std::string& kernel) {
    return kernel.find("place_bodies") != std::string::npos;
  };
  EXPECT_EQ(std::ranges::count_if(kernels, places), 1);
}

/// Of sketches and chosen forms too; how many depends on what shapes there are, such as rows of
/// more than 1,024 entries, but never on how many layers.
TEST(Launches, OfFormsDoNotGrowWithLayers) {
  const auto layers = [](std::size_t times) {
    std::vector<LayerSpec> specs;
    for (std::size_t i = 0; i < times; ++i) {
      const std::string name = std::to_string(i);
      specs.insert(specs.end(), {{name + ".weight", {24, 300}},
                                 {name + ".bias", {24}},
                                 {name + ".long", {2, 1100}},
                                 {name + ".flat", {40, 3, 3}}});
    }
    return specs;
  };
  for (const std::string policy : {"*=atomo:bits=1,atoms=sketch", "*=atomo:bits=1,atoms=auto",
                                   "*=atomo:bits=32,cap=64,atoms=auto"}) {
    const Launches single = launches_of(layers(1), policy);
    std::cout << policy << ": encode " << single.encode << ", decode_add " << single.decode
              << " launches\n";
    const Launches many = captured_launches_of(layers(40), policy);
    EXPECT_EQ(many.encode, single.encode) << policy;
    EXPECT_EQ(many.decode, single.decode) << policy;
    EXPECT_LE(captured_launches_of(test::resnet50(16), policy).encode, 70u) << policy;
    EXPECT_LE(single.decode, 24u) << policy;
  }
}

/// Launches to add so many messages, captured into a graph that nobody launches.
std::size_t launches_of_messages(const Compressor& model, std::size_t count) {
  const test::Gradients gradients(model.layers());
  const test::ModelBuffers buffers(model);
  const std::vector<ConstBytes> messages(count, buffers.payload.bytes());
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(buffers.stream.get(), cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  hostexec::reset_calls();
  EXPECT_EQ(model.decode_add_all(messages, 1, gradients.targets(), buffers.context()), Status::ok);
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  const std::size_t launches = hostexec::launch_count();
  EXPECT_EQ(cudaStreamEndCapture(buffers.stream.get(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return launches;
}

/// Eight messages are opened, and their bodies too, in the launches of one. The contents of blocks and
/// rows take two launches for four messages; what takes turns, two messages after the other, is
/// launched for each two.
TEST(Launches, OfEightMessagesAreFewMoreThanOfOne) {
  struct Case {
    std::string policy;
    std::size_t one, eight;
  };
  constexpr std::size_t kTurns = 3;  // beside that of one message
  for (const auto& [policy, one, eight] :
       {Case{"*=qsgd:bits=4", 4, 4}, Case{"*=terngrad", 4, 4}, Case{"*=sign", 4, 4},
        Case{"*=sign:scale=mean", 4, 4}, Case{"*=randomk:keep=0.1", 4, 4}, Case{"*=identity", 4, 4},
        Case{"*=natural", 4, 4}, Case{"*=minmax:bits=4", 4, 4}, Case{"*=identity:dtype=e4m3", 4, 4},
        Case{"*=randomk:keep=0.1,block=64", 4, 4}, Case{"*=topk:keep=0.05", 6, 6},
        Case{"*=atomo:bits=1,atoms=rows", 10, 13}, Case{"*=atomo:bits=1,atoms=blocks", 10, 13},
        Case{"*=atomo:bits=1,atoms=coordinate", 5, 10},
        Case{"*=atomo:bits=1,atoms=svd", 11, 11 + 4 + 2 * kTurns},
        Case{"*=atomo:bits=1,atoms=sketch", 11, 11 + 4 + 2 * kTurns},
        Case{"*=atomo:bits=1", 13, 13 + 3 * kTurns}}) {
    const Compressor model(test::resnet50(16), Policy::parse(policy), kOnDevice);
    EXPECT_EQ(launches_of_messages(model, 1), one) << policy;
    EXPECT_EQ(launches_of_messages(model, 8), eight) << policy;
    EXPECT_EQ(launches_of_messages(model, 9), eight + one) << policy;
    std::cout << policy << ": " << eight << " launches to add 8 messages\n";
  }
}

TEST(Launches, CodecsCallNothingForbidden) {
  for (const std::string& spec : test::all_specs()) {
    const Codec codec = Codec::parse(spec);
    const Shape shape{30, 41};
    const auto x = test::heavy_tailed(shape.elements(), 1, 41);
    const test::Memory input(4 * x.size()), payload(codec.max_encoded_bytes(shape)),
        workspace(test::workspace_bytes(codec, shape));
    input.put(std::as_bytes(std::span(x)));
    const test::StreamOwner stream;
    const test::Word<std::uint64_t> bytes;
    Context context;
    context.stream = stream.get();
    context.workspace = workspace.bytes();
    hostexec::reset_calls();
    EXPECT_EQ(codec.encode({input.data(), DType::f32, shape, Device::cuda}, {},
                           {payload.data(), payload.bytes().size(), bytes.data()}, context),
              Status::ok);
    EXPECT_EQ(
        codec.decode(payload.bytes(), {input.data(), DType::f32, shape, Device::cuda}, context),
        Status::ok);
    EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{}) << spec;
    stream.wait();
  }
}

}  // namespace
}  // namespace atomo
