// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How a gradient becomes a step: optimisers over flat arrays, with a state that a checkpoint can
/// hold.
///
///   OptimiserSettings settings;
///   settings.learning_rate = [](std::uint32_t) { return 0.05; };
///   auto optimiser = make_optimiser("adam", settings, layers);
///   optimiser->take_step(weights, gradient, step);

#include <atomo/compressor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "learning/second_moment.hpp"

namespace train {

/// Where the second moment comes from, which adam and adamw divide by. factored, scaled and matched are of
/// matrices and need `see_squares`; exact needs `see_exact`.
enum class SecondMoment : std::uint8_t {
  own,       ///< from the gradients that the steps are taken along
  factored,  ///< from row and column means of the workers' squares
  scaled,    ///< own, times a number a layer that takes the codec's noise out of its sum
  matched,  ///< own, a layer's update as long as the one of factored is: tells direction from length
  exact,    ///< of the average of the gradients as they were before their codec, for every entry
};
/// By what the command line calls them.
[[nodiscard]] SecondMoment second_moment_of(const std::string& name);

struct OptimiserSettings {
  std::function<double(std::uint32_t step)> learning_rate;
  /// Gradients of a step are this many times too large.
  std::function<double(std::uint32_t step)> gradient_scale = [](std::uint32_t) { return 1.0; };
  double momentum = 0;      ///< of sgd, nesterov and lars
  double weight_decay = 0;  ///< added to the gradient times the weights; adamw: to the step
  double beta1 = 0.9;       ///< of adam, adamw, adafactor, and where muon moves as they do
  double beta2 = 0.999;
  SecondMoment second_moment = SecondMoment::own;
  std::uint32_t squares_every =
      10;                   ///< steps from one `see_squares` to the next, the first included
  std::size_t workers = 1;  ///< whose squares they are
  /// Of adam and adamw: the root mean square of a layer's update, the rate left out, is at most
  /// this; 0: whatever it is.
  double max_update = 0;
  std::string unit = "step";  ///< what an error calls a step of this optimiser
};

/// \throws std::runtime_error for a gradient that is not all finite. `number` counts from 0 what
/// `unit` says.
void check_gradient(std::span<const float> gradient, const std::string& unit, std::uint32_t number);
/// \throws std::runtime_error for weights that are not all finite. `done`: the steps that led to
/// them.
void check_weights(std::span<const float> weights, std::uint32_t done);

/// Of all layers together.
[[nodiscard]] std::size_t elements_of(std::span<const atomo::LayerSpec> layers);

class Optimiser {
 public:
  virtual ~Optimiser() = default;
  Optimiser(const Optimiser&) = delete;
  Optimiser& operator=(const Optimiser&) = delete;

  /// Takes the gradient's scale out of it and moves `weights` along it. `step` counts this
  /// optimiser's steps from 0: rate, scale and the corrections of adam follow from it.
  /// \throws std::runtime_error for a gradient that is not all finite; nothing has moved then.
  void take_step(std::span<float> weights, std::span<float> gradient, std::uint32_t step);
  /// The squares of factored layer i (`factored_layers`), before the step that they belong to.
  virtual void see_squares(std::size_t i, const LayerSquares& squares);
  /// The average of all workers' gradients as they were before their codec, before the step that it belongs to.
  virtual void see_exact(std::span<const float> average);
  /// For each entry the fourth root of the second moment that the steps before `step` left: errors in these units are as
  /// large as what they add to the loss (docs/second-moment.md). The root is at least 1/1024 of the layer's root mean
  /// square of it; 1 for a layer that has none yet. Adam's; others leave `units` as it is.
  virtual void find_units(std::uint32_t step, std::span<float> units);
  /// One array a moment, each as long as the weights. All of the state there is.
  [[nodiscard]] std::vector<std::vector<float>>& moments() noexcept { return moments_; }

 protected:
  Optimiser(OptimiserSettings settings, std::size_t moments, std::size_t elements)
      : settings_(std::move(settings)), moments_(moments, std::vector<float>(elements)) {}

  virtual void step(std::span<float> weights, std::span<const float> gradient, double lr,
                    std::uint32_t step) = 0;

  OptimiserSettings settings_;
  std::vector<std::vector<float>> moments_;
};

/// "sgd", "nesterov", "lars", "adam", "adamw", "adagrad", "adadelta", "rmsprop", "muon",
/// "adafactor", "signsgd".
[[nodiscard]] std::vector<std::string> optimiser_names();

/// Whether `OptimiserSettings::momentum` is of this optimiser.
[[nodiscard]] bool has_momentum(const std::string& name);

/// The part of an optimiser's first moment that stays from step to step; 0 of one that has none.
[[nodiscard]] double first_moment_of(const std::string& name, double momentum, double beta1);

/// For weights that are `layers`, one behind the other.
/// \throws std::runtime_error when `name` is none of `optimiser_names`, or has no second moment that
/// the settings speak of.
[[nodiscard]] std::unique_ptr<Optimiser> make_optimiser(const std::string& name,
                                                        OptimiserSettings settings,
                                                        std::span<const atomo::LayerSpec> layers);

}  // namespace train
