// SPDX-License-Identifier: Apache-2.0
/// \file
/// atomo-train: `mpirun -n 5 atomo-train --help`.
///
/// Files: options, dataset, models, replica (the network behind plain arrays; these two alone see
/// torch), optimiser, learner (what every training process has), transport (MPI), gradient_stream
/// (layers on their way to the server), ps and allgather (the algorithms), checkpoint, log,
/// timeline.

#include <exception>
#include <string>

#include "interrupt.hpp"
#include "options.hpp"
#include "run.hpp"
#include "transport.hpp"

namespace {

constexpr int kWrongUsage = 2, kInterrupted = 130;

/// \throws std::exception for whatever ends the run.
train::Outcome train_on(train::Run& run) {
  auto& transport = run.transport;
  if (transport.workers() < 1) {
    (void)train::all_ready(
        transport, "--algorithm ps needs a server and at least one worker: mpirun -n 2 or more");
    return train::Outcome::cannot_start;
  }
  if (transport.workers() > 65535) {
    (void)train::all_ready(transport, "at most 65,535 workers have random streams of their own");
    return train::Outcome::cannot_start;
  }
  if (run.options.algorithm == "allgather") return train::all_gather(run);
  return transport.rank() == 0 ? train::serve(run) : train::work(run);
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<int> exit_code;
  const auto options = train::parse_options(argc, argv, exit_code);
  if (exit_code) return *exit_code;

  train::Transport transport(&argc, &argv, options.timeout_seconds, options.algorithm == "ps");
  train::catch_interrupts();
  train::Run run{options, transport};
  try {
    const auto outcome = train_on(run);
    transport.close();
    switch (outcome) {
      case train::Outcome::finished:
        return 0;
      case train::Outcome::interrupted:
        return kInterrupted;
      case train::Outcome::cannot_start:
        return kWrongUsage;
    }
  } catch (const train::Lost& lost) {
    transport.abort(lost.what(), lost.rank());
  } catch (const std::exception& e) {
    transport.abort(transport.name(transport.rank()) + ": " + e.what());
  }
}
