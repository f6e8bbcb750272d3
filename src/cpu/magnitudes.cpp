// SPDX-License-Identifier: Apache-2.0
/// A pass over the entries: a stretch is scanned, then counted while it is in the L1 cache. Entries of
/// even and of odd places have tables of their own, so that neighbours of one bin do not wait for
/// each other.
#include "cpu/magnitudes.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <span>

#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "price/magnitude_histogram.hpp"

namespace atomo::cpu {
namespace {

using Table = std::uint32_t;

constexpr std::size_t kSortedEntries = 4096;  ///< below, sorting beats clearing the bins
/// Of as many entries, each quarter is counted in tables of its own.
constexpr std::size_t kQuarteredEntries = std::size_t{1} << 18;
constexpr std::size_t kStretch = 8192;                       ///< entries
constexpr std::size_t kTableEntries = std::size_t{1} << 32;  ///< of one part, half of them a table
constexpr std::size_t kBins = 0x8000;                        ///< those of Inf and NaN too
constexpr std::size_t kPartWords = 2 * kBins;

std::size_t parts_of(std::size_t n) noexcept {
  return n < kQuarteredEntries ? 1 : std::max<std::size_t>(4, n / kTableEntries + 1);
}

void count_by_sorting(const float* x, std::size_t n, std::span<std::uint16_t> bins,
                      MagnitudeHistogramWriter& out) noexcept {
  std::size_t used = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu;
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

/// Two entries at a time, as a word of 64 bits.
void count_stretch(const float* x, std::size_t n, Table* even, Table* odd) noexcept {
  const auto bin = [](std::uint64_t bits) { return bits & 0x7FFFu; };
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    std::uint64_t first, second;
    std::memcpy(&first, x + i, 8);
    std::memcpy(&second, x + i + 2, 8);
    ++even[bin(first >> 16)];
    ++odd[bin(first >> 48)];
    ++even[bin(second >> 16)];
    ++odd[bin(second >> 48)];
  }
  for (; i < n; ++i) ++even[bin(std::bit_cast<std::uint32_t>(x[i]) >> 16)];
}

EntryScan merged(const EntryScan& a, const EntryScan& b) noexcept {
  return {a.finite && b.finite, a.zeros + b.zeros, std::max(a.largest, b.largest)};
}

EntryScan count_part(const float* x, std::size_t n, std::span<Table> tables) noexcept {
  std::fill(tables.begin(), tables.end(), Table{0});
  EntryScan found;
  for (std::size_t at = 0; at < n; at += kStretch) {
    const std::size_t count = std::min(kStretch, n - at);
    found = merged(found, scan_entries(x + at, count, nullptr));
    count_stretch(x + at, count, tables.data(), tables.data() + kBins);
  }
  return found;
}

EntryScan count_by_table(const float* x, std::size_t n, std::span<Table> tables,
                         std::span<EntryScan> scans, MagnitudeHistogramWriter& out,
                         Executor* executor) noexcept {
  const std::size_t each = (n + scans.size() - 1) / scans.size();
  std::fill(scans.begin(), scans.end(), EntryScan{});
  run_ranges(executor, n, each, [&](std::size_t begin, std::size_t end) {
    const std::size_t part = begin / each;
    scans[part] = count_part(x + begin, end - begin, tables.subspan(part * kPartWords, kPartWords));
  });
  EntryScan found;
  std::size_t used = 0;
  for (std::size_t begin = 0; begin < n; begin += each) found = merged(found, scans[used++]);
  for (std::uint32_t bin = 0; bin < kMagnitudeBins; ++bin) {
    std::uint64_t sum = 0;
    for (std::size_t t = 0; t < 2 * used; ++t) sum += tables[t * kBins + bin];
    if (bin == 0) sum -= found.zeros;
    if (sum != 0) out.add(bin, sum);
  }
  return found;
}

}  // namespace

std::size_t magnitude_scratch_bytes(std::size_t n) noexcept {
  Carver carver;
  if (n <= kSortedEntries) {
    carver.take<std::uint16_t>(n);
  } else {
    carver.take<Table>(parts_of(n) * kPartWords);
    carver.take<EntryScan>(parts_of(n));
  }
  return carver.bytes();
}

EntryScan count_magnitudes(const float* x, std::size_t n, Bytes histogram, Bytes scratch,
                           Executor* executor) noexcept {
  Carver carver(scratch);
  MagnitudeHistogramWriter out(histogram);
  EntryScan found;
  if (n <= kSortedEntries) {
    found = scan_entries(x, n, executor);
    if (found.finite) count_by_sorting(x, n, carver.take<std::uint16_t>(n), out);
  } else {
    const auto tables = carver.take<Table>(parts_of(n) * kPartWords);
    found = count_by_table(x, n, tables, carver.take<EntryScan>(parts_of(n)), out, executor);
  }
  out.finish(n, found.largest);
  return found;
}

}  // namespace atomo::cpu
