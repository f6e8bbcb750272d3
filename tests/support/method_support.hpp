// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Bodies without a container: what tests of single methods share.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "atomo/thread_pool.hpp"
#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "codec/stages.hpp"

namespace atomo::test {

using namespace model;

/// Memory of a stated size and misalignment between two sentinels.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes, std::size_t offset = 0)
      : bytes_(bytes), offset_(kGuard + offset), memory_(2 * kGuard + offset + bytes + 64, kMark) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    offset_ += (64 - address % 64) % 64;
  }
  [[nodiscard]] std::byte* data() { return memory_.data() + offset_; }
  [[nodiscard]] Bytes bytes() { return {data(), bytes_}; }
  [[nodiscard]] float* floats() { return reinterpret_cast<float*>(data()); }
  [[nodiscard]] bool intact() const {
    const auto marked = [](std::byte b) { return b == kMark; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(offset_);
    return std::all_of(memory_.begin(), begin, marked) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), marked);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xA5};
  std::size_t bytes_, offset_;
  std::vector<std::byte> memory_;
};

/// Runs tasks from the last to the first.
class BackwardExecutor final : public Executor {
 public:
  void run(std::size_t count, void (*task)(void* state, std::size_t i),
           void* state) noexcept override {
    while (count-- > 0) task(state, count);
  }
};

struct Body {
  Status status = Status::ok;
  std::vector<std::byte> bytes;
  bool lossless = false;  ///< it went through the lossless stage
};

/// Encodes with a codec that has no price. `offset`: bytes that input and output are moved off
/// alignment.
inline Body encode_body(const codec::Stages& stages, const std::vector<float>& x,
                        const Key& key = {}, Executor* executor = nullptr, std::size_t offset = 0) {
  const Shape shape{static_cast<std::int64_t>(x.size())};
  const codec::BodyEncoder& encoder = *stages.body;
  Guarded input(x.size() * 4, offset * 4), scratch(encoder.scratch_bytes(shape)),
      out(encoder.max_body_bytes(shape), offset);
  if (!x.empty()) std::memcpy(input.data(), x.data(), x.size() * 4);
  codec::LayerInput in;
  in.x = input.floats();
  in.n = x.size();
  in.shape = &shape;
  in.key = key;
  in.executor = executor;
  codec::BodyResult result;
  Body body;
  body.status = encoder.encode({in, 0, nullptr, scratch.bytes()}, out.bytes(), result);
  EXPECT_TRUE(input.intact() && scratch.intact() && out.intact());
  if (failed(body.status)) return body;
  EXPECT_LE(result.bytes, encoder.max_body_bytes(shape));
  body.bytes.assign(out.data(), out.data() + result.bytes);
  if (!stages.lossless) return body;
  const std::size_t packed =
      codec::pack_body(*stages.lossless, encoder.kind(shape, DType::f32), body.bytes, out.bytes());
  EXPECT_TRUE(out.intact());
  body.lossless = packed != 0;
  if (body.lossless) body.bytes.assign(out.data(), out.data() + packed);
  return body;
}

struct Values {
  Status status = Status::ok;
  std::vector<float> y;
};

/// Decodes a body, or adds it to `onto`.
inline Values decode_body(const format::Kind& kind, const std::vector<std::byte>& bytes,
                          const Key& key = {}, Executor* executor = nullptr, std::size_t offset = 0,
                          const std::vector<float>* onto = nullptr, float alpha = 1) {
  const codec::BodyDecoder& decoder = *codec::find_decoder(kind.method);
  const std::size_t n = kind.shape.elements();
  Guarded workspace(decoder.workspace_bytes(kind)), out(4 * n, 4 * offset),
      input(bytes.size(), offset);
  std::copy(bytes.begin(), bytes.end(), input.data());
  if (onto != nullptr && n > 0) std::memcpy(out.data(), onto->data(), 4 * n);
  format::LayerBody body;
  body.bytes = input.bytes();
  body.key = key;
  codec::LayerOutput layer;
  layer.bodies = {&body, 1};
  layer.kind = &kind;
  layer.y = out.floats();
  layer.n = n;
  layer.add = onto != nullptr;
  layer.alpha = alpha;
  layer.workspace = workspace.bytes();
  layer.executor = executor;
  Values values;
  decoder.decode(layer);
  values.status = body.status;
  EXPECT_TRUE(input.intact() && workspace.intact() && out.intact());
  values.y.assign(out.floats(), out.floats() + n);
  return values;
}

/// Normal entries of a scale, with some zeros and one spike.
inline std::vector<float> normal_entries(std::size_t n, std::uint64_t seed, float scale = 1) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& v : x)
    v = generator() % 8 == 0 ? 0.0f : scale * std::clamp(normal(generator), -4.0f, 4.0f);
  if (n > 2) x[n / 2] = 6 * scale;
  return x;
}

inline format::Kind kind_of(const codec::Stages& stages, std::size_t n) {
  return stages.body->kind(Shape{static_cast<std::int64_t>(n)}, DType::f32);
}

}  // namespace atomo::test
