// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The order in which an executor takes the layers of a model: the largest first, so that its threads
/// end together. A layer that would keep them waiting all the same is cut into tasks of its own.

#include <algorithm>
#include <cstddef>
#include <span>

#include "atomo/types.hpp"

namespace atomo::codec {

/// Sorts layers by their entries, descending; those of one size keep the order of their numbers.
template <typename Index, typename SizeOf>
void sort_by_size(std::span<Index> layers, SizeOf size_of) noexcept {
  std::sort(layers.begin(), layers.end(), [&](Index a, Index b) {
    return size_of(a) != size_of(b) ? size_of(a) > size_of(b) : a < b;
  });
}

/// How many of the sorted layers get the executor for themselves, one after the other, before the
/// others become tasks: those of a million entries and more that are above half a thread's part of
/// all.
template <typename Index, typename SizeOf>
[[nodiscard]] std::size_t count_alone(std::span<const Index> sorted, const Executor* executor,
                                      SizeOf size_of) noexcept {
  constexpr std::size_t kLarge = std::size_t{1} << 20, kUnknownThreads = 8;
  if (executor == nullptr) return 0;
  const std::size_t threads = executor->threads() == 0 ? kUnknownThreads : executor->threads();
  std::size_t all = 0, count = 0;
  for (const Index layer : sorted) all += size_of(layer);
  while (count < sorted.size() && size_of(sorted[count]) >= kLarge &&
         size_of(sorted[count]) > all / (2 * threads))
    ++count;
  return count;
}

}  // namespace atomo::codec
