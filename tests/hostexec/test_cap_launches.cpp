// SPDX-License-Identifier: Apache-2.0
/// What a cap asks of the CUDA runtime: four launches for one layer under it, five for any number.
#include <gtest/gtest.h>

#include "calls.hpp"
#include "support/device_model.hpp"

namespace atomo {
namespace {

/// Layers that are large enough for caps.
std::vector<LayerSpec> layers(int count) {
  std::vector<LayerSpec> specs;
  for (int i = 0; i < count; ++i)
    specs.push_back({"layer" + std::to_string(i), {40 + i % 5, 16 + i % 3}});
  return specs;
}

std::size_t launches_of(const std::vector<LayerSpec>& specs, const char* policy) {
  Compressor model(specs, Policy::parse(policy), {.device = Device::cuda});
  const test::Gradients gradients(specs);
  const test::ModelBuffers buffers(model);
  hostexec::reset_calls();
  EXPECT_EQ(model.encode(gradients.views(), {.seed = 1}, buffers.target(), buffers.context()),
            Status::ok);
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  const std::size_t count = hostexec::launch_count();
  buffers.stream.wait();
  EXPECT_FALSE(failed(buffers.status.get()));
  return count;
}

TEST(CapLaunches, AreAConstant) {
  const char* const without = "*=atomo:bits=8,atoms=rows";
  const char* const one = "layer0=atomo:bits=8,cap=64,atoms=rows; *=atomo:bits=8,atoms=rows";
  const char* const all = "*=atomo:bits=8,cap=64,atoms=rows";
  const std::size_t few = launches_of(layers(1), without);
  EXPECT_EQ(launches_of(layers(300), without), few);
  EXPECT_EQ(launches_of(layers(1), all), few + 4);
  EXPECT_EQ(launches_of(layers(300), one), few + 4);
  EXPECT_EQ(launches_of(layers(2), all), few + 5);
  EXPECT_EQ(launches_of(layers(300), all), few + 5);
}

}  // namespace
}  // namespace atomo
