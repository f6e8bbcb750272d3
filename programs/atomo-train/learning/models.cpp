// SPDX-License-Identifier: Apache-2.0
/// \file
/// Networks are made by their names here, and the loss and the score of every network, the transformer
/// included, are computed from its logits by cross-entropy.

#include "learning/models.hpp"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "learning/classifiers.hpp"

namespace train {
namespace {

std::shared_ptr<Network> make_classifier(const std::string& name, const std::string& norm_text,
                                         const ImageShape& shape) {
  if (shape.height < 16 || shape.width < 16) {
    throw std::runtime_error("images of " + std::to_string(shape.height) + " x " +
                             std::to_string(shape.width) + " are too small for " + name +
                             ", which needs 16 x 16");
  }
  const auto spec = ModelSpec::parse(name);
  const auto norm = NormSpec::parse(norm_text, spec);
  if (spec.name == "mlp") return make_mlp(shape, spec.hidden);
  if (spec.name == "lenet") return make_lenet(shape);
  if (spec.name == "alexnet") return make_alexnet(shape);
  if (spec.name.starts_with("vgg")) return make_vgg(spec.name, shape, norm);
  if (spec.name.starts_with("densenet"))
    return make_densenet(shape, norm, spec.name == "densenet-bc-100-12");
  return make_resnet(spec.name, shape, norm);
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

Score Network::score(const Batch& batch, torch::Device device, std::vector<Prediction>* each) {
  const auto predicted = logits(batch, device);
  const auto targets = tensor_of(batch.targets, {-1}, device);
  const auto right = predicted.argmax(1).eq(targets).sum().item<std::int64_t>();
  const auto top = std::get<1>(predicted.topk(std::min(kTop, predicted.size(1)), 1));
  const auto among_top = top.eq(targets.unsqueeze(1)).sum().item<std::int64_t>();
  const auto loss = torch::cross_entropy_loss(predicted, targets, {}, at::Reduction::Sum);
  if (each != nullptr) {
    const auto [scores, classes] = predicted.softmax(1).max(1);
    const auto score_of = scores.cpu(), class_of = classes.cpu();
    for (std::size_t i = 0; i < batch.targets.size(); ++i)
      each->push_back(
          {batch.targets[i], class_of.data_ptr<std::int64_t>()[i], score_of.data_ptr<float>()[i]});
  }
  return {.correct = static_cast<std::uint64_t>(right),
          .predictions = batch.targets.size(),
          .top5 = static_cast<std::uint64_t>(among_top),
          .loss = loss.item<float>()};
}

std::shared_ptr<Network> make_network(const std::string& name, const std::string& norm,
                                      const InputShape& input) {
  if (const auto* text = std::get_if<TextShape>(&input)) return make_transformer(*text);
  return make_classifier(name, norm, std::get<ImageShape>(input));
}

}  // namespace train
