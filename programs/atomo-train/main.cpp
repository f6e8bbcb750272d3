// SPDX-License-Identifier: Apache-2.0
/// \file
/// atomo-train: `mpirun -n 5 atomo-train --help`.
///
/// Folders: command_line (options, job files), algorithms (one file each, and their table), roles
/// (what a process is in them), exchange (how messages travel), learning (data, networks,
/// optimisers), run (what a run logs and keeps), files (how that is written and read).

#include <cblas.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "algorithms/algorithms.hpp"
#include "command_line/options.hpp"
#include "exchange/exchange.hpp"
#include "exchange/threads.hpp"
#include "exchange/transport.hpp"
#include "files/checkpoint.hpp"
#include "learning/learner.hpp"
#include "learning/replica.hpp"
#include "run/evaluate.hpp"
#include "run/interrupt.hpp"
#include "run/plot_runs.hpp"
#include "run/run.hpp"
#include "run/run_folder.hpp"

namespace {

constexpr int kWrongUsage = 2;

/// Empty when the run can begin.
std::string objection(const train::Options& options, const train::Transport& transport) {
  if (!options.error.empty()) return options.error;
  if (transport.workers() < 1) {
    return "--algorithm " + options.algorithm + " with " + std::to_string(options.servers) +
           " servers needs at least one worker: mpirun -n " + std::to_string(options.servers + 1) +
           " or more";
  }
  if (transport.workers() > 65535) return "at most 65,535 workers have random streams of their own";
  if (transport.rank() == 0) {
    if (auto text = train::run_folder_objection(options); !text.empty()) return text;
  }
  // Every process reads it, and all wait for each other here: nobody has written anything yet.
  if (!options.resume.empty()) {
    if (auto text = train::checkpoint_objection(options.resume); !text.empty()) return text;
  }
  if (!options.on_device()) return "";
  const std::string network = train::gpu_objection(options.model);
  return network.empty() ? train::device_objection() : network;
}

/// Leaves parallel work to the threads of the process, as long as the user does not say otherwise.
void keep_to_one_thread_of_blas() {
  if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) openblas_set_num_threads(1);
}

/// \throws std::exception for whatever ends the run.
train::Outcome train_on(train::Options& options, train::Transport& transport) {
  if (!train::all_ready(transport, objection(options, transport)))
    return train::Outcome::cannot_start;
  if (options.on_device()) options.gpu = train::choose_gpu();
  keep_to_one_thread_of_blas();
  if (options.epochs != 0) {
    std::string error;
    try {
      options.steps = train::steps_of_epochs(options, transport.workers());
    } catch (const std::exception& e) {
      error = e.what();
    }
    if (!train::all_ready(transport, error)) return train::Outcome::cannot_start;
  }
  if (options.threads == 0) options.threads = train::threads_of_this_process(transport);
  train::Threads threads(options.threads);
  train::Run run{options, transport, threads};
  return train::find_algorithm(options.algorithm)->run(run);
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
  if (argc > 1 && std::string_view(argv[1]) == "evaluate")
    return train::evaluate_checkpoints(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "plot")
    return train::draw_plot({argv + 2, argv + argc});
  auto options = train::parse_options(argc, argv);
  if (!options.help.empty()) {
    if (first_process_of_job()) std::fputs(options.help.c_str(), stdout);
    return 0;
  }
  if (options.list) {
    if (first_process_of_job()) std::fputs(train::list_of_algorithms(options.json).c_str(), stdout);
    return 0;
  }
  if (options.check) {
    if (!options.error.empty()) std::fprintf(stderr, "atomo-train: %s\n", options.error.c_str());
    return options.error.empty() ? 0 : kWrongUsage;
  }

  const auto* algorithm = train::find_algorithm(options.algorithm);
  const int servers =
      algorithm != nullptr && algorithm->family == train::Family::server ? options.servers : 0;
  train::Transport transport(&argc, &argv, options.timeout_seconds, options.retries, servers);
  if (options.on_lost_node == "go-on") transport.outlive_lost();
  if (options.cut_link.size() == 2) {
    transport.cut({.a = options.cut_link[0],
                   .b = options.cut_link[1],
                   .after = options.cut_after,
                   .lasts = options.cut_for});
  }
  train::catch_interrupts();
  if (options.slow_rank != transport.rank()) options.slow_factor = 1;
  try {
    const auto outcome = train_on(options, transport);
    const bool some_lost = transport.close();
    const auto leave = [&](int status) {
      if (some_lost) transport.leave(status);
      return status;
    };
    if (outcome != train::Outcome::cannot_start && transport.rank() == 0 && !options.out.empty()) {
      // A run without a plot is a whole run; the script has said what it lacks.
      (void)train::draw_plot(
          {"--quiet", "--out", options.out + "/" + train::kPlotName, options.out});
    }
    switch (outcome) {
      case train::Outcome::finished:
        return leave(0);
      case train::Outcome::interrupted:
        return leave(train::kInterruptedStatus);
      case train::Outcome::cannot_start:
        return leave(kWrongUsage);
    }
  } catch (const std::exception&) {
    transport.abort_for_exception();
  }
}
