// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A model and data that the program brings which runs the trainer, in place of those of --model and
/// --data: the Python package's `atomo.train`.

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "command_line/options.hpp"
#include "learning/optimiser.hpp"
#include "learning/replica.hpp"
#include "learning/task.hpp"

namespace train {

struct OwnModel {
  std::string name;  ///< of the model, in logs and checkpoints
  std::string data;  ///< the same of its data
  std::function<std::unique_ptr<Task>()> make_task;
  /// Weights are a function of the seed.
  std::function<std::unique_ptr<Replica>(std::uint64_t seed)> make_replica;
  std::string optimiser;  ///< the name of one of its own; empty: that of --optimizer
  /// Makes it. `lr`: the run's --lr, which the schedule's rates come from.
  std::function<std::unique_ptr<Optimiser>(OptimiserSettings settings, double lr,
                                           std::span<const atomo::LayerSpec> layers)>
      make_optimiser;
};

/// The task of a run: that of its own model, or of --model over --data. \throws as the other
/// `make_task` does.
[[nodiscard]] std::unique_ptr<Task> make_task(const Options& options);

}  // namespace train
