// SPDX-License-Identifier: Apache-2.0
/// Singular pairs on a device. Decoding gives the CPU's values bit for bit. Encoding goes through
/// the caller's libraries, whose eigenvectors are not LAPACK's: messages are held to what they
/// promise instead.
#include <gtest/gtest.h>

#include <array>

#include "atomo/cuda.hpp"
#include "cuda/tuning.hpp"
#include "support/mutated_messages.hpp"
#include "support/on_cpu.hpp"

namespace atomo {

using namespace model;
namespace {

const std::vector<std::string>& specs() {
  static const std::vector<std::string> all = {"atomo:bits=2,atoms=svd",
                                               "atomo:bits=0.4,atoms=svd",
                                               "atomo:bits=6,atoms=svd",
                                               "atomo:price=0.001,atoms=svd",
                                               "atomo:bits=1,atoms=svd,content=nearest",
                                               "atomo:atoms=svd,keep=3,values=f32",
                                               "atomo:atoms=svd,keep=0.5,values=f32"};
  return all;
}

/// Encodes on the device with handles of its own.
test::Message encode_on_device(const Codec& codec, ConstBytes x, DType dtype, const Shape& shape,
                               const Key& key, std::size_t shift = 0) {
  const test::StreamOwner stream;
  const HandlesPtr handles = make_handles();
  const test::Memory input(x.size(), shift * size_of(dtype)),
      workspace(test::workspace_bytes(codec, shape, dtype, Device::cuda), shift),
      payload(codec.max_encoded_bytes(shape, dtype), shift);
  input.put(x);
  const test::Word<std::uint64_t> bytes;
  const test::Word<Status> status;
  Context context;
  context.stream = stream.get();
  context.workspace = workspace.bytes();
  context.handles = handles.get();
  context.status = status.data();
  test::Message m;
  m.status = codec.encode({input.data(), dtype, shape, Device::cuda}, key,
                          {payload.data(), payload.bytes().size(), bytes.data()}, context);
  stream.wait();
  if (failed(m.status)) return m;
  m.status = status.get();
  if (!failed(m.status)) m.bytes = payload.get(bytes.get());
  return m;
}
test::Message encode_on_device(const Codec& codec, const std::vector<float>& x, const Shape& shape,
                               const Key& key) {
  return encode_on_device(codec, std::as_bytes(std::span(x)), DType::f32, shape, key);
}

/// A matrix of falling singular values, plus noise.
std::vector<float> low_rank(std::size_t rows, std::size_t columns, std::size_t rank,
                            std::uint64_t seed, float noise = 0.05f) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(rows * columns);
  for (auto& v : x) v = noise * normal(generator);
  for (std::size_t r = 0; r < rank; ++r) {
    std::vector<float> u(rows), v(columns);
    for (auto& e : u) e = normal(generator);
    for (auto& e : v) e = normal(generator);
    const float size = 1 / static_cast<float>(1 + r);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) x[i * columns + j] += size * u[i] * v[j];
    }
  }
  return x;
}

class DeviceSvd : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { cuda::warps_per_block = 4; }
  /// The device makes of a message what the CPU makes of it.
  void expect_same(ConstBytes message, const Shape& shape, DType dtype = DType::f32,
                   std::size_t shift = 0) {
    test::expect_the_cpus_values(codec, message, shape, dtype, shift);
  }
  Codec codec = Codec::parse(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Specs, DeviceSvd, testing::ValuesIn(specs()), test::spec_name);

TEST_P(DeviceSvd, DecodesToTheCpusValues) {
  for (const Shape& shape : {Shape{0}, Shape{33}, Shape{5000}, Shape{64, 3, 3}, Shape{2, 16},
                             Shape{17, 16}, Shape{40, 25}, Shape{31, 33}, Shape{9, 513},
                             Shape{300, 16}, Shape{3, 2051}, Shape{40, 1100}, Shape{600, 21, 2}}) {
    SCOPED_TRACE(shape.to_string());
    const auto x = test::heavy_tailed(shape.elements(), 3 + shape.elements(), 47);
    const auto m =
        test::encode_on_cpu(codec, x, shape, {.seed = 7, .step = 5, .tensor = 6, .worker = 7});
    ASSERT_FALSE(failed(m.status));
    std::size_t shift = 0;
    for (const unsigned warps : {1u, 2u, 8u}) {
      cuda::warps_per_block = warps;
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        const auto message =
            dtype == DType::f32
                ? m
                : test::encode_on_cpu(codec, test::entries_of(x, dtype), dtype, shape, {.seed = 8});
        ASSERT_NO_FATAL_FAILURE(expect_same(message.bytes, shape, dtype, shift++ % 4));
      }
    }
  }
}

