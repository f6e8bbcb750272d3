// SPDX-License-Identifier: Apache-2.0
#include "codec/price_search.hpp"

#include <algorithm>

#include "price/price_math.hpp"

namespace atomo::codec {
namespace {

Expected expected(std::span<const Demand> demands, std::uint32_t code) noexcept {
  Expected sum;
  for (const auto& d : demands) {
    const Expected own = d.method->expected(*d.shape, d.bytes, price_of_code(code));
    sum.bits_256 += own.bits_256;
    sum.worth += own.worth;
  }
  return sum;
}

}  // namespace

FoundPrice find_price(std::span<const Demand> demands, double budget_bits) noexcept {
  const std::uint64_t budget = budget_cost256(budget_bits);
  if (expected(demands, kFirstPriceCode).bits_256 == 0) return {};
  std::uint32_t lowest = kFirstPriceCode;
  for (const auto& d : demands)
    lowest = std::max<std::uint32_t>(lowest, d.method->lowest_price(*d.shape, d.bytes));
  const FoundCode found =
      search_codes(lowest, budget, [&](std::uint32_t code) { return expected(demands, code); });
  const bool underspent =
      found.code == lowest && leaves_budget(expected(demands, lowest).bits_256, budget);
  return {price_of_code(found.code), underspent, found.overspent};
}

}  // namespace atomo::codec
