// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The options in the groups in which --help shows them. A group's name is that of its options.

#include <CLI/CLI.hpp>
#include <string>

#include "command_line/options.hpp"

namespace train {

inline constexpr const char* kServerGroup = "Servers";
inline constexpr const char* kGraphGroup = "Graph";
inline constexpr const char* kCodecGroup =
    "Codec (one of these; default: --codec identity:dtype=f32)";

/// What a model and data of the program's own take the place of.
inline constexpr const char* kModelOptions[] = {
    "--model", "--norm", "--data", "--pixels", "--image-size", "--augment", "--label-smoothing"};

/// How gradients travel, as the options say it; at most one is not empty.
struct CodecChoice {
  std::string budget, codec, policy;
};

// options_algorithm.cpp
void add_algorithm_options(CLI::App& app, Options& o);
void add_server_options(CLI::App& app, Options& o);
void add_local_step_options(CLI::App& app, Options& o);
void add_low_rank_options(CLI::App& app, Options& o);
void add_graph_options(CLI::App& app, Options& o);
/// Whether `option` goes with the algorithm `name`.
[[nodiscard]] bool goes_with(const CLI::Option& option, const std::string& name);
/// \throws CLI::ValidationError for an option that was given and does not go with the algorithm.
void check_algorithm_options(const CLI::App& app, const Options& o);

/// Whether a value of --graph is a file's path, not a generator's name.
[[nodiscard]] bool is_graph_file(const std::string& graph);

// options_training.cpp
/// Whether a value of --policy is the policy itself, not a file's path.
[[nodiscard]] bool is_policy_text(const std::string& policy);
void add_codec_options(CLI::App& app, CodecChoice& choice, std::string& plugin);
void add_data_options(CLI::App& app, Options& o);
void add_model_options(CLI::App& app, Options& o);

// options_effect.cpp
/// \throws CLI::ValidationError for an option that would change nothing beside the others.
void check_effects(const CLI::App& app, const Options& o);

// options_output.cpp
void add_checkpoint_options(CLI::App& app, Options& o);
void add_output_options(CLI::App& app, Options& o);
void add_fault_options(CLI::App& app, Options& o);

[[nodiscard]] bool is_flag(const CLI::Option& option);
/// Whether the command line gives an option, a job file set aside: one names all options.
[[nodiscard]] bool is_given(const CLI::App& app, const char* name);
/// Whether somebody wants a value of an option that is no flag: the command line, or, as a job file names
/// all options, one with another value than it has by default.
[[nodiscard]] bool asks_for(const CLI::App& app, const char* name);
/// Numbers with a point have to be finite from here on, and those without a sign not below 0. After the
/// options.
void check_numbers(CLI::App& app);
[[nodiscard]] CLI::Validator above_zero();
[[nodiscard]] CLI::Validator not_below_zero();
[[nodiscard]] CLI::Validator decay();   ///< from 0 to below 1
[[nodiscard]] CLI::Validator factor();  ///< above 0 and below 1

/// Lines of at most 100 columns, one an option where it fits: name, value, what, [default].
class HelpFormatter : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_group(std::string group, bool is_positional,
                                       std::vector<const CLI::Option*> options) const override;
  [[nodiscard]] std::string make_usage(const CLI::App* app, std::string name) const override;
  [[nodiscard]] std::string make_option(const CLI::Option* option,
                                        bool is_positional) const override;
};

}  // namespace train
