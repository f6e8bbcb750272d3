// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Models whose codecs have memories, with the buffers of their calls.

#include <cstring>
#include <string>
#include <vector>

#include "atomo/thread_pool.hpp"
#include "support/support.hpp"

namespace atomo::test {

/// A matrix, a vector, a layer without elements, a vector of several pieces.
inline std::vector<LayerSpec> memory_layers() {
  return {{"weight", {30, 40}}, {"bias", {7}}, {"none", {0, 3}}, {"long", {1500}}};
}

/// All different, none zero.
inline std::vector<std::vector<float>> gradients_of(const std::vector<LayerSpec>& layers,
                                                    std::uint32_t step) {
  std::vector<std::vector<float>> values;
  for (const LayerSpec& layer : layers)
    values.push_back(heavy_tailed(layer.shape.elements(), 100 * step + values.size(), 40));
  return values;
}

inline std::vector<std::vector<float>> sum_of(std::vector<std::vector<float>> a,
                                              const std::vector<std::vector<float>>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < a[i].size(); ++k) a[i][k] = a[i][k] + b[i][k];
  }
  return a;
}

/// Gradients are given as f32, and in bf16 where the layers are.
struct MemoryModel {
  using Values = std::vector<std::vector<float>>;
  using Bytes = std::vector<std::byte>;

  MemoryModel(std::vector<LayerSpec> layers, const std::string& policy)
      : model(std::move(layers), Policy::parse(policy)) {}

  [[nodiscard]] Values memories() const {
    Values all;
    for (std::size_t i = 0; i < model.layers().size(); ++i) {
      all.push_back(model.memory(i));
      all.back().resize(model.layers()[i].shape.elements());
    }
    return all;
  }
  ConstTensorView view_of(const std::vector<float>& x, const LayerSpec& layer) {
    if (layer.dtype == DType::f32) return {x.data(), DType::f32, layer.shape};
    std::vector<std::uint16_t>& half = halves_.emplace_back();
    for (const float v : x)
      half.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16));
    return {half.data(), DType::bf16, layer.shape};
  }
  std::vector<ConstTensorView> views_of(const Values& values,
                                        const std::vector<LayerSpec>& layers) {
    halves_.clear();
    halves_.reserve(layers.size());
    std::vector<ConstTensorView> views;
    for (std::size_t i = 0; i < layers.size(); ++i) views.push_back(view_of(values[i], layers[i]));
    return views;
  }
  template <typename Call>
  Bytes written(std::size_t capacity, Status expected, const Call& call) {
    Bytes bytes(capacity);
    std::uint64_t length = 0;
    const Status status = call(Payload{bytes.data(), bytes.size(), &length});
    EXPECT_TRUE(expected == Status::ok ? !failed(status) : has(status, expected))
        << describe(status);
    bytes.resize(length);
    return bytes;
  }

  Bytes encode(const Values& values, std::uint32_t step, Executor* executor = nullptr,
               Status expected = Status::ok) {
    Bytes work(model.encode_workspace_bytes());
    return written(model.max_encoded_bytes(), expected, [&](const Payload& payload) {
      return model.encode(views_of(values, model.layers()), {.seed = 3, .step = step}, payload,
                          {.workspace = work, .executor = executor});
    });
  }
  /// The first layer is added twice, the first time with the values of `other`.
  Bytes encode_one_by_one(const Values& values, const Values& other, std::uint32_t step) {
    Bytes work(model.encode_workspace_bytes());
    return written(model.max_encoded_bytes(), Status::ok, [&](const Payload& payload) {
      Status status = model.begin_message({.seed = 3, .step = step}, payload, {.workspace = work});
      const auto add = [&](std::size_t i, const Values& from) {
        status |= model.add_layer(i, {from[i].data(), DType::f32, model.layers()[i].shape}, {});
      };
      add(0, other);
      for (std::size_t i = model.layers().size(); i-- > 0;) add(i, values);
      return status | model.end_message({});
    });
  }
  Status status_with(const Values& values, std::size_t capacity, std::size_t workspace) {
    return status_with(values, capacity, workspace, model.layers());
  }
  Status status_with(const Values& values, std::size_t capacity, std::size_t workspace,
                     const std::vector<LayerSpec>& layers) {
    Bytes work(workspace), bytes(capacity);
    std::uint64_t length = 0;
    return model.encode(views_of(values, layers), {.seed = 3, .step = 1},
                        {bytes.data(), bytes.size(), &length}, {.workspace = work});
  }

  Bytes encode_layer(std::size_t i, const std::vector<float>& x) {
    Bytes work(model.encode_workspace_bytes(i));
    return written(model.max_encoded_bytes(i), Status::ok, [&](const Payload& payload) {
      return model.encode_layer(i, {x.data(), DType::f32, model.layers()[i].shape}, payload,
                                {.workspace = work});
    });
  }
  Status status_of_layer(std::size_t i, const std::vector<float>& x) {
    Bytes work(model.encode_workspace_bytes(i)), bytes(model.max_encoded_bytes(i));
    std::uint64_t length = 0;
    return model.encode_layer(i, {x.data(), DType::f32, model.layers()[i].shape},
                              {bytes.data(), bytes.size(), &length}, {.workspace = work});
  }
  Bytes encode_part(Compressor& part, const Values& values, std::uint32_t step) {
    Bytes work(part.encode_workspace_bytes());
    return written(part.max_encoded_bytes(), Status::ok, [&](const Payload& payload) {
      return part.encode(views_of(values, part.layers()), {.seed = 3, .step = step}, payload,
                         {.workspace = work});
    });
  }
  Status status_of_part(Compressor& part, const Values& values, std::uint32_t step) {
    Bytes work(part.encode_workspace_bytes()), bytes(part.max_encoded_bytes());
    std::uint64_t length = 0;
    return part.encode(views_of(values, part.layers()), {.seed = 3, .step = step},
                       {bytes.data(), bytes.size(), &length}, {.workspace = work});
  }

  static Values decoded(const Compressor& by, ConstBytes message, Status expected) {
    Values values;
    std::vector<TensorView> views;
    for (const LayerSpec& layer : by.layers()) values.emplace_back(layer.shape.elements());
    for (std::size_t i = 0; i < values.size(); ++i)
      views.push_back({values[i].data(), DType::f32, by.layers()[i].shape});
    Bytes work(by.decode_workspace_bytes());
    const Status status = by.decode(message, views, {.workspace = work});
    EXPECT_TRUE(expected == Status::ok ? status == Status::ok : has(status, expected))
        << describe(status);
    return values;
  }
  [[nodiscard]] Values decode(ConstBytes message, Status expected = Status::ok) const {
    return decoded(model, message, expected);
  }
  [[nodiscard]] static Values decode_part(const Compressor& part, ConstBytes message) {
    return decoded(part, message, Status::ok);
  }
  [[nodiscard]] std::vector<float> decode_layer(std::size_t i, ConstBytes message) const {
    std::vector<float> values(model.layers()[i].shape.elements());
    Bytes work(model.decode_workspace_bytes(i));
    EXPECT_EQ(model.decode_layer(i, message, {values.data(), DType::f32, model.layers()[i].shape},
                                 {.workspace = work}),
              Status::ok);
    return values;
  }

  Compressor model;

 private:
  std::vector<std::vector<std::uint16_t>> halves_;
};

}  // namespace atomo::test
