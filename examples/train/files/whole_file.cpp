// SPDX-License-Identifier: Apache-2.0
#include "files/whole_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace train {
namespace {

[[noreturn]] void fail(const std::string& action, const std::string& path) {
  throw std::runtime_error("cannot " + action + " '" + path + "': " + std::strerror(errno));
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

void write_whole_file(const std::string& path, std::string_view content) {
  const std::string partial = path + ".part" + std::to_string(getpid());
  const int file = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail("write", path);
  bool good = write_all(file, content) && fsync(file) == 0;
  good = close(file) == 0 && good;
  if (!good || std::rename(partial.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    unlink(partial.c_str());
    errno = reason;
    fail("write", path);
  }
}

std::string read_whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) fail("read", path);
  return text.str();
}

}  // namespace train