TEST_P(DeviceSvd, DecodesDamagedMessagesAsTheCpu) {
  int accepted = 0, tried = 0;
  for (const Shape& shape : {Shape{23, 45}, Shape{5, 1030}, Shape{45}}) {
    const auto x = low_rank(1, shape.elements(), 1, 4);
    const auto sound = test::encode_on_cpu(codec, x, shape, {.seed = 3}).bytes;
    std::mt19937_64 generator(11);
    const std::uint64_t trials = test::in_turns() ? 24 : test::kSanitized ? 60 : 300;
    for (std::uint64_t trial = 0; trial < trials; ++trial, ++tried) {
      SCOPED_TRACE(shape.to_string() + " trial " + std::to_string(trial));
      auto bytes = sound;
      if (trial % 16 == 0) {
        bytes.resize(generator() % (sound.size() + 1));
      } else {
        bytes = test::mutated_message(sound, trial);
      }
      ASSERT_NO_FATAL_FAILURE(expect_same(bytes, shape));
      const auto on_cpu = test::decode_on_cpu(codec, bytes, test::entries_of(x), DType::f32, shape);
      accepted += failed(on_cpu.status) ? 0 : 1;
    }
  }
  EXPECT_GT(accepted, 10);
  EXPECT_LT(accepted * 18, tried * 17);
}

/// Values beyond f32 become infinite, with a notice, as on the CPU.
TEST_P(DeviceSvd, DecodesOverflowAsTheCpu) {
  const Shape shape{20, 40};
  auto x = low_rank(20, 40, 2, 5);
  for (float& v : x) v *= 5e37f;
  std::size_t infinite = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const auto m = test::encode_on_cpu(codec, x, shape, {.seed = seed});
    ASSERT_NO_FATAL_FAILURE(expect_same(m.bytes, shape));
    infinite += test::decode(codec, m.bytes, shape).status == Status::overflow ? 1 : 0;
  }
  std::cout << "[ messages ] " << infinite << " of 12 with infinite values\n";
}

TEST_P(DeviceSvd, EncodesWhatDecodesAlike) {
  for (const Shape& shape : {Shape{33}, Shape{2, 16}, Shape{17, 16}, Shape{40, 25}, Shape{9, 513},
                             Shape{60, 16}, Shape{3, 1100}, Shape{20, 1100}}) {
    const auto x = test::heavy_tailed(shape.elements(), 3, 29);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(shape.to_string() + " " + std::string(name_of(dtype)));
      const auto entries = test::entries_of(x, dtype);
      const Key key{.seed = 1, .step = 2, .tensor = 3, .worker = 4};
      cuda::warps_per_block = 4;
      const auto m = encode_on_device(codec, entries, dtype, shape, key);
      ASSERT_FALSE(failed(m.status)) << describe(m.status);
      ASSERT_NO_FATAL_FAILURE(expect_same(m.bytes, shape, dtype));
      cuda::warps_per_block = 1;
      const auto again = encode_on_device(codec, entries, dtype, shape, key, 3);
      EXPECT_TRUE(again.bytes == m.bytes);
      const auto on_cpu = test::encode_on_cpu(codec, entries, dtype, shape, key);
      EXPECT_EQ(m.status, on_cpu.status);
      if (shape.rank() == 1) {
        EXPECT_TRUE(m.bytes == on_cpu.bytes);
      }
    }
  }
}

/// Errors and sizes over many keys.
struct Outcome {
  double error = 0, bytes = 0;
  std::vector<double> mean;
};

template <typename Encode>
Outcome average(const Codec& codec, const std::vector<float>& x, const Shape& shape, int keys,
                Encode encode) {
  Outcome out;
  out.mean.assign(x.size(), 0);
  for (int k = 0; k < keys; ++k) {
    const test::Message m = encode(codec, x, shape, Key{.seed = 50u + static_cast<unsigned>(k)});
    EXPECT_FALSE(failed(m.status)) << describe(m.status);
    std::vector<float> y(x.size());
    const auto d = test::decode_on_cpu(codec, m.bytes, test::entries_of(y), DType::f32, shape);
    EXPECT_FALSE(failed(d.status));
    std::memcpy(y.data(), d.values.data(), d.values.size());
    out.error += test::nmse(x, y) / keys;
    out.bytes += static_cast<double>(m.bytes.size()) / keys;
    for (std::size_t i = 0; i < x.size(); ++i) out.mean[i] += double{y[i]} / keys;
  }
  return out;
}

