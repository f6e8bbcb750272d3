// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Python scripts that a program runs: its plots, which matplotlib draws.

#include <array>
#include <filesystem>
#include <string>
#include <vector>

namespace atomo::programs {

/// The distribution's, to which python3-matplotlib belongs.
inline constexpr const char* kPython = "/usr/bin/python3";

/// The folder of the running program, where its scripts are; empty when the system does not say.
[[nodiscard]] std::filesystem::path program_folder();

struct ScriptEnd {
  int error = 0;   ///< errno's value when Python could not be started, otherwise 0
  int status = 0;  ///< as waitpid gives it
};
/// Runs a script, `words[0]`, with the other words as its arguments, and waits for its end.
/// `streams` are what it has as standard input, output and error.
[[nodiscard]] ScriptEnd run_python(std::vector<std::string> words,
                                   const std::array<int, 3>& streams = {0, 1, 2});

}  // namespace atomo::programs
