// SPDX-License-Identifier: Apache-2.0
/// \file
/// Delay-compensated asynchronous SGD (arXiv 1609.08326): ASGD whose gradients are corrected, to
/// first order, for what the weights have become since worker i got them.
///
///   server, as often as there are workers a step   worker i
///   --------------------------------------------   --------
///   b_i <- w; send w to whoever waits         -->  receive w
///   g <- decode(message of the first worker   <--  send encode(gradient at w)
///        i that has sent all of it)
///   w <- optimiser(w, g + lambda g^2 (w - b_i))
///
/// All products are by element; g^2 stands for the diagonal of the Hessian. With --adaptive, lambda
/// is --compensation / sqrt(m + 1e-7) by element, where m <- 0.95 m + 0.05 g^2 is a running mean.

#include <cmath>

#include "algorithms/algorithms.hpp"
#include "roles/server_family.hpp"

namespace train {
namespace {

/// gradient <- gradient + lambda gradient^2 (weights - seen). Gradients are `scale` times too
/// large.
void compensate(std::span<float> gradient, std::span<const float> weights,
                std::span<const float> seen, std::span<float> mean_square, const Options& options,
                double scale) {
  constexpr float kKept = 0.95F, kEpsilon = 1e-7F;
  const auto base = static_cast<float>(options.compensation);
  const auto factor = static_cast<float>(scale);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i] / factor;
    float lambda = base;
    if (options.adaptive_compensation) {
      mean_square[i] = kKept * mean_square[i] + (1 - kKept) * g * g;
      lambda = base / std::sqrt(mean_square[i] + kEpsilon);
    }
    gradient[i] += factor * lambda * g * g * (weights[i] - seen[i]);
  }
}

void serve(Server& server) {
  std::vector<float> mean_square(server.weights().size());
  server.keep("mean_square", mean_square);
  while (server.begin_round()) {
    server.send_weights();
    const auto gradient = server.receive_any();
    compensate(gradient, server.weights(), server.weights_of(server.source()), mean_square,
               server.options(), server.gradient_scale());
    server.take_step(gradient);
  }
}

void work(Worker& worker) {
  while (worker.receive_weights()) worker.stream_gradient();
}

}  // namespace

Outcome dcasgd(Run& run) {
  return run_server_family(run, {.rounds = Rounds::of_an_arrival, .remembers = true}, serve, work);
}

}  // namespace train
