// SPDX-License-Identifier: Apache-2.0
/// Reads policies, matches layer names with their patterns and shows which rule each layer takes.
#include "atomo/compressor.hpp"
#include "core/utf8.hpp"

namespace atomo {

using namespace model;
namespace {

/// `*` stands for any run of characters, `?` for one.
bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// A spec alone, not rules: these have their `=` before any `:`, or stand among others.
bool is_spec(std::string_view text) {
  return text.find_first_of("; \t\n#") == std::string_view::npos && !text.empty() &&
         text.find('=') >= text.find(':');
}

/// A rule whose pattern `parse` would read otherwise, or not at all, has no text.
void check_pattern(const std::string& pattern, std::size_t number) {
  const bool split = pattern.find_first_of("=;#\n") != std::string::npos;
  if (!split && !pattern.empty() && trim(pattern).size() == pattern.size()) return;
  throw Error("the pattern of rule " + std::to_string(number) + ", '" + core::shown(pattern) +
              "', cannot be written as a rule: expected at least one character, none of them =, ;, "
              "# or a line break, and no blank at either end (? stands for any character)");
}

}  // namespace

Policy::Policy(Codec codec) : rules_{{"*", std::move(codec)}} {}

Policy::Policy(std::vector<Rule> rules) : rules_(std::move(rules)) {
  if (rules_.empty())
    throw Error("a policy without rules: expected at least one, e.g. * = atomo:bits=0.5");
  for (std::size_t i = 0; i < rules_.size(); ++i) check_pattern(rules_[i].pattern, i + 1);
}

Policy Policy::parse(std::string_view text) {
  if (is_spec(trim(text))) return Policy(Codec::parse(trim(text)));
  std::vector<Rule> rules;
  std::size_t line_number = 1;
  while (!text.empty()) {
    const auto end = text.find_first_of("\n;");
    const bool new_line = end != std::string_view::npos && text[end] == '\n';
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    line = trim(line.substr(0, line.find('#')));
    if (!line.empty()) {
      const auto equals = line.find('=');
      const std::string where = "policy, line " + std::to_string(line_number) + ": ";
      if (equals == std::string_view::npos || trim(line.substr(0, equals)).empty()) {
        throw Error(where + "expected 'pattern = spec', found '" + core::shown(line) + "'");
      }
      try {
        rules.push_back({std::string(trim(line.substr(0, equals))),
                         Codec::parse(trim(line.substr(equals + 1)))});
      } catch (const Error& e) {
        throw Error(where + e.what());
      }
    }
    line_number += new_line ? 1 : 0;
  }
  return Policy(std::move(rules));
}

const Codec& Policy::codec_for(std::string_view layer) const {
  for (const auto& rule : rules_) {
    if (matches(rule.pattern, layer)) return rule.codec;
  }
  throw Error("no rule of the policy matches the layer '" + core::shown(layer) +
              "': end it with '* = SPEC'");
}

Policy Policy::without_lossless() const {
  std::vector<Rule> rules;
  for (const Rule& rule : rules_) rules.push_back({rule.pattern, rule.codec.without_lossless()});
  return Policy(std::move(rules));
}

Policy Policy::without_memory() const {
  std::vector<Rule> rules;
  for (const Rule& rule : rules_) rules.push_back({rule.pattern, rule.codec.without_memory()});
  return Policy(std::move(rules));
}

std::string Policy::to_string() const {
  std::string text;
  for (const auto& rule : rules_) text += rule.pattern + " = " + rule.codec.to_string() + "\n";
  return text;
}

}  // namespace atomo
