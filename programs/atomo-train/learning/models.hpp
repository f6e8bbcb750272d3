// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The networks that torch computes. Includes torch.

#include <torch/torch.h>

#include <memory>
#include <string>

#include "learning/task.hpp"

namespace train {

/// Predicts one of several classes; its loss is the cross-entropy.
struct Network : torch::nn::Module {
  /// Predictions x classes, in the order of the batch's targets.
  virtual torch::Tensor logits(const Batch& batch, torch::Device device) = 0;
  struct Loss {
    torch::Tensor loss;     ///< what training lowers: one number, the mean over the batch
    torch::Tensor correct;  ///< one number, of the predictions that are right
  };
  Loss loss(const Batch& batch, torch::Device device);
  /// What a test adds up over its batches; `each` as `Replica::evaluate` has it.
  Score score(const Batch& batch, torch::Device device, std::vector<Prediction>* each);
};

/// `name` and `norm`: as --model and --norm have them. \throws std::runtime_error for images that are
/// too small, and as `ModelSpec::parse` and `NormSpec::parse` do.
[[nodiscard]] std::shared_ptr<Network> make_network(const std::string& name,
                                                    const std::string& norm,
                                                    const InputShape& input);

/// Four pre-norm blocks of width 256 with four heads, learned positions, GELU; each character sees
/// those before it.
[[nodiscard]] std::shared_ptr<Network> make_transformer(const TextShape& shape);

/// Values in host memory as a tensor on `device`; one of the sizes may be -1.
template <class T>
[[nodiscard]] torch::Tensor tensor_of(const std::vector<T>& values, torch::IntArrayRef sizes,
                                      torch::Device device) {
  return torch::from_blob(const_cast<T*>(values.data()), {static_cast<std::int64_t>(values.size())},
                          torch::CppTypeToScalarType<T>::value)
      .view(sizes)
      .to(device);
}

}  // namespace train
