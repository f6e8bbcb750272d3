// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sampling without replacement, over a source of integers, so that tests can enumerate every
/// outcome.
///
/// Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", 1987): for j = n - m, ..., n - 1
/// draw t uniform on [0, j]; add t, or j when t is in the set already. After the step of j the set
/// is a uniform subset of [0, j] of its size: by induction, a given set S of size s + 1 within [0,
/// j] arises either with j outside S, from each S \ {t} for t in S, or with j in S, from S \ {j}
/// and any t of it or j; both give (s + 1) / ((j + 1) C(j, s)) = 1 / C(j + 1, s + 1). So each entry
/// is kept with probability exactly m/n. For k > n/2 the n - k entries left out are drawn instead.

#include <cstdint>

#include "core/namespaces.hpp"

namespace atomo::math {

/// Draws taken at a time, so that their places in the set can be fetched ahead.
inline constexpr std::uint64_t kDrawBatch = 16;

/// `draw(j, d)` is uniform on [0, j], d counting the draws from 0 in order; `Set` is empty and has
/// `test(i)`, `mark(i)` and, if it wants a hint that i comes soon, `fetch(i)`.
template <typename Set, typename Draw>
void draw_subset(std::uint64_t n, std::uint64_t m, Set& set, Draw&& draw) noexcept {
  std::uint64_t drawn[kDrawBatch];
  for (std::uint64_t begin = 0; begin < m; begin += kDrawBatch) {
    const std::uint64_t count = m - begin < kDrawBatch ? m - begin : kDrawBatch;
    for (std::uint64_t i = 0; i < count; ++i) {
      drawn[i] = draw(n - m + begin + i, begin + i);
      if constexpr (requires { set.fetch(drawn[i]); }) set.fetch(drawn[i]);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t t = drawn[i], j = n - m + begin + i;
      // A product in place of a branch: at k near n/2 whether t was drawn before is anyone's guess.
      set.mark(t + (j - t) * (set.test(t) ? 1u : 0u));
    }
  }
}

__extension__ typedef unsigned __int128 Wide;

/// floor(R * (j + 1) / 2^128), R of 128 uniform bits: each value in [0, j] has its probability 1 /
/// (j + 1) within 2^-128. Over the at most 2^40 draws of a layer of at most 2^40 entries that moves
/// the probability of any event by at most 2^-48, and at 2^25 entries by 2^-78.
[[nodiscard]] constexpr std::uint64_t scale_draw(std::uint64_t low, std::uint64_t high,
                                                 std::uint64_t j) noexcept {
  const Wide range = Wide{j} + 1;
  return static_cast<std::uint64_t>((Wide{high} * range + ((Wide{low} * range) >> 64)) >> 64);
}

}  // namespace atomo::math
