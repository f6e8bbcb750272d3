// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Rice words with a limited quotient.
///
/// A value v under parameter k: q = v >> k ones, a zero, then the k low bits of v. When q would be
/// `kRiceLimit` or more: `kRiceLimit` ones and no zero, then v in `raw` bits. So a word is never
/// longer than `kRiceLimit` + raw bits, and one outlier cannot make a stream long.

#include <algorithm>
#include <cstdint>

#include "core/bit_counts.hpp"
#include "core/bits.hpp"
#include "core/host_device.hpp"

namespace atomo::coding {

inline constexpr unsigned kRiceLimit = 20;

[[nodiscard]] constexpr unsigned rice_bits(std::uint32_t v, unsigned k, unsigned raw) noexcept {
  const std::uint32_t q = v >> k;
  return q < kRiceLimit ? q + 1 + k : kRiceLimit + raw;
}

/// The same of values that need more than 32 bits; `raw` is at most 53.
[[nodiscard]] constexpr unsigned wide_rice_bits(std::uint64_t v, unsigned k,
                                                unsigned raw) noexcept {
  const std::uint64_t q = v >> k;
  return q < kRiceLimit ? static_cast<unsigned>(q) + 1 + k : kRiceLimit + raw;
}

/// The first bit is the lowest of `bits` in a stream that goes up, the highest of the `count` in one
/// that goes down.
struct RiceWord {
  std::uint64_t bits;
  unsigned count;
};

/// `next` behind `first`.
template <Direction direction>
[[nodiscard]] constexpr RiceWord join(RiceWord first, RiceWord next) noexcept {
  const unsigned count = first.count + next.count;
  if constexpr (direction == Direction::upward)
    return {first.bits | next.bits << first.count, count};
  return {first.bits << next.count | next.bits, count};
}

/// So many ones; a zero behind them where `ends`.
template <Direction direction>
[[nodiscard]] constexpr RiceWord rice_ones(unsigned ones, bool ends) noexcept {
  const std::uint64_t all = (std::uint64_t{1} << ones) - 1;
  return {direction == Direction::downward && ends ? all << 1 : all, ones + (ends ? 1u : 0u)};
}

template <Direction direction = Direction::upward>
[[nodiscard]] constexpr RiceWord rice_word(std::uint32_t v, unsigned k, unsigned raw) noexcept {
  const std::uint32_t q = v >> k;
  if (q >= kRiceLimit) return join<direction>(rice_ones<direction>(kRiceLimit, false), {v, raw});
  return join<direction>(rice_ones<direction>(q, true), {v & ((1u << k) - 1), k});
}

/// Parameters that are tried, ascending.
struct RiceRange {
  unsigned first, last;
};

/// Those near the best for `count` values of sum `total`: the best for a geometric distribution has
/// 2^k near the mean times ln 2. `total` counts in units of 2^shift.
[[nodiscard]] constexpr RiceRange rice_range(std::uint64_t count, std::uint64_t total,
                                             unsigned max_k, unsigned shift = 0) noexcept {
  const std::uint64_t center = total * 11 / (16 * (count + 1));
  const unsigned middle =
      std::min(max_k, static_cast<unsigned>(core::bit_width(center | 1)) - 1 + shift);
  return {middle > 0 ? middle - 1 : 0, std::min(max_k, middle + 1)};
}

struct RiceChoice {
  unsigned k = 0;
  std::uint64_t bits = ~std::uint64_t{0};
};

/// The shortest; of equals the smallest parameter. `bits_at(k)` is what all words cost.
template <typename BitsAt>
[[nodiscard]] constexpr RiceChoice choose_rice(RiceRange range, BitsAt bits_at) noexcept {
  RiceChoice best;
  for (unsigned k = range.first; k <= range.last; ++k) {
    const std::uint64_t bits = bits_at(k);
    if (bits < best.bits) best = {k, bits};
  }
  return best;
}

/// The next bits of a stream that goes up: at least 57, the first lowest.
struct UpwardWindow {
  std::uint64_t bits;
  [[nodiscard]] constexpr unsigned ones() const noexcept {
    return static_cast<unsigned>(core::countr_one(bits));
  }
  /// The number in the `count` bits behind the first `skipped`, at most 57 in all.
  [[nodiscard]] constexpr std::uint64_t field(unsigned skipped, unsigned count) const noexcept {
    return bits >> skipped & ((std::uint64_t{1} << count) - 1);
  }
};

/// The same of a stream that goes down, the first highest.
struct DownwardWindow {
  std::uint64_t bits;
  [[nodiscard]] constexpr unsigned ones() const noexcept {
    return static_cast<unsigned>(core::countl_one(bits));
  }
  [[nodiscard]] constexpr std::uint64_t field(unsigned skipped, unsigned count) const noexcept {
    return bits << skipped >> 1 >> (63 - count);
  }
};

/// Reads a word and moves past it; `in.window()` has the next bits, `in.move(count)` passes over
/// some. `canonical` turns false on a raw value that a shorter word exists for; any bits give some
/// value.
template <typename Stream>
ATOMO_HD inline std::uint32_t read_rice(Stream& in, unsigned k, unsigned raw,
                                        bool& canonical) noexcept {
  const auto window = in.window();
  const unsigned q = window.ones();
  if (q < kRiceLimit) {
    in.move(q + 1 + k);
    return (q << k) | static_cast<std::uint32_t>(window.field(q + 1, k));
  }
  in.move(kRiceLimit + raw);
  const auto v = static_cast<std::uint32_t>(window.field(kRiceLimit, raw));
  canonical &= (v >> k) >= kRiceLimit;
  return v;
}

/// The same of values that need more than 32 bits; k and `raw` are at most 53.
template <typename Stream>
ATOMO_HD inline std::uint64_t read_wide_rice(Stream& in, unsigned k, unsigned raw,
                                             bool& canonical) noexcept {
  const unsigned q = in.window().ones();
  if (q < kRiceLimit) {
    in.move(q + 1);
    const std::uint64_t v = std::uint64_t{q} << k | in.window().field(0, k);
    in.move(k);
    return v;
  }
  in.move(kRiceLimit);
  const std::uint64_t v = in.window().field(0, raw);
  in.move(raw);
  canonical &= (v >> k) >= kRiceLimit;
  return v;
}

}  // namespace atomo::coding
