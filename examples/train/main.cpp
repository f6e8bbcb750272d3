// SPDX-License-Identifier: Apache-2.0
/// \file
/// atomo-train: `mpirun -n 5 atomo-train --help`.
///
/// Files: options; task, images, text, data_order (what is learnt, from which samples); models,
/// transformer, replica (the network behind plain arrays; these alone see torch); optimiser,
/// learner (what every training process has); transport (MPI); ps, allgather, twoshot (the
/// algorithms); gradient_stream, exchange, peer, shards (what they are made of); checkpoint, log,
/// timeline.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "exchange.hpp"
#include "interrupt.hpp"
#include "options.hpp"
#include "replica.hpp"
#include "run.hpp"
#include "transport.hpp"

namespace {

constexpr int kWrongUsage = 2, kInterrupted = 130;

/// Empty when the run can begin.
std::string objection(const train::Options& options, const train::Transport& transport) {
  if (!options.error.empty()) return options.error;
  if (transport.workers() < 1) {
    return "--algorithm ps needs a server and at least one worker: mpirun -n 2 or more";
  }
  if (transport.workers() > 65535) return "at most 65,535 workers have random streams of their own";
  if (!options.on_device()) return "";
  const std::string torch = train::torch_cuda_objection();
  return torch.empty() ? train::device_objection() : torch;
}

/// \throws std::exception for whatever ends the run.
train::Outcome train_on(train::Options& options, train::Run& run) {
  if (!train::all_ready(run.transport, objection(run.options, run.transport))) {
    return train::Outcome::cannot_start;
  }
  if (options.on_device()) options.gpu = train::choose_gpu();
  if (run.options.algorithm == "allgather") return train::all_gather(run);
  if (run.options.algorithm == "twoshot") return train::two_shot(run);
  return run.transport.rank() == 0 ? train::serve(run) : train::work(run);
}

/// The launchers number their processes in the environment; without one this is the only process.
bool first_process_of_job() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  auto options = train::parse_options(argc, argv);
  if (!options.help.empty()) {
    if (first_process_of_job()) std::fputs(options.help.c_str(), stdout);
    return 0;
  }
  if (options.check) {
    if (!options.error.empty()) std::fprintf(stderr, "atomo-train: %s\n", options.error.c_str());
    return options.error.empty() ? 0 : kWrongUsage;
  }

  train::Transport transport(&argc, &argv, options.timeout_seconds, options.algorithm == "ps");
  train::catch_interrupts();
  train::Run run{options, transport};
  try {
    const auto outcome = train_on(options, run);
    transport.close();
    switch (outcome) {
      case train::Outcome::finished:
        return 0;
      case train::Outcome::interrupted:
        return kInterrupted;
      case train::Outcome::cannot_start:
        return kWrongUsage;
    }
  } catch (const train::Fault& fault) {
    transport.abort(fault.what(), fault.rank());
  } catch (const std::exception& e) {
    transport.abort(transport.name(transport.rank()) + ": " + e.what());
  }
}
