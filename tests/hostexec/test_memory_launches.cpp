// SPDX-License-Identifier: Apache-2.0
/// What memories ask of the CUDA runtime: a launch in front of an encode, those of reading the message
/// but for the last, and one more; as many for hundreds of layers as for one, and nothing that waits.
#include <gtest/gtest.h>

#include <iostream>

#include "calls.hpp"
#include "captured_launches.hpp"
#include "support/device_model.hpp"

namespace atomo {
namespace {

struct Launches {
  std::size_t encode = 0, decode = 0, taking_back = 0;
};

/// Captured into a graph that nobody launches.
Launches launches_of(const std::vector<LayerSpec>& specs, const std::string& policy) {
  Compressor model(specs, Policy::parse(policy), {.device = Device::cuda, .takes_back = true});
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
  launches.taking_back =
      captured([&] { return model.take_memory_back(buffers.context(), buffers.status.data()); });
  return launches;
}

TEST(MemoryLaunches, AreThoseOfReadingAMessageAndOne) {
  const std::vector<LayerSpec> one{{"layer", {64, 40}}};
  for (const std::string codec : {"topk:keep=0.1", "sign:scale=mean", "atomo:bits=1,atoms=rows",
                                  "atomo:bits=1,atoms=coordinate", "qsgd:bits=4"}) {
    const Launches plain = launches_of(one, codec);
    EXPECT_EQ(plain.taking_back, 0u);
    for (const std::string memory : {"ef", "dgc", "ef:memory=bf16", "dgc:memory=int8", "ef21"}) {
      const Launches with = launches_of(one, memory + "+" + codec);
      std::cout << memory << "+" << codec << ": " << with.encode - plain.encode
                << " launches beside the codec's " << plain.encode << '\n';
      EXPECT_EQ(with.encode, plain.encode + 1 + (plain.decode - 1) + 1);
      EXPECT_EQ(with.decode, plain.decode);
      EXPECT_EQ(with.taking_back, 1u);
      const Launches many = launches_of(test::many_layers(300), memory + "+" + codec);
      EXPECT_EQ(many.encode, with.encode);
      EXPECT_EQ(many.taking_back, 1u);
    }
  }
  // Each kind of memory is kept by a kernel of its own.
  const std::vector<LayerSpec> two{{"first", {64, 40}}, {"second", {64, 40}}};
  EXPECT_EQ(launches_of(two, "first=ef+topk:keep=0.1; *=dgc:memory=int8+topk:keep=0.1").encode,
            launches_of(two, "ef+topk:keep=0.1").encode + 1);
  // What is kept is formed once more where the codec was given something else.
  EXPECT_EQ(launches_of(one, "ef:scale=contract+natural").encode,
            launches_of(one, "ef+natural").encode + 1);
}

/// Of a layer that comes alone.
TEST(MemoryLaunches, OfALayerAreThoseOfAModel) {
  const std::vector<LayerSpec> one{{"layer", {64, 40}}};
  Compressor model(one, Policy::parse("ef+topk:keep=0.1"), {.device = Device::cuda});
  const test::Gradients gradients(one);
  const test::ModelBuffers buffers(model);
  const test::Memory workspace(model.encode_workspace_bytes(0));
  Context context = buffers.context();
  context.workspace = workspace.bytes();
  EXPECT_EQ(model.begin_step({}), Status::ok);
  hostexec::reset_calls();
  EXPECT_EQ(model.encode_layer(0, gradients.views()[0], buffers.target(), context), Status::ok);
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  const std::size_t count = hostexec::launch_count();
  buffers.stream.wait();
  EXPECT_EQ(count, launches_of(one, "ef+topk:keep=0.1").encode);
}

}  // namespace
}  // namespace atomo
