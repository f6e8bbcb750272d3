// SPDX-License-Identifier: Apache-2.0
/// Analyses rows and blocks: the amplitude of every atom, and bins of equal amplitudes for the
/// search for a price. Few amplitudes are sorted, many are counted.
#include "cpu/atoms.hpp"

#include <algorithm>
#include <cmath>

#include "core/workspace.hpp"
#include "cpu/dither_kernels.hpp"
#include "format/atom_body.hpp"
#include "price/atom_costs.hpp"
#include "price/price_math.hpp"

namespace atomo::cpu {
namespace {

constexpr std::size_t kKeys = 0x7F80;  // keys are 1..0x7F7F
/// Keys that span no more are counted. Where they span more, layers of up to as many atoms sort
/// them, and larger ones count all keys.
constexpr std::size_t kNarrow = 4096;

/// What the price search takes for the length of an atom: the last pair of an odd one costs nearly
/// as much as others.
std::uint64_t weight_of(std::uint64_t length) noexcept { return length + length % 2; }

struct AnalyseMemory {
  std::span<std::uint16_t> keys;    ///< of layers that may sort
  std::span<std::uint64_t> counts;  ///< kNarrow, or all keys

  AnalyseMemory(const AtomLayout& layout, Carver& carver) noexcept {
    const bool sorts = layout.count <= kNarrow;
    keys = carver.take<std::uint16_t>(sorts ? layout.count : 0);
    counts = carver.take<std::uint64_t>(sorts ? kNarrow : kKeys);
  }
};

/// Smallest and largest key of the amplitudes above 0; `first` is above `last` when there are none.
struct KeyRange {
  std::uint32_t first = kKeys, last = 0;

  explicit KeyRange(std::span<const double> rms) noexcept {
    for (const double amplitude : rms) {
      if (!(amplitude > 0)) continue;
      const std::uint32_t key = amplitude_key(amplitude);
      first = std::min(first, key);
      last = std::max(last, key);
    }
  }
};

std::size_t sorted_bins(std::span<const double> rms, std::span<std::uint16_t> keys,
                        std::uint64_t weight, std::span<PriceBin> bins) noexcept {
  std::size_t used = 0, n = 0;
  for (const double amplitude : rms) {
    if (amplitude > 0) keys[n++] = static_cast<std::uint16_t>(amplitude_key(amplitude));
  }
  std::sort(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(n));
  for (std::size_t i = 0; i < n; ++i) {
    if (i == 0 || keys[i] != keys[i - 1]) bins[used++] = {0, 0, keys[i]};
    bins[used - 1].count += 1;
    bins[used - 1].weight += weight;
  }
  return used;
}

/// `counts` has a word for each key of the range.
std::size_t counted_bins(std::span<const double> rms, const KeyRange& range,
                         std::span<std::uint64_t> counts, std::uint64_t weight,
                         std::span<PriceBin> bins) noexcept {
  const std::size_t keys = range.last - range.first + 1;
  std::fill_n(counts.begin(), keys, std::uint64_t{0});
  for (const double amplitude : rms) {
    if (amplitude > 0) counts[amplitude_key(amplitude) - range.first] += 1;
  }
  std::size_t used = 0;
  for (std::uint32_t i = 0; i < keys; ++i) {
    if (counts[i] != 0) bins[used++] = {counts[i] * weight, counts[i], range.first + i};
  }
  return used;
}

}  // namespace

std::size_t analyse_workspace_bytes(const AtomLayout& layout) noexcept {
  Carver carver;
  AnalyseMemory(layout, carver);
  return carver.bytes();
}

Status bin_amplitudes(const AtomLayout& layout, const double* rms, std::span<PriceBin> bins,
                      Bytes workspace, AtomAnalysis& found) noexcept {
  found = AtomAnalysis{};
  if (!valid_layout(layout)) return Status::unsupported;
  if (layout.count == 0) return Status::ok;
  Carver carver(workspace);
  const AnalyseMemory memory(layout, carver);
  if (!carver.fits() || bins.size() < max_price_bins(layout)) return Status::workspace_too_small;
  const std::span<const double> all(rms, layout.count);
  for (const double amplitude : all) found.max_rms = std::max(found.max_rms, amplitude);
  const std::uint64_t weight = weight_of(layout.length);
  const KeyRange range(all);
  if (range.first > range.last) return Status::ok;
  const bool counts = range.last - range.first < memory.counts.size();
  const std::size_t used = counts ? counted_bins(all, range, memory.counts, weight, bins)
                                  : sorted_bins(all, memory.keys, weight, bins);
  found.bins = bins.first(used);
  if (rms[layout.count - 1] > 0) {  // the last atom may be shorter
    const std::uint32_t key = amplitude_key(rms[layout.count - 1]);
    const auto at =
        std::lower_bound(bins.begin(), bins.begin() + static_cast<std::ptrdiff_t>(used), key,
                         [](const PriceBin& bin, std::uint32_t k) { return bin.key < k; });
    at->weight -= weight - weight_of(layout.last);
  }
  return Status::ok;
}

Status analyse(const float* x, const AtomLayout& layout, double* rms, std::span<PriceBin> bins,
               Bytes workspace, Executor* executor, AtomAnalysis& found) noexcept {
  found = AtomAnalysis{};
  if (!valid_layout(layout)) return Status::unsupported;
  if (layout.count == 0) return Status::ok;
  found.finite = atom_amplitudes(x, layout, rms, executor);
  return found.finite ? bin_amplitudes(layout, rms, bins, workspace, found) : Status::ok;
}

}  // namespace atomo::cpu
