// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What atoms cost at a price, for the host and the device: exact integers, so that sums do not
/// depend on their order. Costs are in 1/256 bit.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "coding/duo_code_tables.hpp"
#include "core/bit_counts.hpp"
#include "core/host_device.hpp"
#include "math/dither.hpp"
#include "price/price.hpp"

namespace atomo::price {

__extension__ typedef unsigned __int128 Wide;  // sums of products of two 64-bit integers

inline constexpr std::uint32_t kFirstPriceCode = 1, kLastPriceCode = 0x7F7F;
/// Points of the table of gaps' costs, eight an octave.
inline constexpr std::size_t kGapCosts = std::size(kGapCost256);

/// What a bit must save in variance, in units of the squared price: at the price an atom is just
/// certain. 6/256 of a bit an entry stand for what goes beside the content.
inline constexpr double kBitPrice =
    (1 + static_cast<double>(kAtomClasses[0].delta) * static_cast<double>(kAtomClasses[0].delta) *
             kDitherVariance) /
    ((kStepCost256[kAtomClasses[0].step][0] + 6) / 256.0);

/// A variance, in units of the squared price, as a cost.
[[nodiscard]] constexpr std::uint32_t noise_cost_256(double variance) noexcept {
  return static_cast<std::uint32_t>(variance / kBitPrice * 256 + 0.5);
}

/// The price of a code: the positive f32 with these upper 16 bits.
[[nodiscard]] constexpr float price_of_code(std::uint32_t code) noexcept {
  return std::bit_cast<float>(code << 16);
}

/// The bin of an amplitude above 0.
[[nodiscard]] constexpr std::uint32_t amplitude_key(double rms) noexcept {
  return std::max(std::bit_cast<std::uint32_t>(static_cast<float>(rms)) >> 16, 1u);
}

/// The amplitude that stands for a bin: its middle.
[[nodiscard]] constexpr double representative(std::uint32_t key) noexcept {
  return static_cast<double>(std::bit_cast<float>((key << 16) | 0x8000u));
}

/// Which of the eight equal parts of its class a ratio stands in: the three bits below the class's
/// own.
[[nodiscard]] constexpr std::size_t part_of_ratio(double ratio) noexcept {
  return static_cast<std::size_t>(std::bit_cast<std::uint64_t>(ratio) >> 48) & 7u;
}

/// What an atom costs at a price depends on this alone.
struct AtomShare {
  std::uint64_t kept = 0;   ///< its probability, 2^32 when it is certain
  std::uint32_t place = 0;  ///< in a table of PriceCosts, of its class and part; 0 when uncertain
};
inline constexpr std::uint64_t kCertain = std::uint64_t{1} << 32;

/// The share of a bin's atoms at any price.
[[nodiscard]] ATOMO_HD inline AtomShare share_of_atom(std::uint32_t key, double price) noexcept {
  const double ratio = representative(key) / price;
  if (ratio < 1.0) return {probability_of_ratio(ratio), 0};
  const auto c =
      static_cast<std::uint32_t>(std::min(certain_class(ratio), PriceCosts::kClasses - 1));
  return {kCertain, c * PriceCosts::kParts + static_cast<std::uint32_t>(part_of_ratio(ratio))};
}

/// A bin's middle, or the price of a code: mantissa * 2^(exponent - 135).
struct BinNumber {
  std::uint32_t mantissa = 0, exponent = 0;
};
[[nodiscard]] constexpr BinNumber number_of_code(std::uint32_t code) noexcept {
  const std::uint32_t hidden = code > 0x7Fu ? 256 : 0;
  return {(code & 0x7Fu) * 2 + hidden, std::max(code >> 7, 1u)};
}
[[nodiscard]] constexpr BinNumber number_of_bin(std::uint32_t key) noexcept {
  const BinNumber below = number_of_code(key);
  return {below.mantissa + 1, below.exponent};
}

/// The price of a code, for the shares of many bins: the results of `share_of_atom` in integers.
/// The quotient of two mantissas is a multiplication by 2^54 / m, rounded up; it is too large by
/// less than 2^9 / 2^54, and no quotient of mantissas below 2^9 comes as near to a limit from below.
class PriceDivisor {
 public:
  explicit constexpr PriceDivisor(std::uint32_t code) noexcept
      : exponent_(static_cast<int>(number_of_code(code).exponent)) {
    const std::uint64_t m = number_of_code(code).mantissa;
    inverse_ = ((std::uint64_t{1} << kBits) + m - 1) / m;
  }
  [[nodiscard]] constexpr AtomShare share(BinNumber bin) const noexcept {
    const std::uint64_t quotient = bin.mantissa * inverse_;
    const int above = static_cast<int>(bin.exponent) - exponent_;
    if (above <= 0) {  // else the ratio is over 1
      const std::uint64_t kept = quotient >> std::min(kBits - 32 - above, 63);
      if (kept < kCertain) return {std::max<std::uint64_t>(kept, 1), 0};
    }
    // The ratio is at least 2^(top - kBits + above), and less than twice that.
    const int top = static_cast<int>(core::bit_width(quotient)) - 1;
    const auto sixteenths = static_cast<int>(quotient >> (top - 4) & 15u);
    const int place = PriceCosts::kParts + 16 * (top - kBits + above) + sixteenths;
    constexpr int kLast = (PriceCosts::kClasses - 1) * PriceCosts::kParts;
    return {kCertain, static_cast<std::uint32_t>(place < kLast ? place : kLast + place % 8)};
  }

