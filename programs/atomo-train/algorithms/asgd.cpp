// SPDX-License-Identifier: Apache-2.0
/// \file
/// Asynchronous SGD: a gradient is applied when it comes, whatever the weights have become since.
///
///   server, as often as there are workers a step   worker
///   --------------------------------------------   ------
///   send weights w to whoever waits           -->  receive w
///   g <- decode(message of the first worker   <--  send encode(gradient at w), layer by layer
///        that has sent all of it)
///   w <- optimiser(w, g)
///
/// Nobody waits for the slowest. With one worker it is SGD, to the bit; with more the order of
/// arrival decides, so no two runs are the same. A worker counts its own steps, and sees the
/// samples that go with them. Messages that have not been applied when a checkpoint is written are
/// computed again, at newer weights, by the run that goes on from it.

#include "algorithms/algorithms.hpp"
#include "roles/server_family.hpp"

namespace train {
namespace {

void serve(Server& server) {
  while (server.begin_round()) {
    server.send_weights();
    server.take_step(server.receive_any());
  }
}

void work(Worker& worker) {
  while (worker.receive_weights()) worker.stream_gradient();
}

}  // namespace

Outcome asgd(Run& run) {
  return run_server_family(run, {.rounds = Rounds::of_an_arrival}, serve, work);
}

}  // namespace train
