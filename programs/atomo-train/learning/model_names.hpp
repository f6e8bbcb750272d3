// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What --model and --norm mean. No torch here.

#include <cstdint>
#include <string>
#include <vector>

namespace train {

struct ModelSpec {
  std::string name;                  ///< in front of its keys
  std::vector<std::int64_t> hidden;  ///< of mlp: the widths between pixels and classes

  /// \throws std::runtime_error naming what is wrong in `text`, and what would be right.
  [[nodiscard]] static ModelSpec parse(const std::string& text);
};

/// How a network is normalised: over the batch, or over groups of neighbouring channels of an image.
struct NormSpec {
  std::int64_t channels_a_group = 0;  ///< 0: over the batch

  /// "batch" or "group:N"; empty is what `model` has by itself.
  /// \throws std::runtime_error naming what is wrong, also where the model has no normalisation.
  [[nodiscard]] static NormSpec parse(const std::string& text, const ModelSpec& model);
};

/// All names, with commas between them.
[[nodiscard]] std::string model_names();

}  // namespace train
