// SPDX-License-Identifier: Apache-2.0
/// \file
/// Tables are laid out as plain text, with widths counted in characters rather than in bytes of
/// UTF-8. The functions below them write numbers for reports and make names from files safe to
/// print.
#include "terminal/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace atomo::cli {
namespace {

/// Characters a terminal shows: bytes that do not continue a UTF-8 sequence.
std::size_t shown_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  }));
}

std::string padded(const std::string& cell, std::size_t width, Table::Align align) {
  const std::string space(width - shown_width(cell), ' ');
  return align == Table::Align::left ? cell + space : space + cell;
}

}  // namespace

/// A line of the groups' names, each in the middle of its columns; nothing without groups.
std::string Table::groups(const std::vector<std::size_t>& widths) const {
  std::string text;
  bool any = false;
  for (std::size_t c = 0; c < columns_.size();) {
    const std::string& group = columns_[c].group;
    std::size_t width = 0;
    text += c == 0 ? "" : "  ";
    for (const std::size_t first = c; c < columns_.size() && columns_[c].group == group; ++c) {
      width += widths[c] + (c == first ? 0 : 2);
    }
    any = any || !group.empty();
    text +=
        group.empty() ? std::string(width, ' ') : fmt::format("{:-^{}}", " " + group + " ", width);
  }
  return any ? text + "\n" : "";
}

std::string Table::render() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = shown_width(columns_[c].title);
    for (const auto& row : rows_) {
      width = std::max(width, shown_width(row[c]));
    }
    widths.push_back(width);
  }
  const auto line = [&](auto&& cell_of) {
    std::string text;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      text += (c == 0 ? "" : "  ") + padded(cell_of(c), widths[c], columns_[c].align);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = groups(widths);
  text += line([&](std::size_t c) { return columns_[c].title; });
  text += line([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) {
    text += line([&](std::size_t c) { return row[c]; });
  }
  return text;
}

std::string grouped(std::uint64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      out += ',';
    }
    out += digits[i];
  }
  return out;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : "s");
}

std::string significant(double value) {
  if (std::isnan(value)) {
    return "-";
  }
  return fmt::format("{:.4g}", value);
}

double bits_per_parameter(double bytes, std::uint64_t elements) {
  return elements == 0 ? 0 : 8 * bytes / static_cast<double>(elements);
}

std::string printable(std::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return out;
}

}  // namespace atomo::cli
