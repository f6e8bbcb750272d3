// SPDX-License-Identifier: Apache-2.0
#include "learning/task.hpp"

#include "learning/images.hpp"
#include "learning/text.hpp"

namespace train {
namespace {

bool is_language_model(const std::string& model) { return model == "transformer"; }

}  // namespace

std::unique_ptr<Task> make_task(const std::string& model, const std::string& path) {
  if (is_language_model(model)) return make_text_task(path);
  return make_image_task(path);
}

std::string default_data(const std::string& model) {
  return is_language_model(model) ? kCMakeManual : kFashionMnist;
}

}  // namespace train
