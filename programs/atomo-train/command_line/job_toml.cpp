// SPDX-License-Identifier: Apache-2.0
/// \file
/// `TomlReader` reads the part of TOML that job files use, line by line, and refuses sections,
/// repeated names and other kinds of values with the number of the line. Numbers, booleans and
/// escapes in strings are handed to the JSON library, so they follow JSON's syntax.

#include <istream>
#include <set>
#include <stdexcept>

#include "command_line/job.hpp"

namespace train {
namespace {

constexpr const char* kSpace = " \t\r";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// Where the string that begins at 0 ends: behind its closing quotes.
std::size_t end_of_string(std::string_view text, std::string_view quotes) {
  for (std::size_t i = quotes.size(); i < text.size(); ++i) {
    if (text.substr(i).starts_with(quotes)) return i + quotes.size();
    if (text[i] == '\\' && quotes[0] == '"') ++i;
  }
  return std::string_view::npos;
}

/// A basic string has JSON's escapes; over several lines it may also have quotes and line breaks.
nlohmann::json unescaped(std::string_view text) {
  std::string json = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      json += text[i++];
      json += text[i];
    } else if (text[i] == '\n') {
      json += "\\n";
    } else if (text[i] == '\t') {
      json += "\\t";
    } else {
      json += text[i] == '"' ? std::string("\\\"") : std::string(1, text[i]);
    }
  }
  return nlohmann::json::parse(json + "\"");
}

class TomlReader {
 public:
  explicit TomlReader(std::istream& input) : input_(input) {}

  JobValues read() {
    JobValues values;
    std::set<std::string> seen;
    while (next_line()) {
      const auto line = trimmed(line_);
      if (line.empty() || line.front() == '#') continue;
      if (line.front() == '[') fail("a job has no sections");
      const auto equals = line.find('=');
      const std::string name(trimmed(line.substr(0, equals)));
      if (equals == std::string_view::npos || name.empty() ||
          name.find_first_of(" \t\"'.") != std::string::npos) {
        fail("it is not 'name = value'");
      }
      if (!seen.insert(name).second) fail("'" + name + "' is there twice");
      values.emplace_back(name, value(name, std::string(trimmed(line.substr(equals + 1)))));
    }
    return values;
  }

 private:
  bool next_line() {
    ++number_;
    return static_cast<bool>(std::getline(input_, line_));
  }

  nlohmann::json value(const std::string& name, std::string text) {
    if (!text.starts_with('"') && !text.starts_with('\'')) return plain(name, text);
    const std::string three(3, text[0]);
    const bool lines = text.starts_with(three);
    const std::string quotes = lines ? three : three.substr(0, 1);
    const std::size_t begun = number_;
    std::size_t end;
    while ((end = end_of_string(text, quotes)) == std::string::npos) {
      if (lines && next_line()) {
        text += "\n" + line_;
        continue;
      }
      number_ = begun;
      fail("the string of '" + name + "' has no end");
    }
    const auto rest = trimmed(std::string_view(text).substr(end));
    if (!rest.empty() && rest.front() != '#')
      fail("there is more behind the string of '" + name + "'");
    std::string_view inside(text);
    inside = inside.substr(quotes.size(), end - 2 * quotes.size());
    if (lines && inside.starts_with('\n')) inside.remove_prefix(1);
    return quotes[0] == '"' ? escaped(name, inside) : literal(name, inside);
  }

  nlohmann::json literal(const std::string& name, std::string_view inside) const {
    nlohmann::json text = inside;
    try {
      static_cast<void>(text.dump());
    } catch (const nlohmann::json::exception&) {
      fail("the string of '" + name + "' is not UTF-8");
    }
    return text;
  }

  nlohmann::json escaped(const std::string& name, std::string_view inside) const {
    try {
      return unescaped(inside);
    } catch (const std::exception&) {
      fail("the string of '" + name + "' has an escape that is not one of TOML; 'text' has none");
    }
  }

  nlohmann::json plain(const std::string& name, std::string_view text) const {
    const std::string value(trimmed(text.substr(0, text.find('#'))));
    const auto json = nlohmann::json::parse(value, nullptr, false);
    if (json.is_number() || json.is_boolean()) return json;
    fail("'" + name + "' is " + (value.empty() ? "nothing" : value) +
         "; a value is a number, true, false or a string in quotes");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("line " + std::to_string(number_) + ": " + what);
  }

  std::istream& input_;
  std::string line_;
  std::size_t number_ = 0;
};

}  // namespace

JobValues read_toml(std::istream& input) { return TomlReader(input).read(); }

std::string toml_of(const nlohmann::json& value) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const bool lines = text.find('\n') != std::string::npos;
    const bool quotes = text.find("'''") != std::string::npos || text.ends_with('\'');
    if (lines && !quotes) return "'''\n" + text + "'''";
  }
  return value.dump();
}

}  // namespace train
