// SPDX-License-Identifier: Apache-2.0
/// \file
/// The classifiers of images are defined here with torch: LeNet, and residual networks of 18, 20
/// and 32 layers with batch or group normalisation. The loss and the score of every network, the
/// transformer included, are computed here from its logits by cross-entropy.

#include "learning/models.hpp"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace train {
namespace {

namespace nn = torch::nn;

struct Classifier : Network {
  explicit Classifier(const ImageShape& of) : shape(of) {}
  torch::Tensor logits(const Batch& batch, torch::Device device) override {
    return forward(
        tensor_of(batch.pixels, {-1, shape.channels, shape.height, shape.width}, device));
  }
  virtual torch::Tensor forward(torch::Tensor images) = 0;
  ImageShape shape;
};

/// Two 5 x 5 convolutions with pooling, two fully connected layers.
struct LeNet : Classifier {
  explicit LeNet(const ImageShape& of)
      : Classifier(of),
        conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(shape.channels, 20, 5)))),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(20, 50, 5)))),
        fc1(register_module("fc1", nn::Linear(50 * after(shape.height) * after(shape.width), 500))),
        fc2(register_module("fc2", nn::Linear(500, kImageClasses))) {}
  torch::Tensor forward(torch::Tensor images) override {
    auto x = torch::relu(torch::max_pool2d(conv1(images), 2));
    x = torch::relu(torch::max_pool2d(conv2(x), 2));
    return fc2(torch::relu(fc1(x.flatten(1))));
  }
  /// Side of an image behind both convolutions and poolings: 28 -> 4.
  static std::int64_t after(std::int64_t side) { return ((side - 4) / 2 - 4) / 2; }
  nn::Conv2d conv1, conv2;
  nn::Linear fc1, fc2;
};

nn::Conv2d conv3x3(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

/// Batch normalisation keeps running statistics; group normalisation treats every image by itself.
template <class Norm>
Norm norm_of(std::int64_t channels) {
  if constexpr (std::is_same_v<Norm, nn::GroupNorm>) {
    constexpr std::int64_t kChannelsAGroup = 8;
    return nn::GroupNorm(nn::GroupNormOptions(channels / kChannelsAGroup, channels));
  } else {
    return Norm(channels);
  }
}

/// Two 3 x 3 convolutions around a shortcut; a 1 x 1 convolution where the shape changes.
template <class Norm>
struct ResidualBlock : nn::Module {
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1(register_module("conv1", conv3x3(in, out, stride))),
        norm1(register_module("norm1", norm_of<Norm>(out))),
        conv2(register_module("conv2", conv3x3(out, out, 1))),
        norm2(register_module("norm2", norm_of<Norm>(out))) {
    if (stride != 1 || in != out) {
      shortcut = register_module(
          "shortcut",
          nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)),
                         norm_of<Norm>(out)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto straight = shortcut.is_empty() ? x : shortcut->forward(x);
    x = torch::relu(norm1(conv1(x)));
    return torch::relu(norm2(conv2(x)) + straight);
  }
  nn::Conv2d conv1;
  Norm norm1;
  nn::Conv2d conv2;
  Norm norm2;
  nn::Sequential shortcut{nullptr};
};

/// A residual network for small images: as many stages of blocks as there are widths (channels),
/// each behind the first at half the side, then the mean over the image.
template <class Norm>
struct ResNet : Classifier {
  ResNet(const ImageShape& of, const std::vector<std::int64_t>& widths, int blocks_a_stage)
      : Classifier(of),
        conv(register_module("conv", conv3x3(shape.channels, widths.front(), 1))),
        norm(register_module("norm", norm_of<Norm>(widths.front()))),
        blocks(register_module("blocks", nn::Sequential())),
        fc(register_module("fc", nn::Linear(widths.back(), kImageClasses))) {
    std::int64_t in = widths.front();
    for (const std::int64_t out : widths) {
      for (int k = 0; k < blocks_a_stage; ++k) {
        blocks->push_back(ResidualBlock<Norm>(in, out, in == out ? 1 : 2));
        in = out;
      }
    }
  }
  torch::Tensor forward(torch::Tensor images) override {
    const auto x = blocks->forward(torch::relu(norm(conv(images))));
    return fc(x.mean({2, 3}));
  }
  nn::Conv2d conv;
  Norm norm;
  nn::Sequential blocks;
  nn::Linear fc;
};

std::shared_ptr<Network> make_classifier(const std::string& name, const ImageShape& shape) {
  if (shape.height < 16 || shape.width < 16) {
    throw std::runtime_error("images of " + std::to_string(shape.height) + " x " +
                             std::to_string(shape.width) + " are too small for " + name +
                             ", which needs 16 x 16");
  }
  if (name == "lenet") return std::make_shared<LeNet>(shape);
  const std::vector<std::int64_t> narrow = {16, 32, 64}, wide = {64, 128, 256, 512};
  if (name == "resnet20") return std::make_shared<ResNet<nn::BatchNorm2d>>(shape, narrow, 3);
  if (name == "resnet32") return std::make_shared<ResNet<nn::GroupNorm>>(shape, narrow, 5);
  if (name == "resnet18") return std::make_shared<ResNet<nn::BatchNorm2d>>(shape, wide, 2);
  throw std::runtime_error("no model '" + name +
                           "' for images: there are logistic, lenet, resnet20, resnet32, resnet18");
}

}  // namespace

Network::Loss Network::loss(const Batch& batch, torch::Device device) {
  constexpr std::int64_t kNothingIgnored = -100;
  const auto predicted = logits(batch, device);
  const auto targets = tensor_of(batch.targets, {-1}, device);
  return {torch::cross_entropy_loss(predicted, targets, {}, at::Reduction::Mean, kNothingIgnored,
                                    batch.smoothing),
          predicted.detach().argmax(1).eq(targets).sum()};
}

Score Network::score(const Batch& batch, torch::Device device) {
  const auto predicted = logits(batch, device);
  const auto targets = tensor_of(batch.targets, {-1}, device);
  const auto right = predicted.argmax(1).eq(targets).sum().item<std::int64_t>();
  const auto top = std::get<1>(predicted.topk(std::min(kTop, predicted.size(1)), 1));
  const auto among_top = top.eq(targets.unsqueeze(1)).sum().item<std::int64_t>();
  const auto loss = torch::cross_entropy_loss(predicted, targets, {}, at::Reduction::Sum);
  return {.correct = static_cast<std::uint64_t>(right),
          .predictions = batch.targets.size(),
          .top5 = static_cast<std::uint64_t>(among_top),
          .loss = loss.item<float>()};
}

std::shared_ptr<Network> make_network(const std::string& name, const InputShape& input) {
  if (const auto* text = std::get_if<TextShape>(&input)) return make_transformer(*text);
  return make_classifier(name, std::get<ImageShape>(input));
}

}  // namespace train
