// SPDX-License-Identifier: Apache-2.0
/// \file
/// `draw_plot` starts the script and passes its exit status on; a script that a signal has ended
/// counts as 128 plus the number of the signal, as in a shell. Where Python does not start, the
/// error message names the packages to install.

#include "run/plot_runs.hpp"

#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "common/python_script.hpp"

namespace train {
namespace {

constexpr int kNotStarted = 1, kKilled = 128;  ///< and the signal's number

}  // namespace

int draw_plot(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), atomo::programs::program_folder() / "plot_runs.py");
  std::fflush(stdout);  // what was said comes before what the script says
  const auto [error, status] = atomo::programs::run_python(std::move(arguments));
  if (error != 0) {
    std::fprintf(stderr,
                 "atomo-train: a plot needs %s: %s; install python3 and python3-matplotlib\n",
                 atomo::programs::kPython, std::strerror(error));
    return kNotStarted;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kKilled + WTERMSIG(status);
}

}  // namespace train
