// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the trainer looks for in the module that computes with torch, which lies beside the
/// program: a variable of the name kTorchModule.

#include "learning/replica.hpp"

namespace train {

struct TorchModule {
  std::unique_ptr<Replica> (*make_replica)(const std::string& model, const std::string& norm,
                                           const InputShape& input, std::uint64_t seed,
                                           std::optional<int> gpu);
  /// Why torch cannot compute on a GPU here and what would help; empty when it can.
  std::string (*gpu_objection)();
};

inline constexpr const char* kTorchModule = "atomo_train_torch";

}  // namespace train
