// SPDX-License-Identifier: Apache-2.0
#include "coordinate_price.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "coordinate_format.hpp"
#include "workspace.hpp"

namespace atomo::detail {
namespace {

constexpr std::uint32_t kBins = 0x7F80;       ///< upper 15 bits of finite magnitudes
constexpr std::size_t kSortedEntries = 4096;  ///< below, sorting beats clearing the bins
constexpr std::size_t kHeadBytes = 24;
constexpr unsigned kCountBits = 48;

struct Bin {
  std::uint32_t bin;
  std::uint64_t count;
  /// The middle of the bin, exact.
  [[nodiscard]] double magnitude() const noexcept {
    return static_cast<double>(std::bit_cast<float>(bin << 16 | 0x8000u));
  }
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

void count_by_table(const float* x, std::size_t n, std::span<std::uint64_t> table,
                    HistogramWriter& out) noexcept {
  std::fill(table.begin(), table.end(), 0);
  std::uint64_t zeros = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = magnitude_bits(x[i]);
    ++table[bits >> 16];
    zeros += bits == 0 ? 1 : 0;
  }
  table[0] -= zeros;
  for (std::uint32_t bin = 0; bin < kBins; ++bin) {
    if (table[bin] != 0) out.add(bin, table[bin]);
  }
}

// ---- expected size. Counts are in units of 2^-16 entry.

constexpr unsigned kUnitBits = 16;

/// Levels below 64 one by one, then 8 bins an octave.
constexpr std::uint32_t kExactLevels = 64;
constexpr std::size_t kLevelBins = kExactLevels + (kLevelBits - 6) * 8;

std::size_t level_bin(std::uint32_t level) noexcept {
  if (level < kExactLevels) return level;
  const auto top = static_cast<unsigned>(std::bit_width(level)) - 1;
  return kExactLevels + (top - 6) * 8 + (level >> (top - 3) & 7);
}

/// The middle of a bin.
std::uint32_t level_of_bin(std::size_t bin) noexcept {
  if (bin < kExactLevels) return static_cast<std::uint32_t>(bin);
  const auto at = static_cast<std::uint32_t>(bin - kExactLevels);
  const unsigned top = at / 8 + 6;
  return (8 + at % 8) << (top - 3) | 1u << (top - 4);
}

struct Levels {
  std::array<std::uint64_t, kLevelBins> counts{};
  std::uint64_t entries = 0;
  std::size_t end = 1;  ///< bins from here on are empty

  [[nodiscard]] std::uint64_t from(std::uint32_t level) const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t b = level; b < end; ++b) sum += counts[b];
    return sum;
  }
};

Levels expected_levels(const Histogram& histogram, double step) noexcept {
  Levels levels;
  levels.entries = histogram.entries() << kUnitBits;
  const double scale = grid_scale(step);
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    const Bin bin = histogram[i];
    const std::uint64_t fixed = grid_fixed(bin.magnitude(), scale);
    const auto level =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(fixed >> 32, kMaxLevel - 1));
    const std::uint64_t part = fixed & 0xFFFFFFFFu;
    // count * part < 2^72: the two halves of the count apart.
    const std::uint64_t up =
        ((bin.count >> 20) * part << 4) + ((bin.count & 0xFFFFFu) * part >> kUnitBits);
    levels.counts[level_bin(level)] += (bin.count << kUnitBits) - up;
    levels.counts[level_bin(level + 1)] += up;
    levels.end = level_bin(level + 1) + 1;  // bins ascend
  }
  return levels;
}

/// count * bits256 / 2^16 without overflow: count < 2^57, bits256 < 2^14.
std::uint64_t scaled(std::uint64_t count, std::uint64_t bits256) noexcept {
  return (count >> kUnitBits) * bits256 + ((count & 0xFFFFu) * bits256 >> kUnitBits);
}

/// A gap between entries that are in the list with probability listed / entries each, in 1/256 bit:
/// k + 1 / (1 - (1 - q)^(2^k)) at the best k.
std::uint64_t gap_bits256(std::uint64_t listed, std::uint64_t entries) noexcept {
  constexpr std::uint64_t kOne = std::uint64_t{1} << 32;
  // Both below 2^57: drop bits until the quotient fits.
  const unsigned drop =
      entries >> 31 != 0 ? static_cast<unsigned>(std::bit_width(entries)) - 31 : 0;
  const std::uint64_t density =
      (listed >> drop << 32) / std::max<std::uint64_t>(entries >> drop, 1);
  std::uint64_t out = kOne - std::min(kOne, density);  // (1 - q)^(2^k)
  std::uint64_t best = ~std::uint64_t{0};
  for (unsigned k = 0; k <= kMaxGapRice; ++k) {
    const std::uint64_t within = std::max<std::uint64_t>(kOne - out, 1);
    best = std::min(best, 256 * std::uint64_t{k} + (256 * kOne) / within);
    out = out >= kOne ? out : out * out >> 32;
  }
  return std::min<std::uint64_t>(best, 256 * (kRiceLimit + kGapRawBits));
}

