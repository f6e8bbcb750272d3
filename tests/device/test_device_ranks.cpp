// SPDX-License-Identifier: Apache-2.0
/// Models whose sketches learn on a device how many pairs they look for: as on the CPU.
#include <gtest/gtest.h>

#include <cstring>

#include "support/on_cpu.hpp"

namespace atomo {
namespace {

constexpr CompressorOptions kOnDevice{.device = Device::cuda};

/// The words of ranks behind the prices and the limits of a saved state.
std::vector<std::uint16_t> ranks_of(const Compressor& model, std::size_t capped) {
  constexpr std::size_t kPrices = 80;
  const std::vector<std::byte> state = model.save();
  const std::size_t at = kPrices + 8 * capped;
  std::vector<std::uint16_t> ranks((state.size() - at) / 2);
  std::memcpy(ranks.data(), state.data() + at, 2 * ranks.size());
  return ranks;
}

class LearntRanks : public testing::TestWithParam<const char*> {
 protected:
  LearntRanks() {
    std::mt19937_64 generator(3);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      std::vector<float>& x = gradients.values()[i];
      const std::size_t columns = x.size() / static_cast<std::size_t>(specs[i].shape[0]);
      for (float& v : x) v = 0.01f * normal(generator);
      for (int k = 0; k < directions[i]; ++k) {
        std::vector<float> u(x.size() / columns), w(columns);
        for (float& e : u) e = normal(generator);
        for (float& e : w) e = normal(generator);
        for (std::size_t j = 0; j < x.size(); ++j) x[j] += 0.1f * u[j / columns] * w[j % columns];
      }
    }
    gradients.upload();
  }

  [[nodiscard]] std::size_t capped() const {
    return std::string(GetParam()).find("cap=") == std::string::npos ? 0 : specs.size();
  }
  std::vector<std::byte> encode(Compressor& model, const Key& key) {
    EXPECT_EQ(model.encode(gradients.views(), key, buffers.target(), buffers.context()),
              Status::ok);
    const auto m = buffers.message();
    EXPECT_FALSE(failed(m.status));
    return m.bytes;
  }
  std::size_t encode_layer(Compressor& model, std::size_t i, bool on_the_device) {
    std::vector<std::byte> workspace(test::workspace_bytes(model, i)),
        message(model.max_encoded_bytes(i));
    std::uint64_t bytes = 0;
    if (!on_the_device) {
      EXPECT_FALSE(failed(model.encode_layer(i, gradients.on_host()[i],
                                             {message.data(), message.size(), &bytes},
                                             {.workspace = workspace})));
      return bytes;
    }
    EXPECT_EQ(model.encode_layer(i, gradients.views()[i], buffers.target(), buffers.context()),
              Status::ok);
    return buffers.message().bytes.size();
  }

  std::vector<LayerSpec> specs = {{"few", {96, 150}},
                                  {"none", {80, 90}},
                                  {"many", {130, 100}},
                                  {"small", {20, 300}},
                                  {"tall", {300, 24}}};
  std::vector<int> directions = {3, 0, 30, 2, 12};
  Compressor on_host{specs, Policy::parse(GetParam())};
  Compressor on_device{specs, Policy::parse(GetParam()), kOnDevice};
  test::Gradients gradients{specs};
  test::ModelBuffers buffers{on_device};
};
INSTANTIATE_TEST_SUITE_P(Policies, LearntRanks,
                         testing::Values("*=atomo:bits=1,atoms=sketch", "*=atomo:bits=0.5",
                                         "many=atomo:price=0.05; *=atomo:bits=0.3",
                                         "*=atomo:bits=4,cap=6"),
                         [](const auto& made) { return std::to_string(made.index); });

/// Share by which the sizes of the same layers differ at most: a pair of the other sign is rounded by
/// other draws, as in test_device_forms.cpp.
constexpr double kSizesApart = 0.02;

/// Over as many messages as a layer without a sketch waits for one, and its trial.
TEST_P(LearntRanks, AreTheCpus) {
  for (std::uint32_t step = 0; step < 20; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const Key key{.seed = 5, .step = step};
    const auto expected = test::encode_on_host(on_host, gradients.on_host(), key).bytes.size();
    const auto bytes = encode(on_device, key).size();
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(expected),
                kSizesApart * static_cast<double>(expected));
    ASSERT_EQ(ranks_of(on_device, capped()), ranks_of(on_host, capped()));
  }
  EXPECT_NE(ranks_of(on_device, capped()),
            ranks_of(Compressor(specs, Policy::parse(GetParam())), capped()));
}

TEST_P(LearntRanks, OfStepsLayerByLayerAreTheCpus) {
  for (std::uint32_t step = 0; step < 6; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    std::size_t expected = 0, bytes = 0;
    for (Compressor* const model : {&on_host, &on_device})
      ASSERT_EQ(model->begin_step({.seed = 6, .step = step}), Status::ok);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (i == step) continue;  // each is left out once
      expected += encode_layer(on_host, i, false);
      bytes += encode_layer(on_device, i, true);
    }
    ASSERT_FALSE(failed(on_host.end_step()));
    ASSERT_EQ(on_device.end_step(buffers.context()), Status::ok);
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(expected),
                kSizesApart * static_cast<double>(expected));
    ASSERT_EQ(ranks_of(on_device, capped()), ranks_of(on_host, capped()));
  }
}

/// A saved state goes on to the bit, on the device and on the CPU.
TEST_P(LearntRanks, AreSaved) {
  for (std::uint32_t step = 0; step < 3; ++step) encode(on_device, {.seed = 7, .step = step});
  Compressor other(specs, Policy::parse(GetParam()), kOnDevice);
  other.load(on_device.save());
  on_host.load(on_device.save());
  EXPECT_EQ(ranks_of(on_host, capped()), ranks_of(on_device, capped()));
  const Key key{.seed = 7, .step = 3};
  EXPECT_TRUE(encode(other, key) == encode(on_device, key));
  EXPECT_EQ(other.save(), on_device.save());
}

/// Without learning a message follows from its input and key alone.
TEST_P(LearntRanks, AreLeftOut) {
  Compressor fixed(specs, Policy::parse(GetParam()),
                   {.device = Device::cuda, .learns_ranks = false});
  const auto first = encode(fixed, {.seed = 8});
  EXPECT_TRUE(encode(on_device, {.seed = 8}) == first);
  encode(fixed, {.seed = 9});
  EXPECT_TRUE(encode(fixed, {.seed = 8}) == first);
  // At four bits a parameter all pairs are in use.
  if (capped() == 0) {
    EXPECT_FALSE(encode(on_device, {.seed = 8}) == first);
  }
}

}  // namespace
}  // namespace atomo
