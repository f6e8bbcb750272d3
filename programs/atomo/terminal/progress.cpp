// SPDX-License-Identifier: Apache-2.0
/// \file
/// A thread of its own draws the progress line, so that the work need not call it. The thread waits
/// two seconds before it writes anything, so short commands show no line, and it is not started at
/// all where standard error is no terminal.
#include "terminal/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "terminal/table.hpp"

namespace atomo::cli {

Progress::Progress(std::string what) : what_(std::move(what)) {
  if (::isatty(STDERR_FILENO) == 1) {
    thread_ = std::jthread([this](std::stop_token stop) { show(std::move(stop)); });
  }
}

Progress::~Progress() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  if (shown_) {
    fmt::print(stderr, "\r\x1b[K");
  }
}

void Progress::set(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::show(std::stop_token stop) {
  using namespace std::chrono_literals;
  std::unique_lock lock(mutex_);
  const auto stopped = [] { return false; };
  changed_.wait_for(lock, stop, 2s, stopped);
  while (!stop.stop_requested()) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    fmt::print(stderr, "\r\x1b[K{} ... {:.0f} s", printable(what_), elapsed.count());
    std::fflush(stderr);
    shown_ = true;
    changed_.wait_for(lock, stop, 250ms, stopped);
  }
}

}  // namespace atomo::cli
