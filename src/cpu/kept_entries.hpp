// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A layer of which some entries are sent: those marked in a bit map (entry i is bit i mod 64 of
/// word i / 64; no bit from n on), in ascending order, as f32.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "core/workspace.hpp"

namespace atomo::cpu {

/// Entries that one task gathers or scatters.
inline constexpr std::size_t kKeptGrain = std::size_t{1} << 16;

/// The bit map of a layer and, for each grain, how many marked entries lie before it.
struct KeptSet {
  std::span<std::uint64_t> words;
  std::span<std::uint64_t> before;

  [[nodiscard]] static KeptSet carve(Carver& carver, std::size_t n) noexcept {
    KeptSet set;
    set.words = carver.take<std::uint64_t>(n / 64 + (n % 64 != 0));
    set.before = carver.take<std::uint64_t>(n / kKeptGrain + (n % kKeptGrain != 0));
    return set;
  }

  void clear() noexcept { std::fill(words.begin(), words.end(), 0); }
  void mark(std::uint64_t i) noexcept { words[i / 64] |= std::uint64_t{1} << (i % 64); }
  /// Fills `before`; returns the marked entries in all.
  std::uint64_t count() noexcept;
};

/// Writes the marked ones of n entries, 4 bytes each.
void gather_marked(const float* x, std::size_t n, const std::uint64_t* words,
                   std::byte* values) noexcept;
/// The same of a layer on several threads. `set.count()` has been called.
void gather_kept(const float* x, std::size_t n, const KeptSet& set, Executor* executor,
                 std::byte* values) noexcept;

/// `Status::corrupt` unless all `count` values are finite; `Status::overflow` when one times
/// `scale` is not.
[[nodiscard]] Status check_values(const std::byte* values, std::size_t count, float scale) noexcept;

/// y[i] = v_i, or y[i] + (alpha * v_i) when `add`, v_i being value * scale (rounded) where marked
/// and 0 elsewhere.
void scatter_marked(const std::byte* values, const std::uint64_t* words, float scale, bool add,
                    float alpha, float* y, std::size_t n) noexcept;

}  // namespace atomo::cpu
