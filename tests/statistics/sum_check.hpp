// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Whether adding messages adds their levels, at the edges of what they are written in.

#include "statistics/statistics.hpp"
#include "support/grid_messages.hpp"

namespace atomo::test {

using AddLevels = Levels (*)(const Levels&, const Levels&);

/// Through messages; none when one is refused.
inline Levels add_by_messages(const Levels& a, const Levels& b) {
  return levels_of(sum_of({message_of(a), message_of(b)}).bytes);
}

/// Two levels beside one another, each exact in f32 and below 2^29.
inline std::string check_sums(AddLevels add) {
  constexpr std::int64_t kEdge = std::int64_t{1} << 29, kTop = kEdge - 32;
  const std::pair<std::int64_t, std::int64_t> pairs[] = {{0, 0},
                                                         {1, 1},
                                                         {1, -1},
                                                         {3, -5},
                                                         {-7, -9},
                                                         {16777215, 2},
                                                         {kTop, 31},
                                                         {kTop, 32},
                                                         {kTop, 33},
                                                         {-kTop, -32},
                                                         {kTop, kTop},
                                                         {-kTop, -kTop},
                                                         {kTop, -kTop},
                                                         {kTop, -1},
                                                         {-kTop, 40},
                                                         {kEdge / 2, kEdge / 2},
                                                         {kEdge / 2, 16777216}};
  for (const auto& [a, b] : pairs) {
    const Levels expected{a + b, 1 - b};
    const Levels found = add({a, 1}, {b, -b});
    if (found != expected)
      return complaint("levels ", a, " and ", b, " add up to ", found.empty() ? 0 : found[0]);
  }
  return {};
}

}  // namespace atomo::test
