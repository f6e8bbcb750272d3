// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Independent tasks of one call, over the caller's executor or one after the other.

#include <algorithm>
#include <cstddef>

#include "atomo/types.hpp"
#include "core/fp_guard.hpp"

namespace atomo::core {

/// Calls `body(i)` once for every i in [0, count). `body` must not throw; no two calls may write
/// the same byte. An executor's threads may have floating-point modes of their own: its tasks run
/// under the library's.
template <typename Body>
void run_tasks(Executor* executor, std::size_t count, const Body& body) noexcept {
  if (executor == nullptr || count <= 1) {
    for (std::size_t i = 0; i < count; ++i) body(i);
    return;
  }
  executor->run(
      count,
      [](void* state, std::size_t i) {
        const FpGuard guard;
        (*static_cast<const Body*>(state))(i);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

/// Calls `body(begin, end)` for consecutive ranges of at most `grain` that cover [0, n).
template <typename Body>
void run_ranges(Executor* executor, std::size_t n, std::size_t grain, const Body& body) noexcept {
  const std::size_t count = n / grain + (n % grain != 0);
  auto range = [&](std::size_t i) { body(i * grain, std::min(n, (i + 1) * grain)); };
  run_tasks(executor, count, range);
}

}  // namespace atomo::core
