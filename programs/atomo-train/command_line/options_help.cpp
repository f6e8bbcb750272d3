// SPDX-License-Identifier: Apache-2.0
/// \file
/// The formatter lays out --help: each option has its name, a placeholder for its value, its
/// description, its choices and its default, wrapped at 100 columns. The checks of numbers, which
/// several groups of options use, are defined here as well, and so is who gave an option.

#include <charconv>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <system_error>

#include "command_line/option_groups.hpp"

namespace train {
namespace {

constexpr std::size_t kColumns = 100, kNameColumns = 29;

/// What stands for the value behind a name.
std::string placeholder(const CLI::Option& option) {
  if (!option.get_option_text().empty()) return " " + option.get_option_text();
  if (is_flag(option)) return "";
  const std::string type = option.get_type_name();
  if (type.starts_with("TEXT")) return " NAME";
  return type.starts_with("FLOAT") ? " X" : " N";
}

/// "sgd, adamw" from "TEXT:{sgd,adamw}"; empty where any value is good.
std::string choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto begin = type.find('{'), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return CLI::detail::find_and_replace(type.substr(begin + 1, end - begin - 1), ",", ", ");
}

std::string describe(const CLI::Option& option) {
  std::string text = option.get_description();
  const auto among = choices(option);
  // The algorithms have a list of their own.
  if (!among.empty() && option.get_name() != "--algorithm") text += ": " + among;
  if (!option.get_default_str().empty()) text += " [" + option.get_default_str() + "]";
  return text;
}

CLI::Validator number_check(const char* wanted, bool (*good)(double)) {
  return CLI::Validator(
      [=](const std::string& text) {
        double number = 0;
        if (CLI::detail::lexical_cast(text, number) && std::isfinite(number) && good(number))
          return std::string();
        return "'" + text + "' is not " + wanted;
      },
      "");
}

/// Reading one wraps a number below 0 round, and takes the largest for one above it.
CLI::Validator without_sign() {
  return CLI::Validator(
      [](const std::string& text) {
        std::uint64_t number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (text.find('-') == std::string::npos && error != std::errc::result_out_of_range)
          return std::string();
        return "'" + text + "' is not a whole number from 0 to 18446744073709551615";
      },
      "");
}

}  // namespace

bool is_flag(const CLI::Option& option) { return option.get_expected_min() == 0; }

bool is_given(const CLI::App& app, const char* name) {
  return app.get_option(name)->count() != 0 && app.get_option("--job")->count() == 0;
}

bool asks_for(const CLI::App& app, const char* name) {
  const auto& option = *app.get_option(name);
  if (option.count() == 0 || is_given(app, name)) return option.count() != 0;
  const std::string value = option.results().front(), usual = option.get_default_str();
  double asked = 0, by_default = 0;
  if (CLI::detail::lexical_cast(value, asked) && CLI::detail::lexical_cast(usual, by_default))
    return asked != by_default;
  return value != usual;
}

void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("FLOAT"))
      option->check(number_check("a finite number", [](double) { return true; }));
    if (type.starts_with("UINT")) option->check(without_sign());
  }
}

CLI::Validator above_zero() {
  return number_check("a number above 0", [](double x) { return x > 0; });
}

CLI::Validator not_below_zero() {
  return number_check("0 or a number above it", [](double x) { return x >= 0; });
}

CLI::Validator factor() {
  return number_check("a number above 0 and below 1", [](double x) { return x > 0 && x < 1; });
}

CLI::Validator decay() {
  return number_check("a number from 0 to below 1", [](double x) { return x >= 0 && x < 1; });
}

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  return CLI::Formatter::make_group(group, is_positional, options)
      .substr(1);  // one blank line less
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  return CLI::Formatter::make_usage(app, name) + "\n";
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool) const {
  std::string text = "  " + option->get_name(false, true) + placeholder(*option);
  text.resize(std::max(text.size() + 1, kNameColumns), ' ');
  std::size_t column = text.size();
  std::istringstream words(describe(*option));
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (column + 1 + word.size() > kColumns) {
      text += "\n" + std::string(kNameColumns, ' ');
      column = kNameColumns;
      first = true;
    }
    text += (first ? "" : " ") + word;
    column += word.size() + (first ? 0 : 1);
  }
  return text + "\n";
}

}  // namespace train
