// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The folder of --out: job.toml, which repeats the run, the log as log.jsonl, its steps and tests
/// as steps.csv and evaluations.csv, the checkpoint, and at the end plot.png. Only rank 0 writes.

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_line/options.hpp"

namespace train {

inline constexpr const char* kLogName = "log.jsonl";
inline constexpr const char* kCheckpointName = "checkpoint.safetensors";
inline constexpr const char* kPlotName = "plot.png";
inline constexpr const char* kSampleScoresName = "sample-scores.csv";

/// Empty when the run may write into its folder: there is no other run in it, or the run goes on
/// from its checkpoint, or it may be overwritten.
[[nodiscard]] std::string run_folder_objection(const Options& options);

/// Lines of text that are on disk when `add` returns.
class LineFile {
 public:
  /// Empties the file, or appends to it. \throws std::runtime_error
  void open(const std::string& path, bool append);
  /// \throws std::runtime_error naming the file and the reason.
  void add(const std::string& line);
  [[nodiscard]] bool is_open() const { return file_.is_open(); }

 private:
  std::string path_;
  std::ofstream file_;
};

/// Events of one kind as comma-separated values. The first says which columns there are; objects in
/// it become columns of their own, "ms.compute".
class Table {
 public:
  void open(const std::string& path) { file_.open(path, false); }
  void add(const nlohmann::json& event);

 private:
  LineFile file_;
  std::vector<std::string> columns_;
};

/// Holds a folder for this process until it ends, however it ends.
class FolderLock {
 public:
  /// A file system that has no locks holds nothing.
  /// \throws std::runtime_error when another process holds it.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int folder_;
};

class RunFolder {
 public:
  /// Makes the folder and what does not change in it. A run that goes on drops the rows of the
  /// steps that it repeats. \throws std::runtime_error naming what cannot be written.
  explicit RunFolder(const Options& options);
  /// A line of the log, and a row of a table. \throws std::runtime_error
  void add(const nlohmann::json& event);
  /// That the rows which were kept took.
  [[nodiscard]] double seconds_before() const noexcept { return seconds_before_; }

 private:
  void keep_rows(const std::string& checkpoint, std::uint32_t steps);
  void add_row(const nlohmann::json& event);
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  FolderLock lock_;
  LineFile log_;
  Table steps_, evaluations_;
  double seconds_before_ = 0;
};

}  // namespace train
