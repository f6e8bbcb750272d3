// SPDX-License-Identifier: Apache-2.0
/// Reports as text for a person and as JSON for plots and programs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "atomo/verify.hpp"

namespace atomo::verify {
namespace {

std::string number(double value, const char* format = "%.4g") {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string percent(double value) { return number(100 * value, "%.3g") + " %"; }

/// Cells with two spaces between; the first to the left, the others to the right.
class Columns {
 public:
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  [[nodiscard]] std::string text() const {
    std::vector<std::size_t> widths;
    for (const auto& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string out;
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string space(widths[i] - row[i].size(), ' ');
        out.append("  ").append(i == 0 ? row[i] : space).append(i == 0 ? space : row[i]);
      }
      out.erase(out.find_last_not_of(' ') + 1);
      out += "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string line_of(const Check& c) {
  std::string line = "  " + c.claim + ": " + c.what + ", '" + c.input + "'";
  if (c.bound == "compared" || c.band == 0) {
    line += ": " + number(c.found) + ", allowed " + number(c.allowed);
  } else {
    line +=
        ": " + number(c.found) + " +- " + number(c.band) + ", allowed " + number(c.allowed, "%.2g");
  }
  if (c.bound != "compared") line += " (" + c.bound + ")";
  return line + (c.note.empty() ? "" : "; " + c.note) + "\n";
}

std::string table_of(const Report& report) {
  Columns table;
  table.add({"tensor", "draws", "bytes", "NMSE", "freedom", "bias", "+-", "could miss"});
  const bool biases = report.missed() > 0;
  for (const InputReport& row : report.inputs) {
    const bool looked = biases && row.band > 0;
    table.add({row.name, std::to_string(row.draws), number(row.bytes, "%.6g"), number(row.nmse),
               row.degrees > 0 ? number(row.degrees, "%.3g") : "-",
               looked ? number(row.bias, "%.2e") : "-", looked ? number(row.band, "%.1e") : "-",
               looked ? percent(row.missed) : "-"});
  }
  return table.text();
}

// ---- JSON

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.append(1, '\\').append(1, c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string json(double value) { return std::isfinite(value) ? number(value, "%.17g") : "null"; }

class Object {
 public:
  Object& raw(std::string_view name, const std::string& value) {
    if (!text_.empty()) text_ += ", ";
    text_.append(quoted(name)).append(": ").append(value);
    return *this;
  }
  Object& add(std::string_view name, const std::string& value) { return raw(name, quoted(value)); }
  Object& add(std::string_view name, double value) { return raw(name, json(value)); }
  Object& truth(std::string_view name, bool value) { return raw(name, value ? "true" : "false"); }
  [[nodiscard]] std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

template <typename T, typename Make>
std::string array(const std::vector<T>& rows, Make make) {
  std::string text;
  for (const T& row : rows) text.append(text.empty() ? "[\n    " : ",\n    ").append(make(row));
  return rows.empty() ? "[]" : text.append("\n  ]");
}

std::string json_of(const Check& c) {
  Object row;
  row.add("claim", c.claim).add("what", c.what).add("input", c.input).truth("holds", c.holds);
  row.add("looks", static_cast<double>(c.looks)).add("found", c.found).add("allowed", c.allowed);
  return row.add("band", c.band).add("bound", c.bound).add("note", c.note).text();
}

std::string json_of(const InputReport& r) {
  std::string dims;
  for (const std::int64_t d : r.shape.dims())
    dims.append(dims.empty() ? "" : ", ").append(std::to_string(d));
  Object row;
  row.add("name", r.name).raw("shape", "[" + dims + "]").add("draws", static_cast<double>(r.draws));
  row.add("bytes", r.bytes).add("nmse", r.nmse).add("degrees_of_freedom", r.degrees);
  return row.add("bias", r.bias).add("band", r.band).add("missed", r.missed).text();
}

std::string json_of(const MagnitudeClass& c) {
  Object row;
  row.add("input", c.input).add("octave", c.octave).add("entries", static_cast<double>(c.entries));
  return row.add("bias", c.bias).add("band", c.band).text();
}

}  // namespace

bool Report::holds() const noexcept {
  return std::all_of(checks.begin(), checks.end(), [](const Check& c) { return c.holds; });
}

double Report::missed() const noexcept {
  double most = 0;
  for (const InputReport& row : inputs) most = std::max(most, row.missed);
  return most;
}

std::string Report::to_text() const {
  const auto failures = static_cast<std::size_t>(
      std::count_if(checks.begin(), checks.end(), [](const Check& c) { return !c.holds; }));
  std::string text =
      subject + ": " + (failures == 0 ? "every claim holds" : "a claim does not hold") + "\n";
  text += "claims:";
  for (const std::string& claim : claims) text += (&claim == &claims.front() ? " " : "; ") + claim;
  text += "\n";
  text += std::to_string(checks.size()) + " checks, " + std::to_string(failures) + " failed; " +
          std::to_string(looks) + " bounds share an error of " + number(family_error) + "\n";
  if (failures > 0) text += "\nnot kept (found, its band, what is allowed):\n";
  for (const Check& check : checks)
    if (!check.holds) text += line_of(check);
  text += "\n";
  text += table_of(*this);
  if (missed() > 0)
    text +=
        "\nA bias along the tensor of up to what its row could miss would not have been seen.\n";
  if (!growth.empty()) {
    text +=
        "\nsquared error of the mean of W workers, times W, over that of one (1 if independent):\n";
    Columns table;
    for (const Growth& g : growth)
      table.add({g.input, "W = " + std::to_string(g.workers), number(g.ratio, "%.3f")});
    text += table.text();
  }
  return text;
}

std::string Report::to_json() const {
  const auto text = [](const std::string& line) { return quoted(line); };
  const auto grown = [](const Growth& g) {
    return Object().add("input", g.input).add("workers", g.workers).add("ratio", g.ratio).text();
  };
  Object head;
  head.add("subject", subject).truth("holds", holds()).raw("claims", array(claims, text));
  head.add("family_error", family_error)
      .add("looks", static_cast<double>(looks))
      .add("missed", missed());
  std::string out = head.text();
  out.pop_back();
  const auto part = [&](const char* name, const std::string& rows) {
    out += std::string(",\n  \"") + name + "\": " + rows;
  };
  part("checks", array(checks, [](const Check& c) { return json_of(c); }));
  part("inputs", array(inputs, [](const InputReport& r) { return json_of(r); }));
  part("classes", array(classes, [](const MagnitudeClass& c) { return json_of(c); }));
  part("growth", array(growth, grown));
  return out + "}\n";
}

}  // namespace atomo::verify
