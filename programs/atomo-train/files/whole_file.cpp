// SPDX-License-Identifier: Apache-2.0
/// \file
/// A file is written under a temporary name beside its target, synced to disk and renamed, so that
/// no reader ever finds half of it. `check_writable` tries the first of these steps when a run
/// starts, so that a wrong folder or a missing permission is found before any training is done.

#include "files/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>

#include "common/write_all.hpp"

namespace train {
namespace {

[[noreturn]] void fail(const std::string& action, const std::string& path) {
  throw std::runtime_error("cannot " + action + " '" + path + "': " + std::strerror(errno));
}

/// Where a file is written before it gets its name.
std::string partial_of(const std::string& path) {
  return path + ".part" + std::to_string(getpid());
}

/// Whether `content` is on disk under that name; errno says why not.
bool write_to_disk(const std::string& path, std::string_view content) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return false;
  const auto bytes = std::as_bytes(std::span(content));
  const bool good = atomo::programs::write_all(file, bytes) && fsync(file) == 0;
  return close(file) == 0 && good;
}

}  // namespace

void check_writable(const std::string& path) {
  const std::string partial = partial_of(path);
  bool good = write_to_disk(partial, " ");
  if (struct stat is{}; good && stat(path.c_str(), &is) == 0 && S_ISDIR(is.st_mode)) {
    errno = EISDIR;
    good = false;
  }
  const int reason = errno;
  unlink(partial.c_str());
  errno = reason;
  if (!good) fail("write", path);
}

void write_whole_file(const std::string& path, std::string_view content) {
  const std::string partial = partial_of(path);
  const bool good = write_to_disk(partial, content);
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
