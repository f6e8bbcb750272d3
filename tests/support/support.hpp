// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What tests over all codecs share: the specs, data, and calls that own their buffers.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "atomo/atomo.hpp"
#include "core/half.hpp"
#include "cpu/svd.hpp"
#include "support/device_memory.hpp"
#include "support/sizes.hpp"

namespace atomo::test {

using namespace model;

/// The specs of the table of codecs, of those that can run where the tests' tensors are without the
/// caller's libraries (test_device_svd.cpp has the others).
inline std::vector<std::string> all_specs() {
  std::vector<std::string> specs;
  for (const CodecHelp& codec : list_codecs())
    specs.insert(specs.end(), codec.specs.begin(), codec.specs.end());
  std::erase_if(specs, [](const std::string& spec) {
    const Codec codec = Codec::parse(spec);
    return kDevice == Device::cuda && (!codec.traits().cuda || codec.traits().synchronises);
  });
  return specs;
}

/// A fixed mixture of scales, like a gradient's: rows of very different size, some of them zero.
inline std::vector<float> draw_heavy_tailed(std::size_t n, std::uint64_t seed, std::size_t row) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  float scale = 1;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % row == 0) scale = generator() % 16 == 0 ? 0.0f : std::exp(1.5f * normal(generator));
    x[i] = 0.01f * scale * normal(generator);
  }
  return x;
}

/// The same, of which a thread keeps some MB: suites over all codecs ask for it again for each, and drawing it
/// takes a third of their time under a sanitizer.
inline std::vector<float> heavy_tailed(std::size_t n, std::uint64_t seed, std::size_t row = 256) {
  constexpr std::size_t kMost = std::size_t{1} << 22;  // entries kept
  thread_local std::map<std::array<std::uint64_t, 3>, std::vector<float>> kept;
  thread_local std::size_t entries = 0;
  if (n > kMost / 4) return draw_heavy_tailed(n, seed, row);
  const std::array<std::uint64_t, 3> wanted{n, seed, row};
  const auto found = kept.find(wanted);
  if (found != kept.end()) return found->second;
  if (entries + n > kMost) {
    kept.clear();
    entries = 0;
  }
  entries += n;
  return kept.emplace(wanted, draw_heavy_tailed(n, seed, row)).first->second;
}

/// tests/data/lenet_gradient.bf16 with its layers.
struct RealGradient {
  std::vector<LayerSpec> specs{{"conv1.weight", {20, 1, 5, 5}},  {"conv1.bias", {20}},
                               {"conv2.weight", {50, 20, 5, 5}}, {"conv2.bias", {50}},
                               {"fc1.weight", {500, 800}},       {"fc1.bias", {500}},
                               {"fc2.weight", {10, 500}},        {"fc2.bias", {10}}};
  std::vector<std::vector<float>> values;
  std::vector<ConstTensorView> views;
  std::size_t elements = 0;

  RealGradient() {
    std::ifstream file(ATOMO_TESTS_DIR "/data/lenet_gradient.bf16", std::ios::binary);
    for (const auto& spec : specs) {
      std::vector<float>& x = values.emplace_back(spec.shape.elements());
      for (auto& v : x) {
        std::uint16_t h = 0;
        file.read(reinterpret_cast<char*>(&h), 2);
        v = from_bf16(h);
      }
      elements += x.size();
    }
    EXPECT_TRUE(file.good());
    for (std::size_t i = 0; i < specs.size(); ++i)
      views.push_back({values[i].data(), DType::f32, specs[i].shape});
  }
  [[nodiscard]] std::vector<float> joined() const {
    std::vector<float> all;
    for (const auto& v : values) all.insert(all.end(), v.begin(), v.end());
    return all;
  }
};

struct Message {
  Status status = Status::ok;
  std::vector<std::byte> bytes;
};

/// What a codec needs for both directions, where the tests' tensors are.
inline std::size_t workspace_bytes(const Codec& codec, const Shape& shape, DType dtype = DType::f32,
                                   Device device = kDevice) {
  return std::max(codec.encode_workspace_bytes(shape, dtype, device),
                  codec.decode_workspace_bytes(shape, dtype, device));
}
/// What a model needs for both directions.
inline std::size_t workspace_bytes(const Compressor& model) {
  return std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes());
}
/// What a model needs for both directions of one layer.
inline std::size_t workspace_bytes(const Compressor& model, std::size_t layer) {
  return std::max(model.encode_workspace_bytes(layer), model.decode_workspace_bytes(layer));
}

