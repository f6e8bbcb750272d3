// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The networks that classify images. Includes torch.

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "learning/model_names.hpp"
#include "learning/models.hpp"

namespace train {

/// Images of this side and larger ones go through the layers that were published for ImageNet, smaller
/// ones through those that were published for CIFAR.
inline constexpr std::int64_t kLargeImage = 64;

struct Classifier : Network {
  explicit Classifier(const ImageShape& of) : shape(of) {}
  torch::Tensor logits(const Batch& batch, torch::Device device) override {
    return forward(
        tensor_of(batch.pixels, {-1, shape.channels, shape.height, shape.width}, device));
  }
  virtual torch::Tensor forward(torch::Tensor images) = 0;
  [[nodiscard]] bool is_large() const noexcept {
    return std::min(shape.height, shape.width) >= kLargeImage;
  }
  ImageShape shape;
};

/// A layer of normalisation. \throws std::runtime_error when the groups do not divide the channels.
[[nodiscard]] torch::nn::AnyModule norm_layer(const NormSpec& norm, std::int64_t channels);

// classifiers.cpp
[[nodiscard]] std::shared_ptr<Network> make_lenet(const ImageShape& shape);
/// Fully connected layers of these widths between pixels and classes, with ReLU.
[[nodiscard]] std::shared_ptr<Network> make_mlp(const ImageShape& shape,
                                                const std::vector<std::int64_t>& hidden);
/// Large images: arXiv 1404.5997; small ones: one fully connected layer behind the convolutions.
[[nodiscard]] std::shared_ptr<Network> make_alexnet(const ImageShape& shape);
/// `name`: "vgg11", "vgg13", "vgg16" or "vgg19", of arXiv 1409.1556, with normalisation; on small images
/// the hidden layers of the classifier have 512 units.
[[nodiscard]] std::shared_ptr<Network> make_vgg(const std::string& name, const ImageShape& shape,
                                                const NormSpec& norm);

// resnets.cpp
/// `name`: "resnet20", "resnet32", "resnet110" (for small images), "resnet18", "resnet34", "resnet50",
/// or "ecl-resnet32".
[[nodiscard]] std::shared_ptr<Network> make_resnet(const std::string& name, const ImageShape& shape,
                                                   const NormSpec& norm);

// densenet.cpp
/// DenseNet of 40 layers with 12 new channels each, or with `bottleneck` DenseNet-BC of 100.
[[nodiscard]] std::shared_ptr<Network> make_densenet(const ImageShape& shape, const NormSpec& norm,
                                                     bool bottleneck);

}  // namespace train
