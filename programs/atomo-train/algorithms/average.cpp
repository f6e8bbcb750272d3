// SPDX-License-Identifier: Apache-2.0
/// \file
/// Parameter averaging: the plainest way to share steps.
///
///   server, every round                         worker, every round
///   -------------------                         -------------------
///   send weights w                         -->  receive w
///                                               tau times (--local-steps):
///                                                 w <- optimiser(w, gradient at w)
///   w <- mean of decode(message)           <--  send encode(w)
///
/// Weights are sent, not what they changed by, so a codec's error is one of the weights themselves:
/// it wants a codec of high fidelity. fedavg sends changes.

#include <algorithm>

#include "algorithms/algorithms.hpp"
#include "roles/server_family.hpp"

namespace train {
namespace {

void serve(Server& server) {
  while (server.begin_round()) {
    server.send_weights();
    const auto mean = server.receive_mean();
    std::copy(mean.begin(), mean.end(), server.weights().begin());
  }
}

void work(Worker& worker) {
  while (worker.receive_weights()) {
    worker.take_local_steps();
    worker.send(worker.weights());
  }
}

}  // namespace

Outcome parameter_averaging(Run& run) {
  return run_server_family(run, {.rounds = Rounds::of_local_steps}, serve, work);
}

}  // namespace train
