// SPDX-License-Identifier: Apache-2.0
/// \file
/// A run's folder is created, locked against other runs and filled line by line here. The first
/// event of a kind determines the columns of its CSV table. A run that is resumed in its folder
/// reads the old log, drops the events of the steps that it is going to repeat, and writes the
/// tables again from the rest.

#include "run/run_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "command_line/job.hpp"
#include "command_line/option_groups.hpp"
#include "files/stored_tensors.hpp"
#include "files/whole_file.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJobName = "job.toml";

bool goes_on_in_folder(const Options& o) {
  if (o.resume.empty()) return false;
  return fs::weakly_canonical(o.resume).parent_path() == fs::weakly_canonical(o.out);
}

/// "ms.compute" in an event; null where there is nothing of that name.
nlohmann::json value_at(const nlohmann::json& event, const std::string& column) {
  const nlohmann::json* at = &event;
  std::istringstream names(column);
  for (std::string name; std::getline(names, name, '.');) {
    if (!at->is_object() || !at->contains(name)) return nullptr;
    at = &at->at(name);
  }
  return *at;
}

void append_columns(std::vector<std::string>& columns, const nlohmann::json& event,
                    const std::string& prefix) {
  for (const auto& [name, value] : event.items()) {
    if (value.is_object()) {
      append_columns(columns, value, prefix + name + ".");
    } else if (name != "event") {
      columns.push_back(prefix + name);
    }
  }
}

std::string joined(const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) line += (i == 0 ? "" : ",") + cells[i];
  return line;
}

/// A quote in a cell is doubled.
std::string cell(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  return "\"" + CLI::detail::find_and_replace(value.get<std::string>(), "\"", "\"\"") + "\"";
}

/// Whether an event happened before a run that goes on at step `first`. One that was `finished` there
/// is tested again.
bool is_before(const nlohmann::json& event, std::uint32_t first, bool finished) {
  const auto kind = event.value("event", "");
  if (kind == "end") return false;
  if (kind == "evaluation" && finished) return event.value("steps", first) < first;
  if (kind == "step") return event.value("step", first) < first;
  return kind == "start" || event.value("steps", 0U) <= first;
}

void copy_input(const std::string& from, const std::string& to) {
  if (from.empty())
    fs::remove(to);
  else
    write_whole_file(to, read_whole_file(from));
}

/// Those that --keep-checkpoints left of a run before.
void remove_kept_checkpoints(const std::string& folder) {
  const std::string begin = fs::path(kCheckpointName).stem().string() + "-step";
  std::vector<fs::path> kept;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with(begin)) kept.push_back(entry.path());
  for (const auto& file : kept) fs::remove(file);
}

const std::string& made(const std::string& folder) {
  fs::create_directories(folder);
  return folder;
}

}  // namespace

std::string run_folder_objection(const Options& o) {
  if (o.out.empty()) return "";
  try {
    const bool used = fs::exists(o.out + "/" + kJobName) || fs::exists(o.out + "/" + kLogName);
    if (!used || o.overwrite || goes_on_in_folder(o)) return "";
  } catch (const fs::filesystem_error& e) {
    return "--out: " + std::string(e.what());
  }
  return "--out: '" + o.out + "' holds a run already; go on with --resume " + o.out +
         ", take another folder, or give it up with --overwrite";
}

void LineFile::open(const std::string& path, bool append) {
  path_ = path;
  file_.open(path, append ? std::ios::app : std::ios::trunc);
  if (!file_) throw std::runtime_error("cannot write '" + path + "': " + std::strerror(errno));
}

void LineFile::add(const std::string& line) {
  if (!(file_ << line << std::endl))
    throw std::runtime_error("cannot write '" + path_ + "': " + std::strerror(errno));
}

void Table::add(const nlohmann::json& event) {
  if (columns_.empty()) {
    append_columns(columns_, event, "");
    file_.add(joined(columns_));
  }
  std::vector<std::string> cells;
  for (const auto& column : columns_) cells.push_back(cell(value_at(event, column)));
  file_.add(joined(cells));
}

FolderLock::FolderLock(const std::string& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (folder_ >= 0 && flock(folder_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(folder_);
    throw std::runtime_error("--out: another run writes into '" + folder +
                             "' now; take another folder");
  }
}

FolderLock::~FolderLock() {
  if (folder_ >= 0) close(folder_);
}

RunFolder::RunFolder(const Options& o) : folder_(made(o.out)), lock_(folder_) {
  const bool goes_on = goes_on_in_folder(o);
  if (!goes_on) {
    for (const char* name : {kCheckpointName, kPlotName}) fs::remove(path(name));
    remove_kept_checkpoints(folder_);
  }
  copy_input(is_graph_file(o.graph) ? o.graph : "", path(kGraphCopy));
  copy_input(o.hosts, path(kHostsCopy));
  write_whole_file(path(kJobName), o.job);
  steps_.open(path("steps.csv"));
  evaluations_.open(path("evaluations.csv"));
  if (goes_on) keep_rows(o.resume, o.steps);
  log_.open(path(kLogName), goes_on);
}

void RunFolder::keep_rows(const std::string& checkpoint, std::uint32_t steps) {
  const auto first = static_cast<std::uint32_t>(
      std::stoul(read_safetensors(checkpoint).metadata.at("step").get<std::string>()));
  const bool finished = first >= steps;
  std::istringstream lines(read_whole_file(path(kLogName)));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    // What a run that was killed wrote last may be half a line.
    if (event.is_discarded() || !is_before(event, first, finished)) continue;
    kept += line + "\n";
    seconds_before_ = std::max(seconds_before_, event.value("seconds", 0.0));
    add_row(event);
  }
  write_whole_file(path(kLogName), kept);
}

void RunFolder::add_row(const nlohmann::json& event) {
  if (event.at("event") == "step") steps_.add(event);
  if (event.at("event") == "evaluation") evaluations_.add(event);
}

void RunFolder::add(const nlohmann::json& event) {
  log_.add(event.dump());
  add_row(event);
}

}  // namespace train
