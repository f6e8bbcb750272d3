// SPDX-License-Identifier: Apache-2.0
/// Models whose matrices are sent in transformed tiles, on a device: the CPU's bytes and values.
#include <gtest/gtest.h>

#include "support/on_cpu.hpp"

namespace atomo {
namespace {

constexpr CompressorOptions kOnDevice{.device = Device::cuda};

/// A transformer's layers, narrow: whole tiles, a tile that is none of 64 sides, vectors whose tiles are of one row.
const std::vector<LayerSpec>& transformer() {
  static const std::vector<LayerSpec> specs{
      {"positions", {64, 256}},   {"characters", {256, 64}},  {"norm.weight", {256}},
      {"qkv.weight", {192, 256}}, {"qkv.bias", {768}},        {"mlp1.weight", {256, 192}},
      {"mlp1.bias", {1024}},      {"mlp2.weight", {64, 320}}, {"convolution", {20, 6, 5, 5}},
      {"odd.weight", {67, 131}},  {"odd.bias", {67}},         {"one", {1}}};
  return specs;
}

class DeviceTilesOfModels : public testing::TestWithParam<const char*> {
 protected:
  Compressor on_host{transformer(), Policy::parse(GetParam())};
  Compressor on_device{transformer(), Policy::parse(GetParam()), kOnDevice};
  test::Gradients gradients{transformer()};
  test::ModelBuffers buffers{on_device};
};
INSTANTIATE_TEST_SUITE_P(
    Policies, DeviceTilesOfModels,
    testing::Values("*=demo", "*=psyche", "*=topk:chunk=4096,k=139,values=sign,dct=64",
                    "*=momentum:beta=0.999+topk:chunk=4096,k=139,values=sign,dct=64",
                    "*=ef+topk:chunk=4096,k=64,values=2,dct=64"),
    [](const auto& made) { return std::to_string(made.index); });

TEST_P(DeviceTilesOfModels, MessagesAreTheCpus) {
  test::expect_the_cpus_messages(on_host, on_device, gradients, buffers, 3);
}

TEST_P(DeviceTilesOfModels, AddsMessagesInRankOrder) {
  std::vector<std::vector<std::byte>> sent;
  for (std::uint16_t worker = 0; worker < 4; ++worker) {
    const test::Gradients own(transformer(), 10 + worker);
    sent.push_back(
        test::encode_on_host(on_host, own.on_host(), {.seed = 9, .worker = worker}).bytes);
  }
  test::expect_the_cpus_sums(on_host, on_device, sent, gradients, buffers);
}

}  // namespace
}  // namespace atomo
