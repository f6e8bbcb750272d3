// SPDX-License-Identifier: Apache-2.0
/// Computes from a histogram of magnitudes the expected size and error of coordinates at any grid
/// step, in integers.
#include "price/coordinate_price.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "price/coordinate_levels.hpp"
#include "price/magnitude_histogram.hpp"
#include "price/price_math.hpp"

namespace atomo::price {
namespace {

/// Expected counts of levels, in units.
struct Levels {
  std::array<std::uint64_t, kLevelBins> counts{};
  std::uint32_t end = 1;      ///< bins from here on are empty
  std::uint64_t error16 = 0;  ///< of rounding

  [[nodiscard]] std::uint64_t from(std::uint32_t level) const noexcept {
    std::uint64_t sum = 0;
    for (std::uint32_t b = level; b < end; ++b) sum += counts[b];
    return sum;
  }
  [[nodiscard]] std::uint64_t least_bits_256(std::uint32_t base) const noexcept {
    return least_level_bits_256(
        [&](unsigned k) { return level_bits_256_at(counts, end, base, k); });
  }
};

Levels expected_levels(const MagnitudeHistogram& histogram, double step) noexcept {
  Levels levels;
  const double scale = grid_scale(step);
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    const MagnitudeHistogram::Bin bin = histogram[i];
    const LevelShare share = share_of_bin(bin.bin, scale);
    const std::uint64_t up = bin.count * share.up;
    levels.counts[level_bin(share.level)] += (bin.count << kUnitBits) - up;
    levels.counts[level_bin(share.level + 1)] += up;
    const std::uint64_t part = share.up;
    levels.error16 += bin.count * (part * ((std::uint64_t{1} << kUnitBits) - part) >> kUnitBits);
    levels.end = level_bin(share.level + 1) + 1;  // bins ascend
  }
  return levels;
}

}  // namespace

GridExpected expected_on_grid(ConstBytes demand, float step) noexcept {
  const MagnitudeHistogram histogram(demand);
  if (histogram.size() == 0) return {};
  Levels levels = expected_levels(histogram, step);
  const std::uint64_t n = histogram.entries(), entries = n << kUnitBits;
  GridDemand demanded;
  demanded.entries = n;
  demanded.nonzero = levels.from(1);
  demanded.others = levels.from(2);
  demanded.every_gap = gap_bits_256(demanded.nonzero, entries);
  demanded.ones_gap = gap_bits_256(demanded.nonzero - demanded.others, entries);
  demanded.others_gap = gap_bits_256(demanded.others, entries);
  levels.counts[0] = entries - demanded.nonzero;  // the histogram leaves zeros out
  for (std::uint32_t base = 0; base < 3; ++base)
    demanded.levels_from[base] = levels.least_bits_256(base);
  return {{grid_bits_256(demanded), worth_of_coordinates(demanded.nonzero)}, levels.error16};
}

float step_that_keeps(ConstBytes demand, std::uint64_t keep) noexcept {
  const MagnitudeHistogram histogram(demand);
  if (histogram.size() == 0) return 0;
  std::uint64_t nonzero = 0;
  for (std::size_t i = 0; i < histogram.size(); ++i) nonzero += histogram[i].count;
  KeepSearch search(keep, nonzero);
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    if (search.add(histogram[i].bin, histogram[i].count)) break;
  }
  return search.step();
}

float largest_magnitude(ConstBytes demand) noexcept { return MagnitudeHistogram(demand).largest(); }

float min_grid_step(float largest) noexcept {
  return std::bit_cast<float>(min_step_code(std::fabs(largest)) << 16);
}

}  // namespace atomo::price
