// SPDX-License-Identifier: Apache-2.0
/// \file
/// Input files are read whole, and output goes to a temporary file that is linked into place when
/// it is complete. `prepare_process` installs the handler that removes an unfinished file when a
/// signal ends the process, and guards the standard streams.
#include "tensors/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/write_all.hpp"
#include "terminal/failure.hpp"

namespace atomo::cli {
namespace {

/// The hidden name to remove when a signal ends the process; a plain array, because a handler may
/// read nothing else.
std::array<char, PATH_MAX> g_unfinished{};
volatile std::sig_atomic_t g_has_unfinished = 0;

void remove_unfinished(int signal) {
  if (g_has_unfinished != 0) {
    ::unlink(g_unfinished.data());
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void remember_unfinished(const std::string& name) {
  g_has_unfinished = 0;
  if (!name.empty() && name.size() < g_unfinished.size()) {
    std::memcpy(g_unfinished.data(), name.c_str(), name.size() + 1);
    g_has_unfinished = 1;
  }
}

/// A file descriptor that closes itself.
struct Descriptor {
  explicit Descriptor(int value) : fd(value) {}
  ~Descriptor() {
    if (fd > STDERR_FILENO) {
      ::close(fd);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

/// Fills `out`; returns how many bytes came before the end of the file.
std::size_t read_up_to(int fd, Bytes out, const std::string& label) {
  std::size_t got = 0;
  while (got < out.size()) {
    const ssize_t n = ::read(fd, out.data() + got, out.size() - got);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      throw InputError(fmt::format("{}: cannot be read: {}", label, std::strerror(errno)));
    }
    if (n == 0) {
      break;
    }
    got += static_cast<std::size_t>(n);
  }
  return got;
}

Buffer read_stream(int fd, const std::string& label, std::size_t first_capacity) {
  Buffer buffer(first_capacity);
  std::size_t filled = 0;
  for (;;) {
    filled += read_up_to(fd, buffer.span().subspan(filled), label);
    if (filled < buffer.bytes) {
      buffer.bytes = filled;
      return buffer;
    }
    Buffer larger(buffer.bytes * 2);
    std::memcpy(larger.data.get(), buffer.data.get(), filled);
    buffer = larger;
  }
}

/// Makes the name of a file survive a power cut. Some file systems cannot sync a directory; the
/// file itself is safe.
void sync_directory(const std::string& directory) {
  const Descriptor d(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (d.fd >= 0) {
    (void)::fsync(d.fd);
  }
}

}  // namespace

std::string input_label(const std::string& path) { return path == "-" ? "standard input" : path; }

Buffer read_whole(const std::string& path) {
  const std::string label = input_label(path);
  const Descriptor d(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (d.fd < 0) {
    throw InputError(fmt::format("{}: cannot be opened: {}", label, std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(d.fd, &info) != 0) {
    throw InputError(fmt::format("{}: cannot be read: {}", label, std::strerror(errno)));
  }
  if (S_ISDIR(info.st_mode)) {
    throw InputError(fmt::format("{}: is a directory; a file is needed", label));
  }
  constexpr std::size_t kPipeStart = 1 << 16;
  const bool sized = S_ISREG(info.st_mode) && info.st_size > 0;
  // One byte more than the size shows the end of the file without growing the buffer.
  return read_stream(d.fd, label, sized ? static_cast<std::size_t>(info.st_size) + 1 : kPipeStart);
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (path_ == "-") {
    kind_ = Kind::standard_output;
    if (::isatty(STDOUT_FILENO) == 1) {
      throw InputError("standard output is a terminal; redirect it to a file or a pipe");
    }
    return;
  }
  struct stat info {};
  const bool exists = ::stat(path_.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) {
    throw InputError(fmt::format("{}: is a directory; name a file to write", path_));
  }
  if (exists && !S_ISREG(info.st_mode)) {
    kind_ = Kind::special;
    if (::access(path_.c_str(), W_OK) != 0) {
      fail(errno);
    }
    return;
  }
  std::error_code ignored;
  const std::filesystem::path resolved = std::filesystem::canonical(path_, ignored);
  target_ = exists && !resolved.empty() ? resolved.string() : path_;
  directory_ = std::filesystem::path(target_).parent_path().string();
  directory_ = directory_.empty() ? "." : directory_;
  if (exists && ::access(target_.c_str(), W_OK) != 0) {
    fail(errno);
  }
  open_temporary();
  if (exists) {
    (void)::fchmod(fd_, info.st_mode & 07777);
  }
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    remember_unfinished({});
  }
}

void OutputFile::fail(int error) const {
  throw InputError(fmt::format("{}: cannot be written: {}",
                               path_ == "-" ? "standard output" : path_, std::strerror(error)));
}

void OutputFile::open_temporary() {
  if (::access("/proc/self/fd", X_OK) == 0) {
    fd_ = ::open(directory_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      return;
    }
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
      fail(errno);
    }
  }
  temporary_ = fmt::format("{}/.atomo-{}.unfinished", directory_, ::getpid());
  remember_unfinished(temporary_);
  fd_ = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    const int error = errno;
    temporary_.clear();
    remember_unfinished({});
    fail(error);
  }
}

void OutputFile::write_all(int fd, std::span<const ConstBytes> parts) const {
  for (const ConstBytes part : parts) {
    if (!programs::write_all(fd, part)) {
      fail(errno);
    }
  }
}

void OutputFile::commit(std::span<const ConstBytes> parts) {
  switch (kind_) {
    case Kind::standard_output:
      return commit_standard_output(parts);
    case Kind::special:
      return commit_special(parts);
    case Kind::regular:
      return commit_regular(parts);
  }
}

void OutputFile::commit_standard_output(std::span<const ConstBytes> parts) {
  struct stat info {};
  const bool regular = ::fstat(STDOUT_FILENO, &info) == 0 && S_ISREG(info.st_mode);
  const off_t start = regular ? ::lseek(STDOUT_FILENO, 0, SEEK_CUR) : 0;
  try {
    write_all(STDOUT_FILENO, parts);
  } catch (const InputError&) {
    // A redirection to a file on a full disk: take back the half that was written.
    if (regular && ::ftruncate(STDOUT_FILENO, info.st_size) == 0) {
      (void)::lseek(STDOUT_FILENO, start, SEEK_SET);
    }
    throw;
  }
}

void OutputFile::commit_special(std::span<const ConstBytes> parts) {
  const Descriptor d(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  if (d.fd < 0) {
    fail(errno);
  }
  write_all(d.fd, parts);
}

void OutputFile::commit_regular(std::span<const ConstBytes> parts) {
  write_all(fd_, parts);
  if (::fsync(fd_) != 0 && errno != EINVAL) {
    fail(errno);
  }
  link_into_place();
  sync_directory(directory_);
}

void OutputFile::link_into_place() {
  if (temporary_.empty()) {
    const std::string nameless = fmt::format("/proc/self/fd/{}", fd_);
    if (::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, target_.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      return;
    }
    if (errno != EEXIST) {
      fail(errno);
    }
    // Linking never replaces: take a hidden name first, then rename over the old file.
    const std::string hidden = fmt::format("{}/.atomo-{}.unfinished", directory_, ::getpid());
    remember_unfinished(hidden);
    if (::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, hidden.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      const int error = errno;
      remember_unfinished({});
      fail(error);
    }
    temporary_ = hidden;
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail(errno);
  }
  temporary_.clear();
  remember_unfinished({});
}

void print(std::string_view text) {
  if (!programs::write_all(STDOUT_FILENO, std::as_bytes(std::span(text)))) {
    throw InputError(fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
  }
}

void prepare_process(char** argv) {
  // OpenBLAS's own threads take memory as soon as they are there; under a limit they would ask for
  // ever for what they cannot get. The tool has threads of its own, so it starts again without.
  rlimit limit{};
  if (::getenv("OPENBLAS_NUM_THREADS") == nullptr && ::getrlimit(RLIMIT_AS, &limit) == 0 &&
      limit.rlim_cur != RLIM_INFINITY && ::setenv("OPENBLAS_NUM_THREADS", "1", 0) == 0) {
    ::execv("/proc/self/exe", argv);
  }
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) == -1) {
      // The lowest free descriptor is this one. Reading gives nothing from it, writing fails.
      (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal, remove_unfinished) == SIG_IGN) {
      std::signal(signal, SIG_IGN);
    }
  }
}

}  // namespace atomo::cli
