// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Job files: the options of a run, by their names, in TOML or JSON.
///
///     algorithm = "ps"
///     steps = 400
///     policy = """
///     *.bias = identity:dtype=f32
///     * = atomo:bits=1
///     """
///
/// What the command line gives counts before what the file says. The paths of what a run reads are
/// relative to the file.

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "command_line/options.hpp"

namespace train {

/// Names and values in the order of a file.
using JobValues = std::vector<std::pair<std::string, nlohmann::json>>;

/// TOML as far as a job needs it: comments and lines `name = value`, where a value is a number,
/// true, false or a string, "basic" or 'literal', with three quotes over several lines. \throws
/// std::runtime_error naming the line and what is wrong with it.
[[nodiscard]] JobValues read_toml(std::istream& input);
/// `value` as it stands behind the equals sign of TOML.
[[nodiscard]] std::string toml_of(const nlohmann::json& value);

/// Sets the options of `app` from the file of --job.
class JobReader : public CLI::Config {
 public:
  explicit JobReader(CLI::App& app) : app_(app) {}

  /// Sets the options by itself, for errors that name the file, and returns nothing to set.
  /// \throws CLI::ValidationError
  [[nodiscard]] std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
  /// Unused: see write_job.
  [[nodiscard]] std::string to_config(const CLI::App* app, bool defaults, bool descriptions,
                                      std::string prefix) const override;

 private:
  void set(const std::string& file, const std::string& name, const nlohmann::json& value) const;

  CLI::App& app_;
};

/// The job that repeats a run: every option that goes with its algorithm. It has the policy's
/// lines, and reads a topology and hosts from copies beside it, under these names.
inline constexpr const char *kGraphCopy = "graph.json", *kHostsCopy = "hosts.json";
[[nodiscard]] std::string write_job(const CLI::App& app, const Options& options);

}  // namespace train
