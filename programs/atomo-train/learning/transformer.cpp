// SPDX-License-Identifier: Apache-2.0
/// \file
/// The transformer is defined here with torch: an embedding of characters and positions, blocks of
/// causal self-attention and a two-layer perceptron, and a linear map to the logits. Attention is
/// written as plain products of matrices. The layers whose outputs are added to a block's input
/// begin with smaller weights than the others.

#include <cmath>

#include "learning/models.hpp"

namespace train {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kWidth = 256, kHeads = 4, kBlocks = 4;
constexpr double kDeviation = 0.02;  // of the first weights

/// A linear map whose weights begin small and whose biases begin at 0.
nn::Linear linear(std::int64_t in, std::int64_t out, double deviation = kDeviation) {
  nn::Linear layer(in, out);
  const torch::NoGradGuard no_gradients;
  layer->weight.normal_(0, deviation);
  layer->bias.zero_();
  return layer;
}

/// What is added to the sum begins smaller, so that the sum over all blocks begins as one would.
nn::Linear into_sum(std::int64_t in) {
  return linear(in, kWidth, kDeviation / std::sqrt(2.0 * kBlocks));
}

nn::LayerNorm norm() { return nn::LayerNorm(nn::LayerNormOptions({kWidth})); }

/// x += attention(norm(x));  x += mlp(norm(x))
struct Block : nn::Module {
  Block()
      : norm1(register_module("norm1", norm())),
        qkv(register_module("qkv", linear(kWidth, 3 * kWidth))),
        attended(register_module("attended", into_sum(kWidth))),
        norm2(register_module("norm2", norm())),
        mlp1(register_module("mlp1", linear(kWidth, 4 * kWidth))),
        mlp2(register_module("mlp2", into_sum(4 * kWidth))) {}

  /// `x`: samples x characters x width; `ahead`: characters x characters, true where not to look.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& ahead) {
    x = x + attended(attend(norm1(x), ahead));
    return x + mlp2(torch::gelu(mlp1(norm2(x))));
  }

  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& ahead) {
    const auto samples = x.size(0), characters = x.size(1);
    // 3 x samples x heads x characters x width of a head
    const auto parts =
        qkv(x).view({samples, characters, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(kWidth / kHeads));
    const auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) * scale;
    const auto weights = scores.masked_fill(ahead, -INFINITY).softmax(-1);
    return torch::matmul(weights, parts[2]).transpose(1, 2).reshape({samples, characters, kWidth});
  }

  nn::LayerNorm norm1;
  nn::Linear qkv, attended;
  nn::LayerNorm norm2;
  nn::Linear mlp1, mlp2;
};

struct Transformer : Network {
  explicit Transformer(std::int64_t length)
      : characters(register_module("characters", nn::Embedding(kCharacters, kWidth))),
        positions(register_parameter("positions", kDeviation * torch::randn({length, kWidth}))),
        blocks(register_module("blocks", nn::ModuleList())),
        last_norm(register_module("norm", norm())),
        head(register_module("head", linear(kWidth, kCharacters))) {
    const torch::NoGradGuard no_gradients;
    characters->weight.normal_(0, kDeviation);
    for (std::int64_t k = 0; k < kBlocks; ++k) blocks->push_back(Block());
  }

  torch::Tensor logits(const Batch& batch, torch::Device device) override {
    const auto length = positions.size(0);
    auto x = characters(tensor_of(batch.characters, {-1, length}, device)) + positions;
    const auto ahead =
        torch::ones({length, length}, torch::TensorOptions(torch::kBool).device(device)).triu(1);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, ahead);
    return head(last_norm(x)).flatten(0, 1);
  }

  nn::Embedding characters;
  torch::Tensor positions;
  nn::ModuleList blocks;
  nn::LayerNorm last_norm;
  nn::Linear head;
};

}  // namespace

std::shared_ptr<Network> make_transformer(const TextShape& shape) {
  return std::make_shared<Transformer>(shape.characters);
}

}  // namespace train
