// SPDX-License-Identifier: Apache-2.0
/// \file
/// A run with a model of its own takes its task from there, any other by the model's name.

#include "learning/own_model.hpp"

namespace train {

std::unique_ptr<Task> make_task(const Options& options) {
  if (options.own != nullptr) return options.own->make_task();
  return make_task(options.model, options.data, options.pixels, options.image_size);
}

}  // namespace train
