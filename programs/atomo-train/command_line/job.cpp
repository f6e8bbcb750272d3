// SPDX-License-Identifier: Apache-2.0
/// \file
/// The values of a job file pass through the options and validators of the command line, and an
/// error names the file and the value. An option that the command line gives keeps its value, and
/// any of --budget, --codec and --policy there replaces whichever of them the file has, as do --steps
/// and --epochs. `write_job` goes the other way: it writes the options of a run as a job file that
/// repeats it.

#include "command_line/job.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "command_line/option_groups.hpp"

namespace train {
namespace {

const std::set<std::string> kCodecNames = {"budget", "codec", "policy"};

const std::set<std::string> kLengthNames = {"steps", "epochs"};

bool any_given(const CLI::App& app, const std::set<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const auto& name) { return app.get_option("--" + name)->count() != 0; });
}
bool codec_given(const CLI::App& app) { return any_given(app, kCodecNames); }

enum class Kind { flag, number, text };

Kind kind_of(const CLI::Option& option) {
  if (is_flag(option)) return Kind::flag;
  return option.get_type_name().starts_with("TEXT") ? Kind::text : Kind::number;
}

bool takes_fractions(const CLI::Option& option) {
  return option.get_type_name().starts_with("FLOAT");
}

/// What belongs to one run alone, not to one that repeats it.
bool is_repeated(const CLI::Option& option) {
  static const std::set<std::string> of_one_run = {
      "--save",     "--stop-at",  "--resume",         "--out", "--overwrite", "--json", "--log",
      "--progress", "--timeline", "--dump-gradients", "--at",  "--every"};
  return option.get_configurable() && !of_one_run.contains(option.get_name());
}

/// Whether a model of the program's own says it in place of the option.
bool is_of_own_model(const std::string& name) {
  return name == "--optimizer" || std::ranges::find(kModelOptions, name) != std::end(kModelOptions);
}

/// Whether this value of an option is the path of something that a run reads.
bool is_path(const std::string& name, const std::string& value) {
  if (name == "policy") return !is_policy_text(value);
  if (name == "graph") return is_graph_file(value);
  return name == "data" || name == "hosts" || name == "plugin" || name == "init";
}

/// What the command line means by `text`, which may be "yes", ".05" or "0x10" too.
nlohmann::json json_of(const CLI::Option& option, const std::string& text) {
  const auto as = [&](auto value) {
    CLI::detail::lexical_cast(text, value);
    return nlohmann::json(value);
  };
  switch (kind_of(option)) {
    case Kind::flag:
      return !text.empty() && CLI::detail::to_flag_value(text) > 0;
    case Kind::number:
      return takes_fractions(option) ? as(0.0) : as(std::uint64_t{0});
    case Kind::text:
      break;
  }
  return text;
}

/// In JSON, which has no strings of several lines, a text may be an array of them.
std::string text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string lines;
  for (const auto& line : value) lines += line.get<std::string>() + "\n";
  return lines;
}

bool is_text(const nlohmann::json& value) {
  if (!value.is_array()) return value.is_string();
  return std::all_of(value.begin(), value.end(), [](const auto& line) { return line.is_string(); });
}

/// As the command line would have it. \throws CLI::ValidationError for another type.
std::string argument(const CLI::Option& option, const std::string& file, const std::string& name,
                     const nlohmann::json& value) {
  const char* wanted = nullptr;
  switch (kind_of(option)) {
    case Kind::flag:
      if (value.is_boolean()) return value.dump();
      wanted = "true or false";
      break;
    case Kind::number:
      if (value.is_number_integer() || (value.is_number() && takes_fractions(option)))
        return value.dump();
      wanted = takes_fractions(option) ? "a number" : "a whole number";
      break;
    case Kind::text:
      if (is_text(value)) return text_of(value);
      wanted = "a string";
      break;
  }
  throw CLI::ValidationError(file, "'" + name + "' is " + value.dump() + ", it takes " + wanted);
}

JobValues read_json(std::istream& input) {
  const auto job = nlohmann::ordered_json::parse(input);
  if (!job.is_object()) throw std::runtime_error("a job is an object of options");
  JobValues values;
  for (const auto& [name, value] : job.items()) values.emplace_back(name, value);
  return values;
}

JobValues read_values(const std::string& path, std::istream& input) {
  try {
    const auto extension = std::filesystem::path(path).extension();
    if (extension == ".toml") return read_toml(input);
    if (extension == ".json") return read_json(input);
    throw std::runtime_error("its name ends neither in .toml nor in .json");
  } catch (const std::exception& e) {
    throw CLI::ValidationError("the job '" + path + "'", e.what());
  }
}

}  // namespace

std::vector<CLI::ConfigItem> JobReader::from_config(std::istream& input) const {
  const auto path = app_.get_option("--job")->as<std::string>();
  const std::string file = "the job '" + path + "'";
  const bool on_command_line = codec_given(app_), has_length = any_given(app_, kLengthNames);
  const auto folder = std::filesystem::absolute(path).parent_path();
  for (auto [name, value] : read_values(path, input)) {
    if (on_command_line && kCodecNames.contains(name)) continue;
    if (has_length && kLengthNames.contains(name)) continue;
    if (value.is_string() && is_path(name, value))
      value = (folder / value.get<std::string>()).lexically_normal().string();
    set(file, name, value);
  }
  return {};
}

void JobReader::set(const std::string& file, const std::string& name,
                    const nlohmann::json& value) const {
  auto* option = app_.get_option_no_throw("--" + name);
  if (option == nullptr || !option->get_configurable()) {
    throw CLI::ValidationError(
        file, "'" + name + "' is " +
                  (option == nullptr ? "no option" : "for the command line only") + "; see --help");
  }
  const auto text = argument(*option, file, name, value);
  if (option->count() != 0) return;  // the command line's
  try {
    option->add_result(text);
    option->run_callback();
  } catch (const CLI::Error& e) {
    throw CLI::ValidationError(file, e.what());
  }
}

std::string JobReader::to_config(const CLI::App*, bool, bool, std::string) const { return ""; }

std::string write_job(const CLI::App& app, const Options& o) {
  const std::map<std::string, std::string> resolved = {
      {"--data", std::filesystem::absolute(o.data).lexically_normal()},
      {"--init",
       o.init.empty() ? "" : std::filesystem::absolute(o.init).lexically_normal().string()},
      {"--graph", is_graph_file(o.graph) ? kGraphCopy : o.graph},
      {"--hosts", o.hosts.empty() ? "" : kHostsCopy}};
  std::string job;
  for (const auto* option : app.get_options()) {
    const bool hidden = option->get_group().empty();
    if (!is_repeated(*option) || (hidden && option->count() == 0)) continue;
    if (!goes_with(*option, o.algorithm)) continue;
    const std::string name = "--" + option->get_lnames().front();  // get_name() hides the hidden
    if (o.own != nullptr && is_of_own_model(name)) continue;
    auto value = option->count() != 0 ? option->results().front() : option->get_default_str();
    if (const auto found = resolved.find(name); found != resolved.end()) value = found->second;
    if (name == "--policy" && !value.empty()) value = o.policy;
    if (name == "--codec" && !codec_given(app)) value = o.codec_label;  // the default
    if (name == "--steps" && o.epochs != 0) continue;
    if (value.empty() && !is_flag(*option)) continue;
    job += name.substr(2) + " = " + toml_of(json_of(*option, value)) + "\n";
  }
  return job;
}

}  // namespace train
