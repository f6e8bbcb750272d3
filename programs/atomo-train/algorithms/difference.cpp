// SPDX-License-Identifier: Apache-2.0
/// \file
/// Gradient differences (DIANA, arXiv 1901.09269), and weights that come back as differences too.
///
///   server, every step                          worker k, every step
///   ------------------                          --------------------
///   send C(w - v); v <- v + what it        -->  v <- v + decoded
///     decodes to
///   for every worker k:                    <--  m <- C(gradient at v - h_k), layer by layer
///     g += (h_k + decode(m)) / W                send m
///     h_k <- h_k + alpha decode(m)              h_k <- h_k + alpha decode(m)
///   w <- optimiser(w, g)
///
/// Both ends keep h_k, so only what is new about a gradient travels, and the error of an unbiased
/// codec dies away with the differences. alpha is --codec-scale, or by layer 1 / (1 + omega) for an
/// unbiased codec and 1 for a contraction. v is what the workers have of w: --down, or the
/// gradients' policy, leaves no error behind that the next difference does not hold.
///
/// With --lazy a worker whose m would change little (lazy_rule.hpp) sends a byte a layer in its place,
/// and both ends keep h_k as it is: the server takes h_k for its gradient. That is LAQ (Sun et al.,
/// NeurIPS 2019) where alpha is 1.

#include <algorithm>
#include <stdexcept>

#include "algorithms/algorithms.hpp"
#include "algorithms/lazy_rule.hpp"
#include "exchange/contraction.hpp"
#include "roles/server_family.hpp"

namespace train {
namespace {

constexpr const char* kMemory = "memory";

/// alpha of each layer.
std::vector<float> steps_of_memory(const atomo::Compressor& compressor, const Options& options) {
  std::vector<float> steps;
  for (std::size_t i = 0; i < compressor.layers().size(); ++i) {
    const auto& codec = compressor.codec(i);
    const auto [alpha, delta] = contraction_of(codec, options.codec_scale);
    if (options.codec_scale == 0 && !(delta > 0)) {
      throw std::runtime_error("difference: nothing bounds the error of '" + codec.to_string() +
                               "' without the tensor: give --codec-scale, for example " +
                               (codec.traits().unbiased ? "0.1" : "1, as EF21 has it") +
                               ", or take another codec, for example qsgd:bits=4");
    }
    steps.push_back(static_cast<float>(alpha));
  }
  return steps;
}

void serve(Server& server) {
  const std::size_t n = server.weights().size();
  const auto alpha = server.of_elements(steps_of_memory(server.compressor(), server.options()));
  const float share = 1.0F / static_cast<float>(server.workers());
  std::vector<float> mean(n);
  std::vector<std::vector<float>> memories(server.workers(), std::vector<float>(n));
  server.restore_copies(kMemory, memories);
  while (server.begin_round()) {
    server.send_weights();
    std::fill(mean.begin(), mean.end(), 0.0F);
    for (std::size_t k = 0; k < server.workers(); ++k) {
      const auto decoded = server.receive_from(k);
      auto& memory = memories[k];
      for (std::size_t i = 0; i < n; ++i) {
        mean[i] += share * (memory[i] + decoded[i]);
        memory[i] += alpha[i] * decoded[i];
      }
    }
    server.take_step(mean);
  }
}

void work(Worker& worker) {
  const auto alpha = steps_of_memory(worker.compressor(), worker.options());
  std::vector<float> memory(worker.weights().size());
  worker.keep(kMemory, memory);
  if (worker.options().lazy == 0) {
    while (worker.receive_weights()) {
      worker.stream_gradient(memory);
      worker.add_sent(alpha, memory);
    }
    return;
  }
  LazyRule rule(worker.options().lazy, memory.size());
  worker.keep("lazy-weights", rule.before());
  worker.keep("lazy-numbers", rule.numbers());
  while (worker.receive_weights()) {
    rule.begin(worker.received_weights());
    const bool sent = worker.stream_gradient_if(memory, [&](double change, double error) {
      return rule.sends(worker.learning_rate(), change, error);
    });
    if (sent) worker.add_sent(alpha, memory);
  }
}

}  // namespace

Outcome gradient_difference(Run& run) {
  return run_server_family(run, {.compresses_down = true}, serve, work);
}

}  // namespace train