TEST_P(DeviceSvd, EncodesAsWellAsTheCpu) {
  constexpr int kKeys = 400;
  for (const Shape& shape : {Shape{24, 40}, Shape{50, 18}}) {
    SCOPED_TRACE(shape.to_string());
    const auto x =
        low_rank(static_cast<std::size_t>(shape[0]), static_cast<std::size_t>(shape[1]), 6, 2);
    const auto device = [](const auto&... a) { return encode_on_device(a...); };
    const auto cpu = [](const auto&... a) { return test::encode_on_cpu(a...); };
    const Outcome there = average(codec, x, shape, kKeys, device);
    const Outcome here = average(codec, x, shape, kKeys, cpu);
    // The same draws select from amplitudes that agree to rounding; signs of vectors may differ.
    EXPECT_NEAR(there.error, here.error, 0.02 * here.error);
    EXPECT_NEAR(there.bytes, here.bytes, 0.005 * here.bytes);
  }
}

/// Powers of two change nothing but the exponents.
TEST_P(DeviceSvd, EncodesTinyAndHugeMatrices) {
  if (GetParam().find("price") != std::string::npos) return;
  const Shape shape{24, 40};
  const auto x = low_rank(24, 40, 6, 2);
  for (const float scale : {0x1p-76f, 0x1p66f}) {
    auto scaled = x;
    for (float& v : scaled) v *= scale;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const auto m = encode_on_device(codec, scaled, shape, {.seed = seed});
      ASSERT_NO_FATAL_FAILURE(expect_same(m.bytes, shape));
      auto expected =
          test::decode(codec, encode_on_device(codec, x, shape, {.seed = seed}).bytes, shape);
      ASSERT_FALSE(failed(expected.status));
      for (float& v : expected.values) v *= scale;
      EXPECT_TRUE(test::decode(codec, m.bytes, shape).values == expected.values) << scale;
    }
  }
}

/// A codec without draws has a bias, which this tells from chance, and says so.
TEST_P(DeviceSvd, EncodesWithoutBias) {
  const Shape shape{18, 30};
  const auto x = low_rank(18, 30, 5, 3);
  const int keys = test::in_brief() ? 500 : 2000;
  const auto device = [](const auto&... a) { return encode_on_device(a...); };
  const Outcome out = average(codec, x, shape, keys, device);
  double error = 0;
  for (std::size_t i = 0; i < x.size(); ++i) error += (out.mean[i] - x[i]) * (out.mean[i] - x[i]);
  // The square of the mean of independent errors: even where one pair makes it all, it is 24 times
  // its expectation once in a million.
  const double mean = error / test::squared_norm(x), most = 24.0 * out.error / keys + 1e-12;
  EXPECT_EQ(mean < most, codec.traits().unbiased) << mean << " " << most;
}

TEST_P(DeviceSvd, EncodesMatricesOfLowRank) {
  for (const Shape& shape : {Shape{16, 24}, Shape{40, 17}}) {
    const auto rows = static_cast<std::size_t>(shape[0]), columns = shape.elements() / rows;
    for (const std::size_t rank : {0u, 1u, 2u}) {
      SCOPED_TRACE(shape.to_string() + " rank " + std::to_string(rank));
      const auto x = low_rank(rows, columns, rank, 8, 0);
      const auto m = encode_on_device(codec, x, shape, {.seed = 4});
      const auto on_cpu = test::encode_on_cpu(codec, x, shape, {.seed = 4});
      EXPECT_EQ(m.status, on_cpu.status);
      ASSERT_NO_FATAL_FAILURE(expect_same(m.bytes, shape));
      const auto d = test::decode(codec, m.bytes, shape);
      ASSERT_FALSE(failed(d.status));
      if (rank == 0) {
        EXPECT_TRUE(d.values == x);
        EXPECT_TRUE(m.bytes == on_cpu.bytes);
      }
    }
  }
}

TEST_P(DeviceSvd, EncodesNonFiniteLayersAsTheCpu) {
  for (const Shape& shape : {Shape{20, 30}, Shape{600}}) {
    auto x = low_rank(1, 600, 1, 8);
    x[217] = std::numeric_limits<float>::infinity();
    const auto m = encode_on_device(codec, x, shape, {.seed = 4});
    EXPECT_EQ(m.status, Status::non_finite);
    EXPECT_TRUE(m.bytes == test::encode_on_cpu(codec, x, shape, {.seed = 4}).bytes);
  }
}

