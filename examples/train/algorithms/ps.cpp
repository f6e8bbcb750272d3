// SPDX-License-Identifier: Apache-2.0
/// \file
/// Parameter server (ATOMO, arXiv 1806.04090).
///
///   server, every step                          worker, every step
///   ------------------                          ------------------
///   send weights w                         -->  receive w
///   for every layer, as payloads come           back-propagate; for every layer, last one first:
///     g += decode(payload) / W, by rank    <--    send encode(gradient) without waiting
///       or, of coordinates at one step,
///     g = decode(sum of payloads) / W
///   w <- optimiser(w, g)
///
/// The server owns weights and optimiser. Workers own the codec's state and the running statistics
/// of batch normalisation, which are averaged over workers for testing and never travel otherwise.

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
  while (worker.receive_weights()) worker.stream_gradient();
}

}  // namespace

Outcome parameter_server(Run& run) {
  return run_server_family(run, Rounds::of_a_step, serve, work);
}

}  // namespace train
