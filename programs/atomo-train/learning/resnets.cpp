// SPDX-License-Identifier: Apache-2.0
/// \file
/// Residual networks. Those of 20, 32 and 110 layers (arXiv 1512.03385, section 4.2) have three stages
/// of blocks behind a 3 x 3 convolution; those of 18, 34 and 50 four, on large images behind a 7 x 7
/// convolution of stride 2 and a pooling. All have 1 x 1 convolutions where the shape changes.
/// `ecl-resnet32` is the network that edge-consensus learning was published with under the name
/// ResNet-32: the blocks of ResNet-34 behind the 7 x 7 convolution and the pooling, whatever the
/// images, group normalisation, and dropout of whole channels between the stages.

#include <algorithm>
#include <utility>
#include <vector>

#include "learning/classifiers.hpp"

namespace train {
namespace {

namespace nn = torch::nn;

nn::Conv2d conv_of(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

/// Convolutions around a shortcut. As many as `sizes`; the middle or first one of 3 x 3 has the stride.
struct ResidualBlock : nn::Module {
  ResidualBlock(const NormSpec& norm, std::int64_t in, std::int64_t width, std::int64_t stride,
                bool bottleneck) {
    const std::int64_t out = bottleneck ? kExpansion * width : width;
    if (bottleneck) {
      add(norm, conv_of(in, width, 1, 1), width);
      add(norm, conv_of(width, width, 3, stride), width);
      add(norm, conv_of(width, out, 1, 1), out);
    } else {
      add(norm, conv_of(in, width, 3, stride), width);
      add(norm, conv_of(width, width, 3, 1), width);
    }
    if (stride != 1 || in != out) {
      shortcut = register_module("shortcut", nn::Sequential());
      shortcut->push_back(conv_of(in, out, 1, stride));
      shortcut->push_back(norm_layer(norm, out));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto straight = shortcut.is_empty() ? x : shortcut->forward(x);
    for (std::size_t k = 0; k < convs.size(); ++k) {
      x = norms[k].forward(convs[k](x));
      if (k + 1 < convs.size()) x = torch::relu(x);
    }
    return torch::relu(x + straight);
  }
  static constexpr std::int64_t kExpansion = 4;  ///< of a bottleneck

 private:
  void add(const NormSpec& norm, nn::Conv2d conv, std::int64_t channels) {
    const std::string number = std::to_string(convs.size() + 1);
    convs.push_back(register_module("conv" + number, std::move(conv)));
    norms.push_back(norm_layer(norm, channels));
    register_module("norm" + number, norms.back().ptr());
  }
  std::vector<nn::Conv2d> convs;
  std::vector<nn::AnyModule> norms;
  nn::Sequential shortcut{nullptr};
};

struct ResNetPlan {
  std::vector<std::int64_t> widths;  ///< of the stages; each behind the first halves the side
  std::vector<int> blocks;           ///< of each stage
  bool bottleneck = false;
  bool large_stem = false;
  double drop_channels = 0, drop_features = 0;  ///< between the stages, before the last layer
};

struct ResNet : Classifier {
  ResNet(const ImageShape& of, const NormSpec& norm_spec, ResNetPlan planned)
      : Classifier(of),
        plan(std::move(planned)),
        conv(register_module("conv", conv_of(shape.channels, plan.widths.front(),
                                             plan.large_stem ? 7 : 3, plan.large_stem ? 2 : 1))),
        norm(norm_layer(norm_spec, plan.widths.front())) {
    register_module("norm", norm.ptr());
    blocks = register_module("blocks", nn::Sequential());
    const std::int64_t last = plan.widths.back();
    fc = register_module(
        "fc", nn::Linear(plan.bottleneck ? ResidualBlock::kExpansion * last : last, shape.classes));
    std::int64_t in = plan.widths.front();
    for (std::size_t stage = 0; stage < plan.widths.size(); ++stage) {
      if (plan.drop_channels > 0) blocks->push_back(nn::Dropout2d(plan.drop_channels));
      for (int k = 0; k < plan.blocks[stage]; ++k) {
        const std::int64_t stride = stage > 0 && k == 0 ? 2 : 1;
        const std::int64_t width = plan.widths[stage];
        blocks->push_back(ResidualBlock(norm_spec, in, width, stride, plan.bottleneck));
        in = plan.bottleneck ? ResidualBlock::kExpansion * width : width;
      }
    }
  }
  torch::Tensor forward(torch::Tensor images) override {
    auto x = torch::relu(norm.forward(conv(images)));
    if (plan.large_stem) x = torch::max_pool2d(x, 3, 2, 1);
    x = blocks->forward(x).mean({2, 3});
    if (plan.drop_features > 0) x = torch::dropout(x, plan.drop_features, is_training());
    return fc(x);
  }
  ResNetPlan plan;
  nn::Conv2d conv;
  nn::AnyModule norm;
  nn::Sequential blocks{nullptr};
  nn::Linear fc{nullptr};
};

}  // namespace

std::shared_ptr<Network> make_resnet(const std::string& name, const ImageShape& shape,
                                     const NormSpec& norm) {
  const bool large = std::min(shape.height, shape.width) >= kLargeImage;
  const std::vector<std::int64_t> narrow = {16, 32, 64}, wide = {64, 128, 256, 512};
  const std::vector<int> of_34 = {3, 4, 6, 3};
  ResNetPlan plan{wide, of_34};
  plan.large_stem = large;
  if (name == "resnet18") plan.blocks = {2, 2, 2, 2};
  if (name == "resnet50") plan.bottleneck = true;
  if (name == "resnet152") plan = {wide, {3, 8, 36, 3}, true, large};
  if (name == "resnet20") plan = {narrow, {3, 3, 3}};
  if (name == "resnet32") plan = {narrow, {5, 5, 5}};
  if (name == "resnet110") plan = {narrow, {18, 18, 18}};
  if (name == "ecl-resnet32") plan = {wide, of_34, false, true, 0.1, 0.5};
  return std::make_shared<ResNet>(shape, norm, std::move(plan));
}

}  // namespace train