TEST_P(DeviceSvd, NeedsHandlesToEncodeMatrices) {
  for (const Shape& shape : {Shape{20, 30}, Shape{600}}) {
    const auto x = low_rank(1, 600, 1, 8);
    const bool matrix = shape.rank() > 1;
    EXPECT_EQ(test::encode(codec, x, shape).status, matrix ? Status::invalid_argument : Status::ok);
    const Compressor model({{"layer", shape}}, Policy::parse("*=" + GetParam()),
                           {.device = Device::cuda});
    const test::Gradients gradients({{"layer", shape}});
    const test::ModelBuffers buffers(model);
    Compressor encoder({{"layer", shape}}, Policy::parse("*=" + GetParam()),
                       {.device = Device::cuda});
    EXPECT_EQ(encoder.encode(gradients.views(), {}, buffers.target(), buffers.context()),
              matrix ? Status::invalid_argument : Status::ok);
  }
}

// ---- whole models

class DeviceSvdModel : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] Context context() const { return buffers.context(handles.get()); }
  [[nodiscard]] test::Message encode(const Key& key) {
    const Status status = on_device.encode(gradients.views(), key, buffers.target(), context());
    if (failed(status)) return {status, {}};
    return buffers.message();
  }

  static std::vector<LayerSpec> layers() {
    std::vector<LayerSpec> specs = test::resnet50(16);
    specs.push_back({"capped.weight", {200, 320}});  // of many runs, which a cap can choose from
    return specs;
  }

  std::vector<LayerSpec> specs = layers();
  Compressor on_host{specs, Policy::parse(GetParam())};
  Compressor on_device{specs, Policy::parse(GetParam()), {.device = Device::cuda}};
  test::Gradients gradients{specs};
  test::ModelBuffers buffers{on_device};
  HandlesPtr handles = make_handles();
};
INSTANTIATE_TEST_SUITE_P(
    Policies, DeviceSvdModel,
    testing::Values("*=atomo:bits=1,atoms=svd",
                    "*.middle.weight=atomo:bits=1,atoms=svd; "
                    "capped.*=atomo:bits=1.25,cap=1.25,atoms=blocks; *=atomo:bits=2",
                    "*.middle.weight=atomo:bits=1,atoms=svd; *.expand.weight=atomo:bits=0.5; "
                    "*.norm.bias=atomo:bits=2,atoms=blocks; *=atomo:atoms=svd,keep=2,values=f32"),
    [](const auto& made) { return std::to_string(made.index); });

/// Layers of pairs and of other atoms share one price, the CPU's.
TEST_P(DeviceSvdModel, MessagesAreAsTheCpus) {
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Key key{.seed = 9, .step = step, .worker = 2};
    const auto expected = test::encode_on_host(on_host, gradients.on_host(), key);
    const auto m = encode(key);
    ASSERT_EQ(m.status, expected.status);
    EXPECT_NEAR(static_cast<double>(m.bytes.size()), static_cast<double>(expected.bytes.size()),
                0.01 * static_cast<double>(expected.bytes.size()));
    float price, expected_price;
    std::memcpy(&price, m.bytes.data() + 40, 4);
    std::memcpy(&expected_price, expected.bytes.data() + 40, 4);
    EXPECT_EQ(price, expected_price);
  }
}

TEST_P(DeviceSvdModel, AddsMessagesAsTheCpu) {
  std::vector<std::vector<std::byte>> sent;
  for (std::uint16_t worker = 0; worker < 3; ++worker)
    sent.push_back(encode({.seed = 9, .worker = worker}).bytes);
  test::expect_the_cpus_sums(on_host, on_device, sent, gradients, buffers);
}

TEST_P(DeviceSvdModel, NonFiniteLayersAreLeftOut) {
  gradients.values()[3][1] = std::numeric_limits<float>::quiet_NaN();
  gradients.values()[12][0] = std::numeric_limits<float>::infinity();
  gradients.upload();
  const auto m = encode({.seed = 1});
  EXPECT_EQ(m.status, Status::non_finite);
  ContainerInfo info;
  ASSERT_EQ(inspect(m.bytes, info, true), Status::ok);
  for (std::size_t i = 0; i < specs.size(); ++i)
    EXPECT_EQ(info.layers[i].non_finite, i == 3 || i == 12) << i;
}

}  // namespace
}  // namespace atomo
