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
  /// Takes the loss scale of step `step` (from 0) out of the mean gradient, and moves `weights`
  /// along it.
  void take_step(std::span<float> weights, std::span<float> gradient, std::uint32_t step);
  /// One array a moment, each as long as the weights.
  [[nodiscard]] std::vector<std::vector<float>>& moments() noexcept { return moments_; }

 protected:
  Optimiser(const Options& options, std::size_t moments, std::size_t elements)
      : options_(options), moments_(moments, std::vector<float>(elements)) {}

  virtual void step(std::span<float> weights, std::span<const float> gradient, double lr,
                    std::uint32_t step) = 0;

  const Options& options_;
  std::vector<std::vector<float>> moments_;
};

/// `options` has to outlive it.
[[nodiscard]] std::unique_ptr<Optimiser> make_optimiser(const Options& options,
                                                        std::size_t elements);

}  // namespace train
