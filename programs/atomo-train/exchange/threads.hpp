// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The threads of a process, which encode and decode. A network computes on one of them; meanwhile
/// the others may encode.

#include <atomo/thread_pool.hpp>
#include <optional>

namespace train {

class Transport;

class Threads {
 public:
  /// `count` includes the thread that calls.
  explicit Threads(unsigned count) : count_(count) {
    if (count > 1) all_.emplace(count);
    if (count > 2) beside_.emplace(count - 1);
  }

  [[nodiscard]] unsigned count() const noexcept { return count_; }
  /// All of them, while the network does not compute; null where there is one only.
  [[nodiscard]] atomo::Executor* all() noexcept { return all_ ? &*all_ : nullptr; }
  /// All but one, for a thread that works while the network computes; null where that is one only.
  [[nodiscard]] atomo::Executor* beside() noexcept { return beside_ ? &*beside_ : nullptr; }

 private:
  unsigned count_;
  std::optional<atomo::ThreadPool> all_, beside_;
};

/// As many as this process has of the cores of its machine, when each core is divided among the
/// processes of the job that may run on it; at least 1. Every process calls it.
[[nodiscard]] unsigned threads_of_this_process(Transport& transport);

}  // namespace train
