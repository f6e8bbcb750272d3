// SPDX-License-Identifier: Apache-2.0
/// \file
/// `make_task` chooses the task that goes with a model: a text for the transformer, quadratics for
/// `quadratic`, and images for all others. `default_data` names the data that a model is trained on
/// when the command line names none. Scores of several batches or workers are added here.

#include "learning/task.hpp"

#include "learning/images.hpp"
#include "learning/quadratic.hpp"
#include "learning/text.hpp"

namespace train {
namespace {

constexpr const char* kQuadratic = "quadratic";

bool is_language_model(const std::string& model) { return model == "transformer"; }

}  // namespace

Score& operator+=(Score& total, const Score& part) noexcept {
  total.correct += part.correct;
  total.predictions += part.predictions;
  total.top5 += part.top5;
  total.loss += part.loss;
  total.squared_distance += part.squared_distance;
  total.broken_off |= part.broken_off;
  return total;
}

std::unique_ptr<Task> make_task(const std::string& model, const std::string& path,
                                const std::string& pixels, std::uint32_t image_size) {
  if (is_language_model(model)) return make_text_task(path);
  if (model == kQuadratic) return make_quadratic_task(path);
  return make_image_task(path, pixels == "plain", image_size);
}

std::string default_data(const std::string& model) {
  if (model == kQuadratic) return "";
  return is_language_model(model) ? kCMakeManual : kFashionMnist;
}

}  // namespace train
