// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A process's copy of the network, behind plain arrays. Classifiers without hidden layers and
/// quadratics are computed here; the others by torch, in a module that is loaded when one is asked
/// for: loading torch takes half a second. On a GPU torch computes there; the master weights stay in
/// host memory.

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
  /// layers come first. Torch's gradients on a GPU are there, written in the order of the default
  /// stream.
  using OnGradient = std::function<void(std::size_t layer, std::span<const float> gradient)>;

  virtual ~Replica() = default;
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Parameters in the order of the network.
  [[nodiscard]] virtual const std::vector<atomo::LayerSpec>& layers() const noexcept = 0;
  /// Of a layer in `weights`.
  [[nodiscard]] virtual std::size_t offset(std::size_t layer) const noexcept = 0;
  /// All parameters, one behind the other; writing here changes the network, on a GPU once
  /// `weights_changed` was called.
  [[nodiscard]] virtual std::span<float> weights() noexcept = 0;
  virtual void weights_changed() = 0;
  /// Running means and variances of batch normalisation; no part of `weights`.
  [[nodiscard]] virtual std::vector<float> buffers() const = 0;
  virtual void set_buffers(std::span<const float> values) = 0;

  /// Forward and backward over a batch: gradients of `scale` times the mean loss, which it returns.
  /// The batch's smoothing counts in both.
  virtual double backward(const Batch& batch, double scale, const OnGradient& on_gradient) = 0;
  /// When the last call of `backward` came to back-propagation.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point backward_began() const noexcept = 0;
  /// Of its batch, from the forward pass: `correct` and `predictions` alone; no predictions where
  /// none is right or wrong.
  [[nodiscard]] virtual Score trained() const noexcept { return {}; }
  /// The batch's smoothing does not count. `each`: where not null, classifiers put every prediction behind
  /// what it holds.
  [[nodiscard]] virtual Score evaluate(const Batch& batch,
                                       std::vector<Prediction>* each = nullptr) = 0;

 protected:
  Replica() = default;
};

/// `model` and `norm`: as --model and --norm have them. Weights are a function of the seed. `gpu` is the number of one, or none; what is computed here is
/// on the CPU whatever it says.
/// \throws std::runtime_error when the model does not fit the input, or its module does not load.
[[nodiscard]] std::unique_ptr<Replica> make_replica(const std::string& model,
                                                    const std::string& norm,
                                                    const InputShape& input, std::uint64_t seed,
                                                    std::optional<int> gpu = std::nullopt);

/// Why `model` cannot be computed on a GPU here and what would help; empty when it can.
[[nodiscard]] std::string gpu_objection(const std::string& model);

}  // namespace train
