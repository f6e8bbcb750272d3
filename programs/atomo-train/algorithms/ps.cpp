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
///
/// With --aggregate k a step takes the first k gradients that come. A later one is dropped, and its
/// worker skips forward to the step under way (--late drop), or it is one of the k of the step in
/// which it comes (--late add). With --double-buffer the first weights go out twice, so that a
/// worker computes the next gradient while the last one travels: every gradient but the first is
/// one of the weights before the last step.

#include "algorithms/algorithms.hpp"
#include "roles/server_family.hpp"

namespace train {
namespace {

void serve(Server& server) {
  if (server.options().double_buffer) server.send_weights();
  while (server.begin_round()) {
    server.send_weights();
    server.take_step(server.receive_mean());
  }
}

void work(Worker& worker) {
  while (worker.receive_weights()) worker.stream_gradient();
}

}  // namespace

Outcome parameter_server(Run& run) { return run_server_family(run, {}, serve, work); }

}  // namespace train
