// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Aligned tables and the few ways numbers are written in them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace atomo::cli {

/// Columns as wide as their widest cell, two spaces apart.
///
/// ```cpp
/// Table table({{"layer", Table::Align::left}, {"bytes", Table::Align::right}});
/// table.add({"fc.weight", "1,024"});
/// ```
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::right;
    std::string group = {};  ///< above the titles of neighbours that have the same; empty: none
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// One cell a column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// Groups where there are any, title, rule, rows; ends with a newline.
  [[nodiscard]] std::string render() const;

 private:
  [[nodiscard]] std::string groups(const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// "11,173,962".
[[nodiscard]] std::string grouped(std::uint64_t value);
/// "1 tensor", "1,024 tensors".
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);
/// Four significant digits, "-" when there is no number.
[[nodiscard]] std::string significant(double value);
/// Bits a parameter, 0 when there is no parameter.
[[nodiscard]] double bits_per_parameter(double bytes, std::uint64_t elements);
/// Control characters shown as '?', so that a name in a file cannot break a line or drive a
/// terminal.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace atomo::cli
