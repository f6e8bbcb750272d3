// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How much of its sizes and draws a test takes. On a commit tests/run.sh says ATOMO_TESTS_ALL=0; under --all, on a GPU and
/// by hand each test has its full size.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace atomo::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// How often something is drawn: a tenth under a sanitizer, which looks at memory and not at sizes.
constexpr std::uint64_t repeats(std::uint64_t often) {
  return kSanitized ? (often + 9) / 10 : often;
}

/// Whether tests are those of a commit.
inline bool in_brief() {
  const char* const all = std::getenv("ATOMO_TESTS_ALL");
  return all != nullptr && std::strcmp(all, "0") == 0;
}

/// Whether what repeats the same code takes turns: on a commit, under a sanitizer.
inline bool in_turns() { return kSanitized && in_brief(); }

/// The distance of what a sweep looks at: every one, or those so far apart where they take turns.
inline std::size_t sweep_step(std::size_t in_turn) { return in_turns() ? in_turn : 1; }

}  // namespace atomo::test
