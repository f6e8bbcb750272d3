// SPDX-License-Identifier: Apache-2.0
/// \file
/// The files of a subject are in a folder of its own, which goes when the subject does. What a command
/// says on standard error is kept for the message of its failure.
#include "commands/command_subject.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "tensors/tensor_io.hpp"
#include "terminal/failure.hpp"

extern char** environ;

namespace atomo::cli {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

std::string filled(std::string command, const Values& values) {
  for (const auto& [name, value] : values) {
    for (std::size_t at = command.find(name); at != std::string::npos;
         at = command.find(name, at + value.size())) {
      command.replace(at, name.size(), value);
    }
  }
  return command;
}

/// One number of all parts of a key.
std::uint64_t number_of(const Key& key) {
  std::uint64_t number = key.seed;
  for (const std::uint64_t part : {std::uint64_t{key.step}, std::uint64_t{key.worker},
                                   std::uint64_t{key.tensor}, std::uint64_t{key.channel}}) {
    number = (number ^ part) * 0x9E3779B97F4A7C15u;
    number ^= number >> 29;
  }
  return number >> 1;  // every language has signed numbers of 64 bits
}

class Commands {
 public:
  /// `steps`: the key is its step.
  Commands(std::string encode, std::string decode, bool steps)
      : encode_(std::move(encode)), decode_(std::move(decode)), steps_(steps) {
    const char* parent = std::getenv("TMPDIR");
    folder_ = std::string(parent != nullptr ? parent : "/tmp") + "/atomo-verify-XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) {
      throw InputError(fmt::format("{}: {}", folder_, std::strerror(errno)));
    }
  }
  ~Commands() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  std::vector<std::byte> encode(std::span<const float> x, const Shape& shape, const Key& key) {
    Buffer data(x.size_bytes());
    if (!x.empty()) {
      std::memcpy(data.data.get(), x.data(), x.size_bytes());
    }
    write("x.npy", write_tensors({{"x", DType::f32, shape, data.data}}, Format::npy).parts);
    run(filled(encode_, {{"{input}", path("x.npy")},
                         {"{output}", path("message")},
                         {"{key}", std::to_string(steps_ ? key.step : number_of(key))},
                         {"{seed}", std::to_string(key.seed)},
                         {"{step}", std::to_string(key.step)},
                         {"{worker}", std::to_string(key.worker)},
                         {"{tensor}", std::to_string(key.tensor)}}),
        "message");
    const Buffer message = read_whole(path("message"));
    return {message.view().begin(), message.view().end()};
  }

  void decode(ConstBytes message, std::span<float> y, const Shape& shape) {
    write("message", {message});
    run(filled(decode_, {{"{input}", path("message")}, {"{output}", path("y.npy")}}), "y.npy");
    const Tensor decoded = to_f32(read_tensors(path("y.npy")).front());
    if (decoded.shape.elements() != shape.elements()) {
      throw InputError(fmt::format("decoded to shape {} in place of {}", decoded.shape.to_string(),
                                   shape.to_string()));
    }
    if (!y.empty()) {
      std::memcpy(y.data(), decoded.data.get(), y.size_bytes());
    }
  }

 private:
  [[nodiscard]] std::string path(const char* name) const { return folder_ + "/" + name; }

  /// Unlike an OutputFile it does not wait for a disk.
  void write(const char* name, const std::vector<ConstBytes>& parts) const {
    std::ofstream file(path(name), std::ios::binary);
    for (const ConstBytes part : parts) {
      file.write(reinterpret_cast<const char*>(part.data()),
                 static_cast<std::streamsize>(part.size()));
    }
    if (!file.flush()) {
      throw InputError(fmt::format("{} cannot be written", path(name)));
    }
  }

  /// `made`: what the command has to write.
  void run(const std::string& command, const char* made) {
    std::error_code none;
    std::filesystem::remove(path(made), none);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, path("errors").c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    std::string words[] = {"sh", "-c", command};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    pid_t child = 0;
    const int error = posix_spawn(&child, "/bin/sh", &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      throw InputError(fmt::format("/bin/sh: {}", std::strerror(error)));
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      throw InputError(fmt::format("'{}' failed: {}", command, last_error()));
    }
    if (!std::filesystem::exists(path(made), none)) {
      throw InputError(fmt::format("'{}' wrote no output", command));
    }
  }

  [[nodiscard]] std::string last_error() const {
    std::ifstream file(path("errors"));
    std::string line, last = "it said nothing";
    while (std::getline(file, line)) {
      last = line.empty() ? last : line;
    }
    return last;
  }

  std::string encode_, decode_, folder_;
  bool steps_;
};

void require_places(const std::string& option, const std::string& command) {
  for (const char* place : {"{input}", "{output}"}) {
    if (command.find(place) == std::string::npos) {
      throw InputError(fmt::format("{} '{}': {} is missing", option, command, place));
    }
  }
}

}  // namespace

verify::Subject command_subject(const std::string& encode, const std::string& decode,
                                std::uint32_t outcomes) {
  require_places("--encode", encode);
  require_places("--decode", decode);
  const auto commands = std::make_shared<Commands>(encode, decode, outcomes != 0);
  return {encode,
          [commands](std::span<const float> x, const Shape& shape, const Key& key) {
            return commands->encode(x, shape, key);
          },
          [commands](ConstBytes message, std::span<float> y, const Shape& shape) {
            commands->decode(message, y, shape);
          },
          outcomes};
}

}  // namespace atomo::cli
