// SPDX-License-Identifier: Apache-2.0
/// What singular pairs ask of the CUDA runtime, and what comes of a solver that fails.
#include <gtest/gtest.h>

#include <iostream>

#include "atomo/container.hpp"
#include "atomo/cuda.hpp"
#include "calls.hpp"
#include "cusolver.hpp"
#include "support/device_model.hpp"

namespace atomo {
namespace {

constexpr CompressorOptions kOnDevice{.device = Device::cuda};
const char* const kPolicies[] = {"*=atomo:bits=1,atoms=svd", "*=atomo:atoms=svd,keep=2,values=f32"};

/// Launches of decoding a message of the CPU; nothing forbidden may be called.
std::size_t decode_launches(const std::vector<LayerSpec>& specs, const char* policy) {
  Compressor on_host(specs, Policy::parse(policy));
  Compressor model(specs, Policy::parse(policy), kOnDevice);
  const test::Gradients gradients(specs);
  const test::ModelBuffers buffers(model);
  const auto m = test::encode_on_host(on_host, gradients.on_host(), {.seed = 1});
  const test::Memory message(m.bytes.size());
  message.put(m.bytes);
  const ConstBytes bytes = message.bytes();
  hostexec::reset_calls();
  EXPECT_EQ(model.decode_add(bytes, 1, gradients.targets(), buffers.context()), Status::ok);
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  const std::size_t launches = hostexec::launch_count();
  buffers.stream.wait();
  EXPECT_EQ(buffers.status.get(), Status::ok);
  return launches;
}

TEST(SvdCalls, DecodingTakesAsManyLaunchesForManyLayersAsForOne) {
  for (const char* const policy : kPolicies) {
    const std::size_t one = decode_launches({{"layer", {20, 30}}}, policy);
    std::vector<LayerSpec> many;
    for (std::int64_t i = 0; i < 40; ++i)
      many.push_back({"layer" + std::to_string(i), {2 + i, 16 + i}});
    EXPECT_EQ(decode_launches(many, policy), one) << policy;
    EXPECT_LE(one, 13u) << policy;
    std::cout << "[ launches ] " << policy << ": " << one << " to decode\n";
  }
}

/// Calls of a library since the last reset.
std::size_t calls_of(const std::string& name) {
  std::size_t count = 0;
  for (const hostexec::Call& call : hostexec::calls()) count += call.name == name ? call.count : 0;
  return count;
}

/// The layers' own messages, joined: each was alone in its batch.
std::vector<std::byte> encode_one_by_one(const std::vector<LayerSpec>& specs, const Codec& codec,
                                         const test::Gradients& gradients, Handles* handles) {
  std::vector<std::vector<std::byte>> parts;
  for (std::uint16_t i = 0; i < specs.size(); ++i) {
    const Shape& shape = specs[i].shape;
    const test::StreamOwner stream;
    const test::Memory workspace(test::workspace_bytes(codec, shape)),
        payload(codec.max_encoded_bytes(shape));
    const test::Word<std::uint64_t> bytes;
    Context context;
    context.stream = stream.get();
    context.workspace = workspace.bytes();
    context.handles = handles;
    EXPECT_EQ(codec.encode(gradients.views()[i], {.seed = 1, .tensor = i},
                           {payload.data(), payload.bytes().size(), bytes.data()}, context),
              Status::ok);
    stream.wait();
    parts.push_back(payload.get(bytes.get()));
  }
  const std::vector<ConstBytes> views(parts.begin(), parts.end());
  std::vector<std::byte> joined(joined_bytes_bound(views));
  std::uint64_t bytes = 0;
  EXPECT_EQ(join(views, {joined.data(), joined.size(), &bytes}), Status::ok);
  joined.resize(bytes);
  return joined;
}

/// Whatever stands between them in the model; others stay alone.
TEST(SvdCalls, LayersOfOneShapeAreDecomposedTogether) {
  std::vector<LayerSpec> specs;
  for (int i = 0; i < 12; ++i) {
    const Shape shape = i % 3 == 0 ? Shape{20, 30} : i % 3 == 1 ? Shape{30, 20} : Shape{16, 18};
    specs.push_back({"layer" + std::to_string(i), i == 8 ? Shape{17, 40} : shape});
  }
  const test::Gradients gradients(specs);
  const HandlesPtr handles = make_handles();
  for (const std::string spec :
       {"atomo:price=0.001,atoms=svd", "atomo:atoms=svd,keep=2,values=f32"}) {
    Compressor model(specs, Policy::parse("*=" + spec), kOnDevice);
    const test::ModelBuffers buffers(model);
    const Context context = buffers.context(handles.get());
    hostexec::reset_calls();
    ASSERT_EQ(model.encode(gradients.views(), {.seed = 1}, buffers.target(), context), Status::ok);
    EXPECT_EQ(calls_of("cusolverDnXsyevBatched"), 3u);
    EXPECT_EQ(calls_of("cusolverDnDsyevd"), 1u);
    EXPECT_EQ(calls_of("cublasDgemmStridedBatched"), 8u);
    // Three a batch, the others for all.
    const std::size_t others = hostexec::launch_count() - std::size_t{3} * 4;
    EXPECT_LE(others, 13u);
    std::cout << "[ launches ] " << spec << ": " << others << " and 3 a batch to encode\n";
    const auto together = buffers.message();
    ASSERT_EQ(together.status, Status::ok);
    EXPECT_TRUE(together.bytes ==
                encode_one_by_one(specs, Codec::parse(spec), gradients, handles.get()));
  }
}

/// Memory bounds how many are taken together.
TEST(SvdCalls, LargeLayersAreDecomposedInSeveralBatches) {
  std::vector<LayerSpec> specs;
  for (int i = 0; i < 3; ++i) specs.push_back({"layer" + std::to_string(i), {16, 131072}});
  const test::Gradients gradients(specs);
  const HandlesPtr handles = make_handles();
  Compressor model(specs, Policy::parse("*=atomo:bits=0.5,atoms=svd"), kOnDevice);
  const test::ModelBuffers buffers(model);
  const Context context = buffers.context(handles.get());
  hostexec::reset_calls();
  ASSERT_EQ(model.encode(gradients.views(), {.seed = 1}, buffers.target(), context), Status::ok);
  EXPECT_EQ(calls_of("cusolverDnXsyevBatched"), 1u);
  EXPECT_EQ(calls_of("cusolverDnDsyevd"), 1u);
  const std::size_t others = hostexec::launch_count() - std::size_t{3} * 2;
  EXPECT_LE(others, 14u);
  std::cout << "[ launches ] bits=0.5,atoms=svd: " << others << " and 3 a batch to encode\n";
  EXPECT_EQ(buffers.message().status, Status::ok);
}

/// The memory for the solver is taken once.
TEST(SvdCalls, EncodingAgainAllocatesNothing) {
  for (const char* const policy : kPolicies) {
    const std::vector<LayerSpec> specs{{"small", {20, 30}}, {"large", {40, 30}}};
    Compressor model(specs, Policy::parse(policy), kOnDevice);
    const test::Gradients gradients(specs);
    const test::ModelBuffers buffers(model);
    const HandlesPtr handles = make_handles();
    const Context context = buffers.context(handles.get());
    for (int time = 0; time < 2; ++time) {
      hostexec::reset_calls();
      EXPECT_EQ(model.encode(gradients.views(), {.seed = 1}, buffers.target(), context),
                Status::ok);
      EXPECT_EQ(hostexec::forbidden_calls().empty(), time == 1);
      buffers.stream.wait();
    }
  }
}

/// Unit vectors stand in for eigenvectors: the estimate stays without bias.
TEST(SvdCalls, SolversThatFailCostAccuracyAlone) {
  const Shape shape{16, 20};
  const std::vector<LayerSpec> specs{{"layer", shape}};
  for (const char* const policy : kPolicies) {
    Compressor model(specs, Policy::parse(policy), kOnDevice);
    const test::Gradients gradients(specs);
    const test::ModelBuffers buffers(model);
    const HandlesPtr handles = make_handles();
    const Context context = buffers.context(handles.get());
    const std::vector<float> x = test::Gradients(specs).values()[0];
    std::vector<double> mean(x.size());
    double error = 0;
    constexpr int kKeys = 300;
    hostexec::solver_fails = true;
    for (std::uint64_t seed = 0; seed < kKeys; ++seed) {
      gradients.upload();
      ASSERT_EQ(model.encode(gradients.views(), {.seed = seed}, buffers.target(), context),
                Status::ok);
      const ConstBytes message = buffers.payload.bytes();
      ASSERT_EQ(model.decode(message, gradients.targets(), context), Status::ok);
      buffers.stream.wait();
      ASSERT_EQ(buffers.status.get(), Status::ok);
      const auto bytes = gradients.download();
      std::vector<float> y(x.size());
      std::memcpy(y.data(), bytes.data(), bytes.size());
      error += test::nmse(x, y) / kKeys;
      for (std::size_t i = 0; i < x.size(); ++i) mean[i] += double{y[i]} / kKeys;
    }
    hostexec::solver_fails = false;
    double bias = 0;
    for (std::size_t i = 0; i < x.size(); ++i) bias += (mean[i] - x[i]) * (mean[i] - x[i]);
    EXPECT_LT(bias / test::squared_norm(x), 2.0 * error / kKeys) << policy;
  }
}

}  // namespace
}  // namespace atomo
