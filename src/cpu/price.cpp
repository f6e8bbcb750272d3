// SPDX-License-Identifier: Apache-2.0
#include "atomo/price.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "dither.hpp"
#include "pair_code_tables.hpp"

namespace atomo::cpu {
namespace {

__extension__ typedef unsigned __int128 Wide;  // sums of products of two 64-bit integers

constexpr std::uint32_t kFirstCode = 1, kLastCode = 0x7F7F;

/// The amplitude that stands for a bin: its middle.
double representative(std::uint32_t key) noexcept {
  return static_cast<double>(std::bit_cast<float>((key << 16) | 0x8000u));
}

/// Which of the eight equal parts of its class a ratio stands in: the three bits below the class's
/// own.
std::size_t part_of_ratio(double ratio) noexcept {
  return static_cast<std::size_t>(std::bit_cast<std::uint64_t>(ratio) >> 48) & 7u;
}

/// Cost of marking which of `atoms` atoms are the `kept_32` / 2^32 expected ones: a bit each, or
/// gaps.
Wide marks_256(std::uint64_t atoms, Wide kept_32) noexcept {
  const Wide bit_map = Wide{atoms} * 256;
  const auto kept = static_cast<std::uint64_t>(kept_32 >> 32);
  if (kept == 0) return kept_32 == 0 ? 0 : std::min(bit_map, Wide{256 * 64});
  // atoms / kept with 32 fraction bits; its logarithm in eighths of an octave, linear between the
  // table's points.
  const auto ratio = static_cast<std::uint64_t>((Wide{atoms} << 32) / kept);
  const auto octave = static_cast<std::uint64_t>(std::bit_width(ratio)) - 33;
  const std::uint64_t mantissa =
      (ratio << (31 - octave)) & 0x7FFFFFFFFFFFFFFFull;  // 63 bits below the leading one
  const std::uint64_t index = octave * 8 + (mantissa >> 60);
  const std::size_t last = std::size(detail::kGapCost256) - 1;
  std::uint64_t each = detail::kGapCost256[last];
  if (index < last) {
    const std::uint64_t from = detail::kGapCost256[index], to = detail::kGapCost256[index + 1];
    each = from + (((to - from) * ((mantissa >> 52) & 0xFFu)) >> 8);
  }
  const Wide segments = (Wide{atoms} + 4095) / 4096;
  return std::min(bit_map, Wide{kept} * each + segments * (32 * 256));
}

Wide layer_bits_256(const PriceLayer& layer, float a) noexcept {
  const auto price = static_cast<double>(a);
  Wide uncertain = 0, certain = 0, kept_32 = 0;
  for (const PriceBin& bin : layer.bins) {
    const double ratio = representative(bin.key) / price;
    if (ratio < 1.0) {
      const std::uint64_t p = detail::probability_of_ratio(ratio);
      uncertain +=
          (Wide{bin.weight} * layer.costs->unit[0][0] + Wide{bin.count} * layer.costs->uncertain) *
          p;
      kept_32 += Wide{bin.count} * p;
    } else {
      const int c = std::min(detail::certain_class(ratio), PriceCosts::kClasses - 1);
      const std::uint32_t unit =
          layer.costs->unit[static_cast<std::size_t>(c)][part_of_ratio(ratio)];
      certain += Wide{bin.weight} * unit + Wide{bin.count} * layer.costs->certain;
      kept_32 += Wide{bin.count} << 32;
    }
  }
  return (uncertain >> 32) + certain + marks_256(layer.atoms, kept_32);
}

std::uint32_t floor_code(std::span<const PriceLayer> layers) noexcept {
  double max_rms = 0;
  for (const PriceLayer& layer : layers) max_rms = std::max(max_rms, layer.max_rms);
  std::uint32_t low = kFirstCode, high = kLastCode;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (max_rms / static_cast<double>(price_of_code(middle)) < detail::kTopRatio) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

float price_of_code(std::uint32_t code) noexcept { return std::bit_cast<float>(code << 16); }

std::uint32_t price_key(double rms) noexcept {
  return std::max(std::bit_cast<std::uint32_t>(static_cast<float>(rms)) >> 16, 1u);
}

std::uint64_t expected_bits_256(std::span<const PriceLayer> layers, float a) noexcept {
  Wide total = 0;
  for (const PriceLayer& layer : layers) total += layer_bits_256(layer, a);
  return static_cast<std::uint64_t>(
      std::min(total, Wide{std::numeric_limits<std::uint64_t>::max()}));
}

float price_floor(std::span<const PriceLayer> layers) noexcept {
  return price_of_code(floor_code(layers));
}

Price find_price(std::span<const PriceLayer> layers, std::uint64_t budget_bits) noexcept {
  bool empty = true;
  for (const PriceLayer& layer : layers) empty = empty && layer.bins.empty();
  if (empty) return {};
  const std::uint64_t budget = budget_bits > std::numeric_limits<std::uint64_t>::max() / 256
                                   ? std::numeric_limits<std::uint64_t>::max()
                                   : budget_bits * 256;
  const std::uint32_t lowest = floor_code(layers);
  std::uint32_t low = lowest, high = kLastCode;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (expected_bits_256(layers, price_of_code(middle)) <= budget) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const float a = price_of_code(low);
  return {a, expected_bits_256(layers, a), low == lowest};
}

}  // namespace atomo::cpu