/// Encodes entries of any dtype. `shift`: entries and bytes that everything is moved off alignment.
inline Message encode_bytes(const Codec& codec, ConstBytes x, DType dtype, const Shape& shape,
                            const Key& key = {}, Executor* executor = nullptr,
                            std::size_t shift = 0) {
  const StreamOwner stream;
  const Memory input(x.size(), shift * size_of(dtype)),
      workspace(codec.encode_workspace_bytes(shape, dtype, kDevice), shift),
      payload(codec.max_encoded_bytes(shape, dtype), shift);
  input.put(x);
  const Word<std::uint64_t> bytes;
  const Word<Status> status;
  Context context;
  context.stream = stream.get();
  context.workspace = workspace.bytes();
  context.executor = executor;
  context.status = status.data();
  Message message;
  message.status = codec.encode({input.data(), dtype, shape, kDevice}, key,
                                {payload.data(), payload.bytes().size(), bytes.data()}, context);
  stream.wait();
  if (failed(message.status)) return message;
  message.status = status.get();
  if (!failed(message.status)) message.bytes = payload.get(bytes.get());
  return message;
}

inline Message encode(const Codec& codec, const std::vector<float>& x, const Shape& shape,
                      const Key& key = {}, Executor* executor = nullptr) {
  return encode_bytes(codec, std::as_bytes(std::span(x)), DType::f32, shape, key, executor);
}

struct DecodedBytes {
  Status status = Status::ok;
  std::vector<std::byte> values;
};

/// Decodes over `y`, or adds `alpha` times to it.
inline DecodedBytes decode_bytes(const Codec& codec, ConstBytes message, ConstBytes y, DType dtype,
                                 const Shape& shape, bool add = false, float alpha = 1,
                                 std::size_t shift = 0) {
  const StreamOwner stream;
  const Memory in(message.size(), shift),
      workspace(codec.decode_workspace_bytes(shape, dtype, kDevice), shift),
      out(y.size(), shift * size_of(dtype));
  in.put(message);
  out.put(y);
  const Word<Status> status;
  Context context;
  context.stream = stream.get();
  context.workspace = workspace.bytes();
  context.status = status.data();
  const TensorView view{out.data(), dtype, shape, kDevice};
  DecodedBytes decoded;
  decoded.status = add ? codec.decode_add(in.bytes(), alpha, view, context)
                       : codec.decode(in.bytes(), view, context);
  stream.wait();
  if (!failed(decoded.status)) decoded.status = status.get();
  decoded.values = out.get(y.size());
  return decoded;
}

struct Decoded {
  Status status = Status::ok;
  std::vector<float> values;
};

inline Decoded decode(const Codec& codec, ConstBytes message, const Shape& shape) {
  const std::vector<float> before(shape.elements(), 7.0f);
  const DecodedBytes bytes =
      decode_bytes(codec, message, std::as_bytes(std::span(before)), DType::f32, shape);
  Decoded decoded{bytes.status, std::vector<float>(shape.elements())};
  if (!bytes.values.empty())
    std::memcpy(decoded.values.data(), bytes.values.data(), bytes.values.size());
  return decoded;
}

inline double squared_norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return sum;
}

inline double nmse(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0;
  for (std::size_t i = 0; i < x.size(); ++i) error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
  return error / squared_norm(x);
}

/// Normal entries, or the sum of `rank` outer products of falling size; the largest entry is
/// `scale`.
inline std::vector<float> gaussian_matrix(const MatrixShape& shape, double scale,
                                          std::uint64_t seed, std::size_t rank = 0) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<double> x(shape.rows * shape.columns);
  if (rank == 0) {
    for (double& v : x) v = normal(generator);
  }
  for (std::size_t r = 0; r < rank; ++r) {
    std::vector<double> a(shape.rows), b(shape.columns);
    for (double& v : a) v = normal(generator);
    for (double& v : b) v = normal(generator);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] += a[i / shape.columns] * b[i % shape.columns] / static_cast<double>((r + 1) * (r + 1));
  }
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::fabs(v));
  std::vector<float> g(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) g[i] = static_cast<float>(x[i] / largest * scale);
  return g;
}

}  // namespace atomo::test
