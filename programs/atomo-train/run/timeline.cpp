// SPDX-License-Identifier: Apache-2.0
/// \file
/// Events are built as entries of chrome://tracing's JSON, and other processes send theirs as text
/// to the one that writes the file. `draw_timeline` draws the events of the first process that
/// trains as text, with a bar or a mark for each.

#include "run/timeline.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "files/whole_file.hpp"

namespace train {
namespace {

double microseconds(Clock::time_point at) {
  return std::chrono::duration<double, std::micro>(at.time_since_epoch()).count();
}

/// Columns of the drawing.
constexpr double kWidth = 72;

/// Of the first process with a backward pass, in order of time; gradients are drawn as their
/// encoding.
std::vector<nlohmann::json> events_of_first_trainer(const nlohmann::json& events) {
  const auto trains = [](const auto& e) { return e.value("cat", "") == "backward"; };
  const auto trainer = std::find_if(events.begin(), events.end(), trains);
  std::vector<nlohmann::json> rows;
  if (trainer == events.end()) return rows;
  for (const auto& e : events) {
    const bool drawn = e["ph"] != "M" && e.value("cat", "") != "gradient";
    if (drawn && e["pid"] == (*trainer)["pid"]) rows.push_back(e);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a["ts"] < b["ts"]; });
  return rows;
}

}  // namespace

Timeline::Timeline(bool on, int process, const std::string& name) : on_(on), process_(process) {
  if (!on_) return;
  events_.push_back({{"name", "process_name"},
                     {"ph", "M"},
                     {"pid", process},
                     {"tid", 0},
                     {"args", {{"name", name}}}});
}

void Timeline::span(const char* what, const std::string& layer, Clock::time_point begin,
                    Clock::time_point end, bool beside) {
  if (!on_) return;
  events_.push_back({{"name", layer.empty() ? what : what + (" " + layer)},
                     {"cat", what},
                     {"ph", "X"},
                     {"ts", microseconds(begin)},
                     {"dur", microseconds(end) - microseconds(begin)},
                     {"pid", process_},
                     {"tid", beside ? 1 : 0},
                     {"args", {{"layer", layer}}}});
}

void Timeline::instant(const char* what, const std::string& layer, Clock::time_point at) {
  if (!on_) return;
  events_.push_back({{"name", what + (" " + layer)},
                     {"cat", what},
                     {"ph", "i"},
                     {"s", "t"},
                     {"ts", microseconds(at)},
                     {"pid", process_},
                     {"tid", 0},
                     {"args", {{"layer", layer}}}});
}

nlohmann::json Timeline::take() { return std::exchange(events_, nlohmann::json::array()); }

void append_events(nlohmann::json& events, std::span<const std::byte> text) {
  const auto* begin = reinterpret_cast<const char*>(text.data());
  for (auto& event : nlohmann::json::parse(begin, begin + text.size()))
    events.push_back(std::move(event));
}

void write_timeline(const std::string& path, const nlohmann::json& events) {
  write_whole_file(
      path, nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump(1) + "\n");
}

std::string draw_timeline(const nlohmann::json& events, std::uint32_t step) {
  const auto rows = events_of_first_trainer(events);
  if (rows.empty()) return "";
  const double begin = rows.front()["ts"];
  double end = begin;
  for (const auto& e : rows) end = std::max(end, e["ts"].get<double>() + e.value("dur", 0.0));
  const double column = std::max(end - begin, 1e-3) / kWidth;

  std::array<char, 160> line{};
  std::snprintf(line.data(), line.size(),
                "Time line of rank %d in step %u, %.2f ms (= a span, > a send posted)\n",
                rows.front()["pid"].get<int>(), step, (end - begin) / 1000);
  std::string text = line.data();
  for (const auto& e : rows) {
    const double from = e["ts"].get<double>() - begin;
    const auto first = static_cast<std::size_t>(std::min(from / column, kWidth - 1));
    const auto length = static_cast<std::size_t>(
        std::clamp(e.value("dur", 0.0) / column, 1.0, kWidth - static_cast<double>(first)));
    std::snprintf(line.data(), line.size(), "  %-28s %8.3f ms ",
                  e["name"].get<std::string>().c_str(), from / 1000);
    text += line.data() + std::string(first, ' ') + std::string(length, e["ph"] == "i" ? '>' : '=');
    text += '\n';
  }
  return text;
}

}  // namespace train
