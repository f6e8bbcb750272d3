// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A model's gradients where the tests' memory is, and whole messages of it.

#include <memory>
#include <string>
#include <vector>

#include "../bench/models.hpp"
#include "support/support.hpp"

namespace atomo::test {

using bench::resnet50;

/// `count` small layers of different shapes, some empty.
inline std::vector<LayerSpec> many_layers(std::size_t count) {
  std::vector<LayerSpec> specs;
  for (std::size_t i = 0; i < count; ++i) {
    const auto rows = static_cast<std::int64_t>(i % 7), columns = static_cast<std::int64_t>(i % 8);
    specs.push_back({"layer" + std::to_string(i),
                     i % 3 == 0 ? Shape{16 + columns * 5} : Shape{rows, 16 + columns}});
  }
  return specs;
}

/// Gradients on the host, of very different scales, and their copies in the tests' memory.
class Gradients {
 public:
  explicit Gradients(const std::vector<LayerSpec>& specs, std::uint64_t seed = 1,
                     std::size_t shift = 0) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const Shape& shape = specs[i].shape;
      std::vector<float>& x = values_.emplace_back(heavy_tailed(shape.elements(), seed + i, 60));
      const float scale = i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.1f : 0.01f;
      for (float& v : x) v *= scale;
      memory_.push_back(std::make_unique<Memory>(4 * x.size(), 4 * (shift + i % 4)));
      on_host_.push_back({x.data(), DType::f32, shape});
      views_.push_back({memory_.back()->data(), DType::f32, shape, kDevice});
      targets_.push_back({memory_.back()->data(), DType::f32, shape, kDevice});
    }
    upload();
  }
  void upload() const {
    for (std::size_t i = 0; i < values_.size(); ++i)
      memory_[i]->put(std::as_bytes(std::span(values_[i])));
  }
  [[nodiscard]] std::vector<std::vector<float>>& values() { return values_; }
  [[nodiscard]] const std::vector<ConstTensorView>& on_host() const { return on_host_; }
  [[nodiscard]] const std::vector<ConstTensorView>& views() const { return views_; }
  [[nodiscard]] const std::vector<TensorView>& targets() const { return targets_; }
  /// What the tests' memory holds now.
  [[nodiscard]] std::vector<std::byte> download() const {
    std::vector<std::byte> all;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const auto part = memory_[i]->get(4 * values_[i].size());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<ConstTensorView> on_host_, views_;
  std::vector<TensorView> targets_;
};

/// Room for a whole message, or for one of any layer, which may be longer under a cap.
inline std::size_t longest_message(const Compressor& model) {
  std::size_t most = model.max_encoded_bytes();
  for (std::size_t i = 0; i < model.layers().size(); ++i)
    most = std::max(most, model.max_encoded_bytes(i));
  return most;
}

/// What a model's calls take, in the tests' memory.
struct ModelBuffers {
  StreamOwner stream;
  Memory workspace, payload;
  Word<std::uint64_t> bytes;
  Word<Status> status;

  explicit ModelBuffers(const Compressor& model)
      : workspace(test::workspace_bytes(model)), payload(longest_message(model)) {}
  [[nodiscard]] Context context(Handles* handles = nullptr) const {
    Context context;
    context.stream = stream.get();
    context.workspace = workspace.bytes();
    context.handles = handles;
    context.status = status.data();
    return context;
  }
  [[nodiscard]] Payload target() const {
    return {payload.data(), payload.bytes().size(), bytes.data()};
  }
  [[nodiscard]] Message message() const {
    stream.wait();
    Message m{status.get(), {}};
    if (!failed(m.status)) m.bytes = payload.get(bytes.get());
    return m;
  }
};

/// A whole message of a model on the CPU.
inline Message encode_on_host(Compressor& model, const std::vector<ConstTensorView>& views,
                              const Key& key) {
  std::vector<std::byte> workspace(model.encode_workspace_bytes());
  Message m;
  m.bytes.resize(model.max_encoded_bytes());
  std::uint64_t bytes = 0;
  m.status =
      model.encode(views, key, {m.bytes.data(), m.bytes.size(), &bytes}, {.workspace = workspace});
  m.bytes.resize(failed(m.status) ? 0 : bytes);
  return m;
}

}  // namespace atomo::test
