// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A process's copy of the network, behind plain arrays: the rest of the trainer does not see
/// torch.

#include <atomo/compressor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dataset.hpp"

namespace train {

class Replica {
 public:
  /// Called while back-propagation runs, once a layer, as soon as its gradient exists. The last
  /// layers come first.
  using OnGradient = std::function<void(std::size_t layer, std::span<const float> gradient)>;
  struct Score {
    std::uint64_t correct = 0, samples = 0;
    double loss = 0;               ///< summed over the samples
    std::uint64_t broken_off = 0;  ///< not 0 when not all samples were tried
  };

  /// Weights are a function of the seed.
  Replica(const std::string& model, const ImageShape& shape, std::uint64_t seed);
  ~Replica();

  /// Parameters in the order of the network.
  [[nodiscard]] const std::vector<atomo::LayerSpec>& layers() const noexcept;
  [[nodiscard]] std::size_t offset(std::size_t layer) const noexcept;  ///< of a layer in `weights`
  /// All parameters, one behind the other; writing here changes the network.
  [[nodiscard]] std::span<float> weights() noexcept;
  /// Running means and variances of batch normalisation; no part of `weights`.
  [[nodiscard]] std::vector<float> buffers() const;
  void set_buffers(std::span<const float> values);

  /// Forward and backward over a batch. Returns the mean loss.
  double backward(const Batch& batch, const OnGradient& on_gradient);
  /// When the last call of `backward` came to back-propagation.
  [[nodiscard]] std::chrono::steady_clock::time_point backward_began() const noexcept;
  [[nodiscard]] Score evaluate(const Batch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace train
