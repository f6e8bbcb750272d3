// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SGD with momentum and AdamW over flat arrays, with a state that a checkpoint can hold.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "options.hpp"

namespace train {

class Optimiser {
 public:
  virtual ~Optimiser() = default;
  /// Moves `weights` along the mean gradient of step `step` (from 0).
  virtual void step(std::span<float> weights, std::span<const float> gradient, double lr,
                    std::uint32_t step) = 0;
  /// One array a moment, each as long as the weights.
  [[nodiscard]] std::vector<std::vector<float>>& moments() noexcept { return moments_; }

 protected:
  Optimiser(std::size_t moments, std::size_t elements)
      : moments_(moments, std::vector<float>(elements)) {}
  std::vector<std::vector<float>> moments_;
};

[[nodiscard]] std::unique_ptr<Optimiser> make_optimiser(const Options& options,
                                                        std::size_t elements);

}  // namespace train
