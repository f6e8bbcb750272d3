// SPDX-License-Identifier: Apache-2.0
/// Counts magnitudes into a histogram and computes from it the expected size and error of
/// coordinates at any grid step, in integers.
#include "price/coordinate_price.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>

#include "core/bits.hpp"
#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "price/coordinate_levels.hpp"
#include "price/price_math.hpp"

namespace atomo::price {
namespace {

constexpr std::size_t kSortedEntries = 4096;  ///< below, sorting beats clearing the bins
/// Of as many entries, each quarter is counted in a table of its own.
constexpr std::size_t kQuarteredEntries = std::size_t{1} << 18;
constexpr std::size_t kHeadBytes = 24;
constexpr unsigned kCountBits = 48;

struct Bin {
  std::uint32_t bin;
  std::uint64_t count;
};

/// The demand's bytes: u64 bins, u64 n, u32 bits of the largest magnitude, u32 0, then a u64 a bin.
class Histogram {
 public:
  explicit Histogram(ConstBytes bytes) noexcept : data_(bytes.data()) {}
  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(load_le<std::uint64_t>(data_));
  }
  [[nodiscard]] std::uint64_t entries() const noexcept { return load_le<std::uint64_t>(data_ + 8); }
  [[nodiscard]] float largest() const noexcept {
    return std::bit_cast<float>(load_le<std::uint32_t>(data_ + 16));
  }
  [[nodiscard]] Bin operator[](std::size_t i) const noexcept {
    const auto word = load_le<std::uint64_t>(data_ + kHeadBytes + 8 * i);
    return {static_cast<std::uint32_t>(word >> kCountBits),
            word & ((std::uint64_t{1} << kCountBits) - 1)};
  }

 private:
  const std::byte* data_;
};

/// Appends bins to a demand, in ascending order; zero entries are left out.
class HistogramWriter {
 public:
  explicit HistogramWriter(Bytes bytes) noexcept : data_(bytes.data()) {}
  void add(std::uint32_t bin, std::uint64_t count) noexcept {
    store_le(data_ + kHeadBytes + 8 * size_++, std::uint64_t{bin} << kCountBits | count);
  }
  void finish(std::uint64_t entries, std::uint32_t largest) noexcept {
    store_le(data_, std::uint64_t{size_});
    store_le(data_ + 8, entries);
    store_le(data_ + 16, std::uint64_t{largest});
  }

 private:
  std::byte* data_;
  std::size_t size_ = 0;
};

std::uint32_t magnitude_bits(float x) noexcept {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
}

void count_by_sorting(const float* x, std::size_t n, std::span<std::uint16_t> bins,
                      HistogramWriter& out) noexcept {
  std::size_t used = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = magnitude_bits(x[i]);
    if (bits != 0) bins[used++] = static_cast<std::uint16_t>(bits >> 16);
  }
  std::sort(bins.begin(), bins.begin() + static_cast<std::ptrdiff_t>(used));
  for (std::size_t i = 0; i < used;) {
    std::size_t end = i;
    while (end < used && bins[end] == bins[i]) ++end;
    out.add(bins[i], end - i);
    i = end;
  }
}

std::size_t table_words(std::size_t n) noexcept {
  return kMagnitudeBins * (n < kQuarteredEntries ? 1 : 4);
}

void count_by_table(const float* x, std::size_t n, std::span<std::uint64_t> tables,
                    HistogramWriter& out, Executor* executor) noexcept {
  const std::size_t count = tables.size() / kMagnitudeBins, each = (n + count - 1) / count;
  run_ranges(executor, n, each, [&](std::size_t begin, std::size_t end) {
    const auto table = tables.subspan(begin / each * kMagnitudeBins, kMagnitudeBins);
    std::fill(table.begin(), table.end(), 0);
    std::uint64_t zeros = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t bits = magnitude_bits(x[i]);
      ++table[bits >> 16];
      zeros += bits == 0 ? 1 : 0;
    }
    table[0] -= zeros;
  });
  for (std::uint32_t bin = 0; bin < kMagnitudeBins; ++bin) {
    std::uint64_t sum = 0;
    for (std::size_t t = 0; t < count; ++t) sum += tables[t * kMagnitudeBins + bin];
    if (sum != 0) out.add(bin, sum);
  }
}

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
        [&](unsigned k) { return level_bits_256_at(counts.data(), end, base, k); });
  }
};

Levels expected_levels(const Histogram& histogram, double step) noexcept {
  Levels levels;
  const double scale = grid_scale(step);
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    const Bin bin = histogram[i];
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

std::size_t magnitude_demand_bytes(std::size_t n) noexcept {
  return kHeadBytes + 8 * std::min<std::size_t>(n, kMagnitudeBins);
}

std::size_t magnitude_scratch_bytes(std::size_t n) noexcept {
  Carver carver;
  if (n <= kSortedEntries) {
    carver.take<std::uint16_t>(n);
  } else {
    carver.take<std::uint64_t>(table_words(n));
  }
  return carver.bytes();
}

void count_magnitudes(const float* x, std::size_t n, Bytes demand, Bytes scratch,
                      Executor* executor) noexcept {
  Carver carver(scratch);
  HistogramWriter out(demand);
  if (n <= kSortedEntries) {
    count_by_sorting(x, n, carver.take<std::uint16_t>(n), out);
  } else {
    count_by_table(x, n, carver.take<std::uint64_t>(table_words(n)), out, executor);
  }
  std::atomic<std::uint32_t> largest{0};
  run_ranges(executor, n, kQuarteredEntries, [&](std::size_t begin, std::size_t end) {
    std::uint32_t own = 0;
    for (std::size_t i = begin; i < end; ++i) own = std::max(own, magnitude_bits(x[i]));
    std::uint32_t found = largest;
    while (own > found && !largest.compare_exchange_weak(found, own)) {
    }
  });
  out.finish(n, largest);
}

GridExpected expected_on_grid(ConstBytes demand, float step) noexcept {
  const Histogram histogram(demand);
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
  const Histogram histogram(demand);
  if (histogram.size() == 0) return 0;
  std::uint64_t nonzero = 0;
  for (std::size_t i = 0; i < histogram.size(); ++i) nonzero += histogram[i].count;
  KeepSearch search(keep, nonzero);
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    if (search.add(histogram[i].bin, histogram[i].count)) break;
  }
  return search.step();
}

float largest_magnitude(ConstBytes demand) noexcept { return Histogram(demand).largest(); }

float min_grid_step(float largest) noexcept {
  return std::bit_cast<float>(min_step_code(std::fabs(largest)) << 16);
}

}  // namespace atomo::price
