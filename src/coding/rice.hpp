// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Rice words with a limited quotient.
///
/// A value v under parameter k: q = v >> k ones, a zero, then the k low bits of v. When q would be
/// `kRiceLimit` or more: `kRiceLimit` ones and no zero, then v in `raw` bits. So a word is never
/// longer than `kRiceLimit` + raw bits, and one outlier cannot make a stream long.

#include <algorithm>
#include <bit>
#include <cstdint>

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

struct RiceWord {
  std::uint64_t bits;
  unsigned count;
};

[[nodiscard]] constexpr RiceWord rice_word(std::uint32_t v, unsigned k, unsigned raw) noexcept {
  const std::uint32_t q = v >> k;
  if (q >= kRiceLimit) {
    return {((std::uint64_t{1} << kRiceLimit) - 1) | (std::uint64_t{v} << kRiceLimit),
            kRiceLimit + raw};
  }
  const std::uint64_t low = v & ((1u << k) - 1);
  return {((std::uint64_t{1} << q) - 1) | (low << (q + 1)), q + 1 + k};
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
      std::min(max_k, static_cast<unsigned>(std::bit_width(center | 1)) - 1 + shift);
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

/// Reads a word at `bit` and moves past it; `in.peek(bit)` gives at least 57 bits. `canonical`
/// turns false on a raw value that a shorter word exists for; any bits give some value.
template <typename Reader>
ATOMO_HD inline std::uint32_t read_rice(const Reader& in, std::uint64_t& bit, unsigned k,
                                        unsigned raw, bool& canonical) noexcept {
  const std::uint64_t word = in.peek(bit);
  const auto q = static_cast<unsigned>(std::countr_one(word));
  if (q < kRiceLimit) {
    bit += q + 1 + k;
    return (q << k) | (static_cast<std::uint32_t>(word >> (q + 1)) & ((1u << k) - 1));
  }
  bit += kRiceLimit + raw;
  const auto v = static_cast<std::uint32_t>(word >> kRiceLimit) & ((std::uint32_t{1} << raw) - 1);
  canonical &= (v >> k) >= kRiceLimit;
  return v;
}

/// The same of values that need more than 32 bits; k and `raw` are at most 53.
template <typename Reader>
ATOMO_HD inline std::uint64_t read_wide_rice(const Reader& in, std::uint64_t& bit, unsigned k,
                                             unsigned raw, bool& canonical) noexcept {
  const auto low = [](std::uint64_t word, unsigned count) {
    return word & ((std::uint64_t{1} << count) - 1);
  };
  const auto q = static_cast<unsigned>(std::countr_one(in.peek(bit)));
  if (q < kRiceLimit) {
    bit += q + 1;
    const std::uint64_t v = std::uint64_t{q} << k | low(in.peek(bit), k);
    bit += k;
    return v;
  }
  bit += kRiceLimit;
  const std::uint64_t v = low(in.peek(bit), raw);
  bit += raw;
  canonical &= (v >> k) >= kRiceLimit;
  return v;
}

}  // namespace atomo::coding
