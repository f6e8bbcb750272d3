// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The networks. Includes torch.

#include <torch/torch.h>

#include <string>

#include "dataset.hpp"

namespace train {

/// Images (batch x channels x height x width) to logits (batch x kClasses).
struct Network : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

/// `name`: "logistic", "lenet" (431,080 parameters on 28 x 28 grey images) or "resnet20".
[[nodiscard]] std::shared_ptr<Network> make_network(const std::string& name,
                                                    const ImageShape& shape);

}  // namespace train
