// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A line on standard error for work that takes over two seconds, when standard error is a
/// terminal.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace atomo::cli {

/// Shows what is under way and for how long, four times a second, from a thread of its own (a
/// single encode of a large model gives no chance to report in between). The line is erased at the
/// end.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set(std::string what);

 private:
  void show(std::stop_token stop);

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::string what_;
  bool shown_ = false;
  std::jthread thread_;  ///< last, so that it ends before what it reads is gone
};

}  // namespace atomo::cli
