// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whole files in, whole files out. `-` is standard input or output.
///
/// ```cpp
/// atomo::cli::OutputFile out("g.atomo");   // fails now when it could not be written later
/// out.commit({payload});                   // all of it, or nothing
/// ```

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/types.hpp"

namespace atomo::cli {

/// Bytes that several tensors may share a hold of. Not zeroed; aligned for any element type.
struct Buffer {
  Buffer() = default;
  explicit Buffer(std::size_t size) : data(new std::byte[size]), bytes(size) {}

  [[nodiscard]] ConstBytes view() const noexcept { return {data.get(), bytes}; }
  [[nodiscard]] Bytes span() noexcept { return {data.get(), bytes}; }

  std::shared_ptr<std::byte[]> data;
  std::size_t bytes = 0;
};

/// How messages call a path: the path, or "standard input" for `-`.
[[nodiscard]] std::string input_label(const std::string& path);

/// \throws InputError when the path is missing, a directory or cannot be read.
[[nodiscard]] Buffer read_whole(const std::string& path);

/// A file that appears at its path complete, in one step, or not at all: bytes go to a nameless
/// file in the same directory, are synced to disk and then linked into place. Where the file system
/// has no nameless files a hidden name is used and removed on any failure, SIGINT, SIGTERM and
/// SIGHUP included. Pipes and devices are written only once all bytes are there.
class OutputFile {
 public:
  /// \throws InputError when nothing could be written there.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Writes the parts one after the other. Call once. \throws InputError
  void commit(std::span<const ConstBytes> parts);
  [[nodiscard]] bool is_standard_output() const noexcept { return kind_ == Kind::standard_output; }

 private:
  enum class Kind { standard_output, special, regular };

  [[noreturn]] void fail(int error) const;
  void open_temporary();
  void write_all(int fd, std::span<const ConstBytes> parts) const;
  void commit_standard_output(std::span<const ConstBytes> parts);
  void commit_special(std::span<const ConstBytes> parts);
  void commit_regular(std::span<const ConstBytes> parts);
  void link_into_place();

  std::string path_;       ///< as given, for messages
  std::string target_;     ///< symbolic links resolved
  std::string directory_;  ///< of the target
  std::string temporary_;  ///< a name that exists for now; empty while the file is nameless
  Kind kind_ = Kind::regular;
  int fd_ = -1;
};

/// Text for standard output. \throws InputError when it cannot be written (a full disk, a closed
/// pipe).
void print(std::string_view text);

/// Interrupts remove an unfinished output and end the process as they would have; a closed pipe or
/// a file-size limit is an error of the write rather than a signal; a closed standard stream is
/// never handed to a file opened later.
void prepare_process(char** argv);

}  // namespace atomo::cli
