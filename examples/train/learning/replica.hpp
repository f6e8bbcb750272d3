// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A process's copy of the network, behind plain arrays: the rest of the trainer does not see
/// torch. On a GPU the network computes there; its master weights stay in host memory.

#include <atomo/compressor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "learning/task.hpp"

namespace train {

class Replica {
 public:
  /// Called while back-propagation runs, once a layer, as soon as its gradient exists. The last
  /// layers come first. On a GPU the gradient is there, written in the order of the default stream.
  using OnGradient = std::function<void(std::size_t layer, std::span<const float> gradient)>;

  /// Weights are a function of the seed. `gpu` is the number of one, or none.
  Replica(const std::string& model, const InputShape& input, std::uint64_t seed,
          std::optional<int> gpu = std::nullopt);
  ~Replica();

  /// Parameters in the order of the network.
  [[nodiscard]] const std::vector<atomo::LayerSpec>& layers() const noexcept;
  [[nodiscard]] std::size_t offset(std::size_t layer) const noexcept;  ///< of a layer in `weights`
  /// All parameters, one behind the other; writing here changes the network, on a GPU once
  /// `weights_changed` was called.
  [[nodiscard]] std::span<float> weights() noexcept;
  void weights_changed();
  /// Running means and variances of batch normalisation; no part of `weights`.
  [[nodiscard]] std::vector<float> buffers() const;
  void set_buffers(std::span<const float> values);

  /// Forward and backward over a batch: gradients of `scale` times the mean loss, which it returns.
  double backward(const Batch& batch, double scale, const OnGradient& on_gradient);
  /// When the last call of `backward` came to back-propagation.
  [[nodiscard]] std::chrono::steady_clock::time_point backward_began() const noexcept;
  [[nodiscard]] Score evaluate(const Batch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Why torch cannot compute on a GPU here and what would help; empty when it can.
[[nodiscard]] std::string torch_cuda_objection();

}  // namespace train
