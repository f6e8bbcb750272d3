// SPDX-License-Identifier: Apache-2.0
#include "run/plot_runs.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace train {
namespace {

/// The distribution's, to which python3-matplotlib belongs.
constexpr const char* kPython = "/usr/bin/python3";
constexpr int kNotStarted = 1, kKilled = 128;  ///< and the signal's number

}  // namespace

int draw_plot(std::vector<std::string> arguments) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  arguments.insert(arguments.begin(), {kPython, program.parent_path() / "plot_runs.py"});
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  std::fflush(stdout);  // what was said comes before what the script says
  pid_t child = 0;
  const int failure = posix_spawn(&child, kPython, nullptr, nullptr, argv.data(), environ);
  if (failure != 0) {
    std::fprintf(stderr,
                 "atomo-train: a plot needs %s: %s; install python3 and python3-matplotlib\n",
                 kPython, std::strerror(failure));
    return kNotStarted;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kKilled + WTERMSIG(status);
}

}  // namespace train
