// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The layers of the models that benchmarks and tests compress, and gradients made for them.

#include <algorithm>
#include <array>
#include <atomo/compressor.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace atomo::bench {

/// LeNet with two convolutions of 5 x 5 for images of 28 x 28: 8 layers, 431 k parameters.
inline std::vector<LayerSpec> lenet() {
  return {{"conv1.weight", {20, 1, 5, 5}},  {"conv1.bias", {20}},
          {"conv2.weight", {50, 20, 5, 5}}, {"conv2.bias", {50}},
          {"fc1.weight", {500, 800}},       {"fc1.bias", {500}},
          {"fc2.weight", {10, 500}},        {"fc2.bias", {10}}};
}

/// ResNet-18 for ImageNet (He et al. 2016, table 1): 62 layers, 11.7 M parameters.
inline std::vector<LayerSpec> resnet18() {
  std::vector<LayerSpec> layers;
  const auto convolution = [&](const std::string& name, std::int64_t out, std::int64_t in,
                               std::int64_t side) {
    layers.push_back({name + ".weight", {out, in, side, side}});
    layers.push_back({name + ".norm.weight", {out}});
    layers.push_back({name + ".norm.bias", {out}});
  };
  convolution("stem", 64, 3, 7);
  std::int64_t in = 64;
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t out = std::int64_t{64} << stage;
    for (int b = 0; b < 2; ++b) {
      const std::string name = "stage" + std::to_string(stage) + "." + std::to_string(b);
      convolution(name + ".first", out, in, 3);
      convolution(name + ".second", out, out, 3);
      if (in != out) convolution(name + ".shortcut", out, in, 1);
      in = out;
    }
  }
  layers.push_back({"head.weight", {1000, in}});
  layers.push_back({"head.bias", {1000}});
  return layers;
}

/// ResNet-50 for ImageNet (He et al. 2016, table 1): 161 layers, 25.6 M parameters; the channels
/// are divided by `narrower`.
inline std::vector<LayerSpec> resnet50(std::int64_t narrower = 1) {
  std::vector<LayerSpec> layers;
  const auto width = [&](std::int64_t channels) { return channels / narrower; };
  const auto convolution = [&](const std::string& name, std::int64_t out, std::int64_t in,
                               std::int64_t side) {
    layers.push_back({name + ".weight", {out, in, side, side}});
    layers.push_back({name + ".norm.weight", {out}});
    layers.push_back({name + ".norm.bias", {out}});
  };
  convolution("stem", width(64), 3, 7);
  std::int64_t in = width(64);
  const std::array<std::int64_t, 4> blocks = {3, 4, 6, 3};
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const std::int64_t inner = width(64) << stage, out = 4 * inner;
    for (std::int64_t b = 0; b < blocks[stage]; ++b) {
      const std::string name = "stage" + std::to_string(stage) + "." + std::to_string(b);
      convolution(name + ".reduce", inner, in, 1);
      convolution(name + ".middle", inner, inner, 3);
      convolution(name + ".expand", out, inner, 1);
      if (b == 0) convolution(name + ".shortcut", out, in, 1);
      in = out;
    }
  }
  layers.push_back({"head.weight", {width(1000), in}});
  layers.push_back({"head.bias", {width(1000)}});
  return layers;
}

/// GPT-2 small (Radford et al. 2019): 148 layers, 124.4 M parameters, the head tied to the tokens.
inline std::vector<LayerSpec> gpt2_small() {
  constexpr std::int64_t kWidth = 768;
  std::vector<LayerSpec> layers = {{"tokens", {50257, kWidth}}, {"positions", {1024, kWidth}}};
  const auto norm = [&](const std::string& name) {
    layers.push_back({name + ".weight", {kWidth}});
    layers.push_back({name + ".bias", {kWidth}});
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    layers.push_back({name + ".weight", {in, out}});
    layers.push_back({name + ".bias", {out}});
  };
  for (int block = 0; block < 12; ++block) {
    const std::string name = "block" + std::to_string(block);
    norm(name + ".norm1");
    linear(name + ".attention.in", kWidth, 3 * kWidth);
    linear(name + ".attention.out", kWidth, kWidth);
    norm(name + ".norm2");
    linear(name + ".mlp.in", kWidth, 4 * kWidth);
    linear(name + ".mlp.out", 4 * kWidth, kWidth);
  }
  norm("norm");
  return layers;
}

/// Numbers of a xorshift generator; the same on every machine.
class Draws {
 public:
  /// Evenly from [-1, 1).
  float even() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<float>(state_ >> 40) * 0x1p-23f - 1.0f;
  }
  /// From Student's t with three degrees of freedom, whose variance is 3 (Bailey 1994).
  float student_t3() {
    for (;;) {
      const float u = even(), v = even(), w = u * u + v * v;
      if (w > 1 || w == 0) continue;
      const float root = std::cbrt(w);
      return u * std::sqrt(3.0f * (1.0f / (root * root) - 1.0f) / w);
    }
  }

 private:
  std::uint64_t state_ = 0x9E3779B97F4A7C15u;
};

/// Gradients of the layers, one after another. Of a matrix (a tensor's first dimension by all
/// others) one half of the energy is of rank 8 with falling singular values, the other half is
/// Student's t with 3 degrees of freedom; other layers have the second alone. The scales of layers
/// spread over a factor of 100. `low_rank` is a factor of the first half.
inline std::vector<float> make_gradients(const std::vector<LayerSpec>& layers,
                                         float low_rank = 1.0f) {
  constexpr std::size_t kRank = 8;
  std::size_t elements = 0;
  for (const LayerSpec& layer : layers) elements += layer.shape.elements();
  std::vector<float> values(elements);
  Draws draws;
  auto at = values.begin();
  for (const LayerSpec& layer : layers) {
    const std::size_t n = layer.shape.elements();
    const bool is_matrix = layer.shape.rank() > 1;
    const std::size_t rows = is_matrix ? static_cast<std::size_t>(layer.shape[0]) : 1;
    const std::size_t columns = rows == 0 ? 0 : n / rows;
    const float scale = 1e-3f * std::pow(10.0f, draws.even());
    std::vector<float> right(is_matrix ? kRank * columns : 0);
    for (float& value : right) value = draws.even();  // of variance 1/3
    for (std::size_t row = 0; row < rows; ++row) {
      std::array<float, kRank> left{};
      for (std::size_t k = 0; k < kRank; ++k)
        left[k] = low_rank * 3.0f * draws.even() * std::exp2(-0.5f * static_cast<float>(k + 1));
      for (std::size_t column = 0; column < columns; ++column)
        at[static_cast<std::ptrdiff_t>(column)] = scale * draws.student_t3() / std::sqrt(3.0f);
      for (std::size_t k = 0; k < (is_matrix ? kRank : 0); ++k) {
        const float* const vector = right.data() + k * columns;
        for (std::size_t column = 0; column < columns; ++column)
          at[static_cast<std::ptrdiff_t>(column)] += scale * left[k] * vector[column];
      }
      at += static_cast<std::ptrdiff_t>(columns);
    }
  }
  return values;
}

}  // namespace atomo::bench
