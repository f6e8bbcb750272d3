// SPDX-License-Identifier: Apache-2.0
#include "price_search.hpp"

#include <algorithm>

#include "price_math.hpp"

namespace atomo::detail {
namespace {

std::uint64_t expected_bits256(std::span<const Demand> demands, std::uint16_t code) noexcept {
  std::uint64_t sum = 0;
  for (const auto& d : demands)
    sum += d.method->expected_bits256(*d.shape, d.bytes, cpu::price_of_code(code));
  return sum;
}

}  // namespace

FoundPrice find_price(std::span<const Demand> demands, double budget_bits) noexcept {
  const std::uint64_t budget = budget_cost256(budget_bits);
  if (expected_bits256(demands, 1) == 0) return {};
  std::uint16_t low = 1;
  for (const auto& d : demands) low = std::max(low, d.method->lowest_price(*d.shape, d.bytes));
  const std::uint16_t lowest = low;
  std::uint16_t high = kLastPriceCode;
  while (low < high) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    if (expected_bits256(demands, middle) > budget) {
      low = static_cast<std::uint16_t>(middle + 1);
    } else {
      high = middle;
    }
  }
  return {cpu::price_of_code(low),
          low == lowest && leaves_budget(expected_bits256(demands, low), budget)};
}

}  // namespace atomo::detail
