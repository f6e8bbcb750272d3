// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How many pairs a layer's sketch looks for: as many as the steps before had a use for. The rank
/// follows from the past alone, so estimates stay unbiased; messages do not say it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace atomo::price {

/// What is known of a layer.
struct RankState {
  static constexpr std::uint16_t kAll = 0xFFFF;

  std::uint16_t rank = kAll;  ///< pairs to look for; kAll: as many as its codec allows
  std::uint16_t wait = 0;     ///< steps of a layer without a sketch until one is tried again

  /// In a saved state: the rank in the lower 10 bits, all ones for kAll, the wait above.
  [[nodiscard]] constexpr std::uint16_t saved() const noexcept {
    return static_cast<std::uint16_t>((rank & 0x3FFu) | (std::uint32_t{wait} << 10));
  }
  [[nodiscard]] static constexpr RankState of_saved(std::uint16_t word) noexcept {
    const auto rank = static_cast<std::uint16_t>(word & 0x3FFu);
    return {rank == 0x3FF ? kAll : rank, static_cast<std::uint16_t>(word >> 10)};
  }

  friend bool operator==(const RankState&, const RankState&) = default;
};

/// Pairs of less than this part of the price are hardly ever kept, and cost a little more as rows.
inline constexpr double kUsedPair = 0.1;
/// Pairs beyond those in use: a sketch finds its last ones badly, and gradients change.
inline constexpr std::size_t kSparePairs = 10;
/// Ranks are multiples of this where they can be: what processors multiply at once.
inline constexpr std::size_t kRankStep = 8;
/// Steps after which a sketch is tried again.
inline constexpr std::uint16_t kRankWait = 16;

/// After a message in which the layer was sent without a sketch: one with all pairs is tried where
/// it had fewer, and none for a while where it had all.
[[nodiscard]] constexpr RankState without_sketch(RankState state) noexcept {
  if (state.rank == RankState::kAll) return {0, kRankWait};
  return state.wait > 1 ? RankState{0, static_cast<std::uint16_t>(state.wait - 1)} : RankState{};
}

/// Whether a pair is in use at a price.
[[nodiscard]] constexpr bool is_used(double amplitude, double price) noexcept {
  return amplitude >= kUsedPair * price;
}
/// After a message with a sketch that looked for `rank` pairs, of which so many are in use.
[[nodiscard]] constexpr RankState after_sketch(std::size_t used, std::size_t rank) noexcept {
  // Where nearly all are in use, how many there would be is not known.
  const std::size_t wanted = used + kSparePairs > rank ? 2 * rank : used + kSparePairs;
  return {static_cast<std::uint16_t>((wanted + kRankStep - 1) / kRankStep * kRankStep), 0};
}
[[nodiscard]] constexpr RankState after_sketch(std::span<const double> amplitudes, double price,
                                               std::size_t rank) noexcept {
  const auto used = std::count_if(amplitudes.begin(), amplitudes.end(),
                                  [&](double amplitude) { return is_used(amplitude, price); });
  return after_sketch(static_cast<std::size_t>(used), rank);
}

}  // namespace atomo::price
