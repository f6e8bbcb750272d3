// SPDX-License-Identifier: Apache-2.0
/// \file
/// The script is started with posix_spawn under the streams that the caller gives, and the call
/// returns when it has ended. The folder of the running program is read from /proc/self/exe.

#include "common/python_script.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

extern char** environ;

namespace atomo::programs {

std::filesystem::path program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

ScriptEnd run_python(std::vector<std::string> words, const std::array<int, 3>& streams) {
  words.insert(words.begin(), kPython);
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int i = 0; i < 3; ++i) {
    const int stream = streams[static_cast<std::size_t>(i)];
    if (stream != i) posix_spawn_file_actions_adddup2(&actions, stream, i);
  }
  ScriptEnd end;
  pid_t child = 0;
  end.error = posix_spawn(&child, kPython, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (end.error == 0) {
    while (waitpid(child, &end.status, 0) < 0 && errno == EINTR) {
    }
  }
  return end;
}

}  // namespace atomo::programs
