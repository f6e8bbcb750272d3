// SPDX-License-Identifier: Apache-2.0
/// \file
/// atomo-train: `mpirun -n 5 atomo-train --help`.
///
/// Folders: command_line (options, job files), algorithms (one file each, and their table), roles
/// (what a process is in them), exchange (how messages travel), learning (data, networks,
/// optimisers), run (what a run logs and keeps), files (how that is written and read).

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "algorithms/algorithms.hpp"
#include "command_line/options.hpp"
#include "exchange/transport.hpp"
#include "run/evaluate.hpp"
#include "run/interrupt.hpp"
#include "run/plot_runs.hpp"
#include "run/run_folder.hpp"
#include "run/training.hpp"

namespace {

constexpr int kWrongUsage = 2;

/// The launchers number their processes in the environment; without one this is the only process.
bool first_process_of_job() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  }
  return true;
}

/// Behind the end of MPI. False: it has said why not.
bool write_scores(const train::Options& options) {
  try {
    train::write_sample_scores(options.save, options.out + "/" + train::kSampleScoresName);
    return true;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "atomo-train: --sample-scores: %s\n", e.what());
    return false;
  }
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

  train::Transport transport(&argc, &argv, options.timeout_seconds, options.retries,
                             train::servers_of(options));
  if (options.cut_link.size() == 2) {
    transport.cut({.a = options.cut_link[0],
                   .b = options.cut_link[1],
                   .after = options.cut_after,
                   .lasts = options.cut_for});
  }
  train::catch_interrupts();
  try {
    const auto outcome = train::train_on(options, transport);
    const bool some_lost = transport.close();
    const auto leave = [&](int status) {
      if (some_lost) transport.leave(status);
      return status;
    };
    if (outcome != train::Outcome::cannot_start && transport.rank() == 0 && !options.out.empty()) {
      if (options.sample_scores && outcome == train::Outcome::finished && !write_scores(options))
        return leave(1);
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
