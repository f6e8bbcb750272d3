// SPDX-License-Identifier: Apache-2.0
/// \file
/// The extension `atomo._atomo_train`: the loops of atomo-train with a model in Python. The package around
/// it is in `atomo/train/`. The extension has a copy of the library, and so a registry of codecs, of its
/// own: what is registered in Python is registered in it too.

#include <mpi.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <csignal>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithms.hpp"
#include "command_line/options.hpp"
#include "exchange/transport.hpp"
#include "own_codecs.hpp"
#include "python_model.hpp"
#include "run/interrupt.hpp"
#include "run/run_folder.hpp"
#include "run/training.hpp"

namespace atomo::python {
namespace {

bool mpi_is_ours = false;

void start_mpi() {
  int started = 0, ended = 0, provided = 0;
  MPI_Finalized(&ended);
  if (ended != 0) throw std::runtime_error("MPI was shut down in this process");
  MPI_Initialized(&started);
  if (started != 0) return;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  mpi_is_ours = true;
}

/// Shuts MPI down, if `start_mpi` started it: waits for all processes to do so.
void end_mpi() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (mpi_is_ours && ended == 0) MPI_Finalize();
}

std::pair<int, int> world() {
  start_mpi();
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return {rank, size};
}

/// The signals of a run are the interpreter's again when it has ended.
class Signals {
 public:
  Signals() {
    for (std::size_t i = 0; i < kOfRuns.size(); ++i) sigaction(kOfRuns[i], nullptr, &before_[i]);
  }
  ~Signals() {
    for (std::size_t i = 0; i < kOfRuns.size(); ++i) sigaction(kOfRuns[i], &before_[i], nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  static constexpr std::array kOfRuns = {SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
  std::array<struct sigaction, kOfRuns.size()> before_{};
};

train::Options options_of(std::vector<std::string> arguments, const train::OwnModel& own) {
  arguments.insert(arguments.begin(), "atomo.train");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  return train::parse_options(static_cast<int>(arguments.size()), argv.data(), &own);
}

/// (what is wrong with the arguments, or nothing, and the ranks that serve).
std::pair<std::string, int> check(const std::vector<std::string>& arguments,
                                  const std::string& optimiser) {
  train::OwnModel own;
  own.name = "model";
  own.data = "data";
  own.optimiser = optimiser;
  const nb::gil_scoped_release released;
  const auto options = options_of(arguments, own);
  auto error = options.error;
  if (error.empty()) error = train::run_folder_objection(options);
  return {error, train::servers_of(options)};
}

/// Every process of the job calls it. How the run ended: "finished", "interrupted" or "cannot start",
/// which rank 0 has then said why. A fault, and an exception of a model's, ends the job.
std::string run(const std::vector<std::string>& arguments, nb::object model) {
  const train::OwnModel own = own_model_of(std::move(model));
  start_mpi();
  const nb::gil_scoped_release released;
  auto options = options_of(arguments, own);
  train::Transport transport(nullptr, nullptr, options.timeout_seconds, options.retries,
                             train::servers_of(options));
  const Signals signals;
  train::catch_interrupts();
  try {
    const auto outcome = train::train_on(options, transport);
    (void)transport.close();  // nobody is lost: such runs do not go on here
    switch (outcome) {
      case train::Outcome::finished:
        return "finished";
      case train::Outcome::interrupted:
        return "interrupted";
      case train::Outcome::cannot_start:
        return "cannot start";
    }
  } catch (const std::exception&) {
    transport.abort_for_exception();
  }
  return "";
}

}  // namespace
}  // namespace atomo::python

NB_MODULE(_atomo_train, module) {
  using namespace atomo::python;
  module.doc() = "The trainer's loops; use the package atomo.train.";
  nanobind::set_leak_warnings(false);  // torch keeps hooks until the process ends
  bind_own_codecs(module);
  module.def("algorithms", [] { return train::list_of_algorithms(true); });
  module.def("check", &check, nanobind::arg("arguments"), nanobind::arg("optimiser"));
  module.def("end_mpi", &end_mpi);
  module.def("run", &run, nanobind::arg("arguments"), nanobind::arg("model"));
  module.def("world", &world);
}
