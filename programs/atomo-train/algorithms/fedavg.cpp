// SPDX-License-Identifier: Apache-2.0
/// \file
/// Federated averaging (arXiv 1602.05629), with the server's step of arXiv 2003.00295.
///
///   server, every round                         worker, every round
///   -------------------                         -------------------
///   send weights w                         -->  receive w; x <- w
///                                               tau times (--local-steps):
///                                                 x <- optimiser(x, gradient at x)
///   d <- mean of decode(message)           <--  send encode(w - x)
///   w <- outer optimiser(w, d)
///
/// The outer optimiser's default, SGD at a rate of 1, makes w the mean of the workers' x. Workers
/// keep the moments of their optimiser from round to round; with tau = 1, SGD and no compression
/// the run is that of ps up to rounding. The last round is as short as --steps wants.

#include "algorithms/algorithms.hpp"
#include "roles/server_family.hpp"

namespace train {
namespace {

void serve(Server& server) {
  while (server.begin_round()) {
    server.send_weights();
    server.take_step(server.receive_mean());
  }
}

void work(Worker& worker) {
  std::vector<float> change(worker.weights().size());
  while (worker.receive_weights()) {
    worker.take_local_steps();
    for (std::size_t i = 0; i < change.size(); ++i)
      change[i] = worker.received_weights()[i] - worker.weights()[i];
    worker.send(change);
  }
}

}  // namespace

Outcome fedavg(Run& run) {
  return run_server_family(run, {.rounds = Rounds::of_local_steps}, serve, work);
}

}  // namespace train
