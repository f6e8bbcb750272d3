// SPDX-License-Identifier: Apache-2.0
/// Weighs the settings of a registered codec: squared error, and what bits are worth at a price.
#include "price/settings.hpp"

#include <bit>

#include "price/price_math.hpp"

namespace atomo::price {
namespace {

std::uint64_t fewest_bits(std::span<const Setting> settings) noexcept {
  std::uint64_t fewest = settings.front().bits_256;
  for (const Setting& setting : settings) fewest = std::min(fewest, setting.bits_256);
  return fewest;
}

}  // namespace

std::size_t best_setting(std::span<const Setting> settings, float price) noexcept {
  const auto a = static_cast<double>(price);
  const double of_bit = kBitPrice * a * a / 256;  // squared error that 1/256 bit must save
  const auto loss = [&](const Setting& setting) {
    return setting.squared_error + of_bit * static_cast<double>(setting.bits_256);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < settings.size(); ++i) {
    const double own = loss(settings[i]), least = loss(settings[best]);
    if (own < least || (own == least && settings[i].bits_256 < settings[best].bits_256)) best = i;
  }
  return best;
}

Expected expected_of_settings(std::span<const Setting> settings, float price) noexcept {
  const std::uint64_t fewest = fewest_bits(settings);
  const std::uint32_t code = std::bit_cast<std::uint32_t>(price) >> 16;
  const float below = code > 0 ? price_of_code(code - 1) : 0;
  const bool is_least = settings[best_setting(settings, below)].bits_256 == fewest;
  return {settings[best_setting(settings, price)].bits_256, is_least ? 0 : kWorthSending};
}

}  // namespace atomo::price
