// SPDX-License-Identifier: Apache-2.0
/// \file
/// plot.py runs as a child process that gets the report on its standard input and returns the PNG
/// on its standard output; both are files in memory. When the script fails, the last line of its
/// standard error becomes the message of the tool.
#include "commands/plot.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "common/python_script.hpp"
#include "terminal/failure.hpp"

namespace atomo::cli {
namespace {

std::string script_path() {
  std::error_code error;
  const auto directory = programs::program_folder();
  for (const auto& candidate :
       {directory / "plot.py", directory.parent_path() / "share/atomo/plot.py"}) {
    if (std::filesystem::exists(candidate, error)) {
      return candidate.string();
    }
  }
  throw InputError(fmt::format("--plot needs plot.py in {} or {}; install the tool again",
                               directory.string(),
                               (directory.parent_path() / "share/atomo").string()));
}

/// A file in memory that a child inherits as one of its standard streams.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content = {})
      : fd_(::memfd_create("atomo-plot", MFD_CLOEXEC)) {
    if (fd_ < 0 ||
        ::write(fd_, content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
        ::lseek(fd_, 0, SEEK_SET) != 0) {
      throw InputError(fmt::format("--plot: {}", std::strerror(errno)));
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }

  [[nodiscard]] Buffer content() const {
    Buffer out(static_cast<std::size_t>(::lseek(fd_, 0, SEEK_END)));
    if (::pread(fd_, out.data.get(), out.bytes, 0) != static_cast<ssize_t>(out.bytes)) {
      throw InputError(fmt::format("--plot: {}", std::strerror(errno)));
    }
    return out;
  }

 private:
  int fd_;
};

std::string last_line(const Buffer& buffer) {
  std::string_view text(reinterpret_cast<const char*>(buffer.data.get()), buffer.bytes);
  while (text.ends_with('\n')) {
    text.remove_suffix(1);
  }
  const std::size_t start = text.rfind('\n');
  return std::string(start == std::string_view::npos ? text : text.substr(start + 1));
}

/// Runs the script with these arguments and standard input; returns its standard output.
Buffer run_script(const std::vector<std::string>& arguments, const std::string& input) {
  const MemoryFile in(input), out, err;
  std::vector<std::string> words{script_path()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const auto [error, status] =
      programs::run_python(std::move(words), {in.fd(), out.fd(), err.fd()});
  if (error != 0) {
    throw InputError(fmt::format("--plot needs {}: {}; install python3 and python3-matplotlib",
                                 programs::kPython, std::strerror(error)));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw InputError(fmt::format("--plot: {}", last_line(err.content())));
  }
  return out.content();
}

}  // namespace

void require_plotting() { (void)run_script({"--check"}, ""); }

void check_plot_path(const std::string& path) {
  if (path.empty()) {
    return;
  }
  if (!path.ends_with(".png")) {
    throw InputError(fmt::format("--plot {}: a path that ends in .png is needed", path));
  }
  require_plotting();
}

Buffer draw_plot(const std::string& json) { return run_script({}, json); }

}  // namespace atomo::cli
