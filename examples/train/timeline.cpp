// SPDX-License-Identifier: Apache-2.0
#include "timeline.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "whole_file.hpp"

namespace train {
namespace {

double microseconds(Clock::time_point at) {
  return std::chrono::duration<double, std::micro>(at.time_since_epoch()).count();
}

/// Columns of the drawing.
constexpr double kWidth = 72;

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
                    Clock::time_point end) {
  if (!on_) return;
  events_.push_back({{"name", layer.empty() ? what : what + (" " + layer)},
                     {"cat", what},
                     {"ph", "X"},
                     {"ts", microseconds(begin)},
                     {"dur", microseconds(end) - microseconds(begin)},
                     {"pid", process_},
                     {"tid", 0},
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
  int worker = -1;  // the first process with a backward pass
  double begin = 0, end = 0;
  for (const auto& e : events) {
    if (worker < 0 && e.value("cat", "") == "backward") worker = e["pid"].get<int>();
  }
  for (const auto& e : events) {
    if (e["pid"] != worker || e["ph"] == "M") continue;
    const double from = e["ts"], to = from + e.value("dur", 0.0);
    begin = begin == 0 ? from : std::min(begin, from);
    end = std::max(end, to);
  }
  std::string text;
  const double column = (end - begin) / kWidth;
  char head[160];
  std::snprintf(head, sizeof head,
                "Time line of rank %d in step %u, %.2f ms (= a span, > a send posted)\n", worker,
                step, (end - begin) / 1000);
  text += head;
  for (const auto& e : events) {
    if (e["pid"] != worker || e["ph"] == "M" || e.value("cat", "") == "gradient") continue;
    const bool point = e["ph"] == "i";
    const double from = e["ts"];
    const auto first =
        static_cast<std::size_t>(std::clamp((from - begin) / column, 0.0, kWidth - 1));
    const auto length = static_cast<std::size_t>(std::max(1.0, e.value("dur", 0.0) / column));
    char row[160];
    std::snprintf(row, sizeof row, "  %-28s %8.3f ms ", e["name"].get<std::string>().c_str(),
                  (from - begin) / 1000);
    text +=
        row + std::string(first, ' ') + std::string(point ? 1 : length, point ? '>' : '=') + "\n";
  }
  return text;
}

}  // namespace train
