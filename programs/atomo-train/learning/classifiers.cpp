// SPDX-License-Identifier: Apache-2.0
/// \file
/// The classifiers of images without shortcuts are defined here: MLP, LeNet, AlexNet and VGGs.
/// Poolings of AlexNet and VGGs round up, so that images of 28 x 28 pixels pass through all of them.

#include "learning/classifiers.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace train {
namespace {

namespace nn = torch::nn;

/// Two 5 x 5 convolutions with pooling, two fully connected layers.
struct LeNet : Classifier {
  explicit LeNet(const ImageShape& of)
      : Classifier(of),
        conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(shape.channels, 20, 5)))),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(20, 50, 5)))),
        fc1(register_module("fc1", nn::Linear(50 * after(shape.height) * after(shape.width), 500))),
        fc2(register_module("fc2", nn::Linear(500, shape.classes))) {}
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

struct Mlp : Classifier {
  Mlp(const ImageShape& of, const std::vector<std::int64_t>& hidden)
      : Classifier(of), layers(register_module("layers", nn::Sequential())) {
    auto in = static_cast<std::int64_t>(shape.pixels());
    for (const std::int64_t width : hidden) {
      layers->push_back(nn::Linear(in, width));
      layers->push_back(nn::ReLU());
      in = width;
    }
    layers->push_back(nn::Linear(in, shape.classes));
  }
  torch::Tensor forward(torch::Tensor images) override {
    return layers->forward(images.flatten(1));
  }
  nn::Sequential layers;
};

/// Convolutions, then a classifier of the mean over as many squares of what they see.
struct Plain : Classifier {
  explicit Plain(const ImageShape& of)
      : Classifier(of),
        features(register_module("features", nn::Sequential())),
        classifier(register_module("classifier", nn::Sequential())) {}
  torch::Tensor forward(torch::Tensor images) override {
    const auto x = torch::adaptive_avg_pool2d(features->forward(images), {squares, squares});
    return classifier->forward(x.flatten(1));
  }
  void add_conv(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride,
                std::int64_t padding) {
    features->push_back(
        nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(padding)));
  }
  void add_relu() { features->push_back(nn::ReLU()); }
  void add_pool(std::int64_t size) {
    features->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(size).stride(2).ceil_mode(true)));
  }
  /// Dropout of a half, a fully connected layer.
  void add_dense(std::int64_t in, std::int64_t out) {
    classifier->push_back(nn::Dropout(0.5));
    classifier->push_back(nn::Linear(in, out));
  }
  std::int64_t squares = 1;  ///< each way
  nn::Sequential features, classifier;
};

struct AlexNet : Plain {
  explicit AlexNet(const ImageShape& of) : Plain(of) {
    constexpr std::int64_t kHidden = 4096;
    const std::int64_t pool = is_large() ? 3 : 2;
    add_conv(shape.channels, 64, 11, 4, is_large() ? 2 : 5);
    add_relu();
    add_pool(pool);
    add_conv(64, 192, 5, 1, 2);
    add_relu();
    add_pool(pool);
    add_conv(192, 384, 3, 1, 1);
    add_relu();
    add_conv(384, 256, 3, 1, 1);
    add_relu();
    add_conv(256, 256, 3, 1, 1);
    add_relu();
    add_pool(pool);
    if (!is_large()) {
      classifier->push_back(nn::Linear(256, shape.classes));
      return;
    }
    squares = 6;
    add_dense(256 * squares * squares, kHidden);
    classifier->push_back(nn::ReLU());
    add_dense(kHidden, kHidden);
    classifier->push_back(nn::ReLU());
    classifier->push_back(nn::Linear(kHidden, shape.classes));
  }
};

/// Configurations A, B, D and E of arXiv 1409.1556: the convolutions of each stage.
struct VggLayout {
  std::string_view name;
  std::array<int, 5> convolutions;
};
constexpr VggLayout kVggs[] = {{"vgg11", {1, 1, 2, 2, 2}},
                               {"vgg13", {2, 2, 2, 2, 2}},
                               {"vgg16", {2, 2, 3, 3, 3}},
                               {"vgg19", {2, 2, 4, 4, 4}}};

struct Vgg : Plain {
  Vgg(const VggLayout& layout, const ImageShape& of, const NormSpec& norm) : Plain(of) {
    constexpr std::int64_t kLast = 512;
    std::int64_t in = shape.channels, out = 64;
    for (const int convolutions : layout.convolutions) {
      for (int k = 0; k < convolutions; ++k) {
        add_conv(in, out, 3, 1, 1);
        features->push_back(norm_layer(norm, out));
        add_relu();
        in = out;
      }
      add_pool(2);
      out = std::min(2 * out, kLast);
    }
    const std::int64_t hidden = is_large() ? 4096 : kLast;
    if (is_large()) squares = 7;
    add_dense(kLast * squares * squares, hidden);
    classifier->push_back(nn::ReLU());
    add_dense(hidden, hidden);
    classifier->push_back(nn::ReLU());
    classifier->push_back(nn::Linear(hidden, shape.classes));
  }
};

}  // namespace

torch::nn::AnyModule norm_layer(const NormSpec& norm, std::int64_t channels) {
  const std::int64_t group = norm.channels_a_group;
  if (group == 0) return nn::AnyModule(nn::BatchNorm2d(channels));
  if (channels % group != 0) {
    throw std::runtime_error("--norm group:" + std::to_string(group) +
                             ": groups of as many channels do not divide the " +
                             std::to_string(channels) + " channels of a layer");
  }
  return nn::AnyModule(nn::GroupNorm(nn::GroupNormOptions(channels / group, channels)));
}

std::shared_ptr<Network> make_lenet(const ImageShape& shape) {
  return std::make_shared<LeNet>(shape);
}

std::shared_ptr<Network> make_mlp(const ImageShape& shape,
                                  const std::vector<std::int64_t>& hidden) {
  return std::make_shared<Mlp>(shape, hidden);
}

std::shared_ptr<Network> make_alexnet(const ImageShape& shape) {
  return std::make_shared<AlexNet>(shape);
}

std::shared_ptr<Network> make_vgg(const std::string& name, const ImageShape& shape,
                                  const NormSpec& norm) {
  return std::make_shared<Vgg>(*std::ranges::find(kVggs, name, &VggLayout::name), shape, norm);
}

}  // namespace train