 private:
  static constexpr int kBits = 54;
  std::uint64_t inverse_ = 0;
  int exponent_;
};

/// Code of the lowest price at which the largest atom is in the last class or below it.
[[nodiscard]] ATOMO_HD inline std::uint32_t min_price_code(double max_rms) noexcept {
  const auto suffices = [max_rms](std::uint32_t code) {
    return max_rms / static_cast<double>(price_of_code(code)) < kTopRatio;
  };
  const std::uint32_t near = std::bit_cast<std::uint32_t>(static_cast<float>(max_rms / kTopRatio));
  std::uint32_t code = std::clamp(near >> 16, +kFirstPriceCode, +kLastPriceCode);
  while (code > kFirstPriceCode && suffices(code - 1)) --code;
  while (code < kLastPriceCode && !suffices(code)) ++code;
  return code;
}

/// Cost of marking which of `atoms` atoms are the `kept_32` / 2^32 expected ones: a bit each, or
/// gaps. `gap_cost` is kGapCost256.
[[nodiscard]] constexpr Wide marks_cost(std::uint64_t atoms, Wide kept_32,
                                        const std::uint32_t* gap_cost) noexcept {
  const Wide bit_map = Wide{atoms} * 256;
  const auto kept = static_cast<std::uint64_t>(kept_32 >> 32);
  if (kept == 0) return kept_32 == 0 ? 0 : std::min(bit_map, Wide{256 * 64});
  // atoms / kept with 32 fraction bits; its logarithm in eighths of an octave, linear between the
  // table's points.
  const auto ratio = static_cast<std::uint64_t>((Wide{atoms} << 32) / kept);
  const auto octave = static_cast<std::uint64_t>(core::bit_width(ratio)) - 33;
  const std::uint64_t mantissa =
      (ratio << (31 - octave)) & 0x7FFFFFFFFFFFFFFFull;  // 63 bits below the leading one
  const std::uint64_t index = octave * 8 + (mantissa >> 60);
  std::uint64_t each = gap_cost[kGapCosts - 1];
  if (index < kGapCosts - 1) {
    const std::uint64_t from = gap_cost[index], to = gap_cost[index + 1];
    each = from + (((to - from) * ((mantissa >> 52) & 0xFFu)) >> 8);
  }
  const Wide segments = (Wide{atoms} + 4095) / 4096;
  return std::min(bit_map, Wide{kept} * each + segments * (32 * 256));
}

/// A cost that fits 64 bits.
[[nodiscard]] constexpr std::uint64_t saturated(Wide cost) noexcept {
  return static_cast<std::uint64_t>(
      std::min(cost, Wide{std::numeric_limits<std::uint64_t>::max()}));
}

/// What a family of atoms counts for (Expected::worth): `kept_32` / 2^32 expected ones, each
/// for `entries`.
[[nodiscard]] constexpr std::uint64_t worth_of_atoms(Wide kept_32, std::uint32_t entries) noexcept {
  return static_cast<std::uint64_t>(std::min(kept_32 * entries, Wide{kWorthSending}));
}
/// The worth of `nonzero` / 2^16 expected coordinates, which are atoms of one entry.
[[nodiscard]] constexpr std::uint64_t worth_of_coordinates(std::uint64_t nonzero) noexcept {
  return std::min(nonzero, std::uint64_t{1} << 16) * (kWorthSending >> 16);
}

/// A step of the search: a code is too low when its bits do not fit the budget, unless a message is
/// not even worth sending at it.
[[nodiscard]] constexpr bool is_too_low(const Expected& at, std::uint64_t budget) noexcept {
  return at.bits_256 > budget && at.worth >= kWorthSending;
}
/// The code that the search for the smallest that is not too low ends with: where its bits do not
/// fit (`unpaid`), a message is worth sending at the one below.
[[nodiscard]] constexpr std::uint32_t last_code(std::uint32_t found, std::uint32_t lowest,
                                                bool unpaid) noexcept {
  return unpaid && found > lowest ? found - 1 : found;
}

/// The result of a search over codes.
struct FoundCode {
  std::uint32_t code = 0;
  bool overspent = false;  ///< the budget does not pay for a message worth sending
};
/// Bisects from `lowest` on; it calls `expected_at(code)` at most 15 times.
template <typename ExpectedAt>
[[nodiscard]] constexpr FoundCode search_codes(std::uint32_t lowest, std::uint64_t budget,
                                               ExpectedAt expected_at) noexcept {
  std::uint32_t low = lowest, high = kLastPriceCode;
  bool unpaid = false;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    const Expected at = expected_at(middle);
    if (is_too_low(at, budget)) {
      low = middle + 1;
    } else {
      high = middle;
      unpaid = at.bits_256 > budget;
    }
  }
  return {last_code(low, lowest, unpaid), unpaid};
}

/// A budget of bits as the search takes it.
[[nodiscard]] constexpr std::uint64_t budget_cost_256(double bits) noexcept {
  return static_cast<std::uint64_t>(std::clamp(bits * 256, 0.0, 1.8e19));  // fits 64 bits
}

/// A price at the end of a search is too low for its budget to be spent: more than a 64th is left.
[[nodiscard]] constexpr bool leaves_budget(std::uint64_t cost, std::uint64_t budget) noexcept {
  return cost < budget - budget / 64;
}

}  // namespace atomo::price
