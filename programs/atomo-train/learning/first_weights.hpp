// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The weights that a run begins with: those of its seed, or those of a model file.

#include <memory>
#include <optional>
#include <string>

#include "command_line/options.hpp"
#include "learning/replica.hpp"

namespace train {

/// Sets the weights, and the running statistics of batch normalisation where the file has them, to
/// those of a .safetensors file: a checkpoint, or a file with a tensor of each layer's name. Of
/// several workers' statistics it takes the mean. \throws std::runtime_error when the file cannot
/// be read, or naming what does not fit the model.
void load_weights(const std::string& path, const std::string& model, Replica& replica);

/// The run's network at its first step, with the weights of --init where there are any. A run that
/// goes on takes all weights from its checkpoint, and --init is not read. `gpu`: as `make_replica`
/// has it. \throws as `make_replica` and `load_weights` do.
[[nodiscard]] std::unique_ptr<Replica> make_first_replica(const Options& options,
                                                          const InputShape& input,
                                                          std::optional<int> gpu = std::nullopt);

}  // namespace train
