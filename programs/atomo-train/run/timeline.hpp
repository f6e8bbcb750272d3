// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What happened when in one step: that layers leave while back-propagation still runs.

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace train {

using Clock = std::chrono::steady_clock;
[[nodiscard]] inline double milliseconds(Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

/// The events of one process, as entries of a chrome://tracing file (times in microseconds of the
/// machine's steady clock, so that processes of one machine share it; those of several machines do
/// not).
class Timeline {
 public:
  /// Records nothing unless `on`.
  Timeline(bool on, int process, const std::string& name);
  [[nodiscard]] bool on() const noexcept { return on_; }
  /// `beside`: on another thread than the one that computes.
  void span(const char* what, const std::string& layer, Clock::time_point begin,
            Clock::time_point end, bool beside = false);
  void instant(const char* what, const std::string& layer, Clock::time_point at);
  /// Array of events; moves them out.
  [[nodiscard]] nlohmann::json take();

 private:
  bool on_;
  int process_;
  nlohmann::json events_ = nlohmann::json::array();
};

/// Appends the events of another process, sent as text.
void append_events(nlohmann::json& events, std::span<const std::byte> text);
/// Writes `{"traceEvents": [...]}` whole or not at all.
void write_timeline(const std::string& path, const nlohmann::json& events);
/// The events of worker 1 as text, a bar a layer.
[[nodiscard]] std::string draw_timeline(const nlohmann::json& events, std::uint32_t step);

}  // namespace train
