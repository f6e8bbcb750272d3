// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// An `Executor` over threads of its own, for callers that have none.
///
/// ```cpp
/// atomo::ThreadPool pool(4);
/// atomo::Context context{.workspace = workspace, .executor = &pool};
/// ```

#include <memory>

#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// `threads` counts the calling thread, which works too. One `run` at a time; a second caller
/// waits. A child that the process forks has none of the threads: there `run` would wait for ever,
/// so a child makes a pool of its own.
class ThreadPool final : public Executor {
 public:
  /// Starts threads; allocates. \throws Error when `threads` is 0 or more than the system gives.
  explicit ThreadPool(unsigned threads);
  ~ThreadPool() override;
  void run(std::size_t count, void (*task)(void* state, std::size_t i),
           void* state) noexcept override;
  [[nodiscard]] std::size_t threads() const noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atomo