/// Rice of the levels from `base` up, less `base`, at the best parameter; without gaps and signs.
std::uint64_t level_bits256(const Levels& levels, std::uint32_t base) noexcept {
  std::uint64_t best = ~std::uint64_t{0};
  for (unsigned k = 0; k <= kMaxLevelRice; ++k) {
    std::uint64_t sum = 0;
    for (std::size_t b = base; b < levels.end; ++b) {
      if (levels.counts[b] == 0) continue;
      sum += scaled(levels.counts[b], 256 * rice_bits(level_of_bin(b) - base, k, kLevelBits));
    }
    if (sum > best) break;  // convex in k but for rounding
    best = sum;
  }
  return best;
}

}  // namespace

std::size_t magnitude_demand_bytes(std::size_t n) noexcept {
  return kHeadBytes + 8 * std::min<std::size_t>(n, kBins);
}

std::size_t magnitude_scratch_bytes(std::size_t n) noexcept {
  Carver carver;
  if (n <= kSortedEntries) {
    carver.take<std::uint16_t>(n);
  } else {
    carver.take<std::uint64_t>(kBins);
  }
  return carver.bytes();
}

void count_magnitudes(const float* x, std::size_t n, Bytes demand, Bytes scratch) noexcept {
  Carver carver(scratch);
  HistogramWriter out(demand);
  if (n <= kSortedEntries) {
    count_by_sorting(x, n, carver.take<std::uint16_t>(n), out);
  } else {
    count_by_table(x, n, carver.take<std::uint64_t>(kBins), out);
  }
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, magnitude_bits(x[i]));
  out.finish(n, largest);
}

std::uint64_t expected_grid_bits256(ConstBytes demand, float step) noexcept {
  const Histogram histogram(demand);
  if (histogram.size() == 0) return 0;
  const Levels levels = expected_levels(histogram, step);
  const std::uint64_t nonzero = levels.from(1);
  const std::uint64_t others = levels.from(2);
  const std::uint64_t ones = nonzero - others;
  const std::uint64_t segments = std::uint64_t{segments_of(histogram.entries())} << kUnitBits;
  // A segment that keeps nothing has its word and no content; every list has an end mark.
  const std::uint64_t written = std::min(nonzero, segments);
  const std::uint64_t every_gap = gap_bits256(nonzero, levels.entries);
  const std::uint64_t one_list = scaled(nonzero + written, every_gap) + level_bits256(levels, 1);
  const std::uint64_t two_lists = scaled(ones + written, gap_bits256(ones, levels.entries)) +
                                  scaled(others + written, gap_bits256(others, levels.entries)) +
                                  level_bits256(levels, 2);
  Levels all = levels;
  all.counts[0] = levels.entries - nonzero;  // the histogram leaves zeros out
  const std::uint64_t dense = level_bits256(all, 0);
  constexpr std::uint64_t kWord = 32 * 256, kPadding = 4 * 256;
  // A body of which every segment is empty is empty.
  const std::uint64_t words = std::min(segments, nonzero * (segments >> kUnitBits));
  return std::min({one_list, two_lists, dense}) + scaled(nonzero, 256) + scaled(words, kWord) +
         scaled(written, kPadding);
}

float step_that_keeps(ConstBytes demand, std::uint64_t keep) noexcept {
  const Histogram histogram(demand);
  if (histogram.size() == 0) return 0;
  std::uint64_t certain = 0;  // entries above the bins counted so far
  for (std::size_t i = 0; i < histogram.size(); ++i) certain += histogram[i].count;
  if (keep >= certain) return std::bit_cast<float>(histogram[0].bin << 16 | 1u);
  // With the bins up to i uncertain and those above certain, the step must not exceed the next bin.
  double sum = 0, step = 0;
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    const Bin bin = histogram[i];
    sum += bin.magnitude() * static_cast<double>(bin.count);
    certain -= bin.count;
    if (keep <= certain) continue;
    step = sum / static_cast<double>(keep - certain);
    if (i + 1 < histogram.size() && step <= histogram[i + 1].magnitude()) break;
  }
  return static_cast<float>(std::clamp(step, 0x1p-149, kLargest));
}

float largest_magnitude(ConstBytes demand) noexcept { return Histogram(demand).largest(); }

}  // namespace atomo::detail
