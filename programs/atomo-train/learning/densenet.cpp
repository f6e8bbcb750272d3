// SPDX-License-Identifier: Apache-2.0
/// \file
/// DenseNets for small images (arXiv 1608.06993): three dense blocks, in which each layer adds 12
/// channels to those before it, with transitions between them that halve the side. With bottlenecks
/// (DenseNet-BC) a layer is a 1 x 1 and a 3 x 3 convolution, and transitions halve the channels too.

#include <vector>

#include "learning/classifiers.hpp"

namespace train {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kGrowth = 12;

/// Normalisation, ReLU, convolution.
void add_conv(nn::Sequential& layers, const NormSpec& norm, std::int64_t in, std::int64_t out,
              std::int64_t size) {
  layers->push_back(norm_layer(norm, in));
  layers->push_back(nn::ReLU());
  layers->push_back(nn::Conv2d(nn::Conv2dOptions(in, out, size).padding(size / 2).bias(false)));
}

struct DenseLayer : nn::Module {
  DenseLayer(const NormSpec& norm, std::int64_t in, bool bottleneck)
      : layers(register_module("layers", nn::Sequential())) {
    constexpr std::int64_t kInner = 4 * kGrowth;
    if (bottleneck) add_conv(layers, norm, in, kInner, 1);
    add_conv(layers, norm, bottleneck ? kInner : in, kGrowth, 3);
  }
  torch::Tensor forward(torch::Tensor x) { return torch::cat({x, layers->forward(x)}, 1); }
  nn::Sequential layers;
};

struct DenseNet : Classifier {
  DenseNet(const ImageShape& of, const NormSpec& norm, bool bottleneck)
      : Classifier(of), layers(register_module("layers", nn::Sequential())) {
    constexpr int kBlocks = 3;
    const int layers_a_block = bottleneck ? 16 : 12;
    std::int64_t channels = bottleneck ? 2 * kGrowth : 16;
    layers->push_back(
        nn::Conv2d(nn::Conv2dOptions(shape.channels, channels, 3).padding(1).bias(false)));
    for (int block = 0; block < kBlocks; ++block) {
      for (int k = 0; k < layers_a_block; ++k, channels += kGrowth)
        layers->push_back(DenseLayer(norm, channels, bottleneck));
      if (block + 1 == kBlocks) break;
      const std::int64_t out = bottleneck ? channels / 2 : channels;
      add_conv(layers, norm, channels, out, 1);
      layers->push_back(nn::AvgPool2d(2));
      channels = out;
    }
    layers->push_back(norm_layer(norm, channels));
    fc = register_module("fc", nn::Linear(channels, shape.classes));
  }
  torch::Tensor forward(torch::Tensor images) override {
    return fc(torch::relu(layers->forward(images)).mean({2, 3}));
  }
  nn::Sequential layers;
  nn::Linear fc{nullptr};
};

}  // namespace

std::shared_ptr<Network> make_densenet(const ImageShape& shape, const NormSpec& norm,
                                       bool bottleneck) {
  return std::make_shared<DenseNet>(shape, norm, bottleneck);
}

}  // namespace train
