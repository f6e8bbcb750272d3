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
/// Layers of up to this many atoms sort their keys, larger ones count them.
constexpr std::uint64_t kSortedAtoms = 4096;

/// What the price search takes for the length of an atom: the last pair of an odd one costs nearly
/// as much as others.
std::uint64_t weight_of(std::uint64_t length) noexcept { return length + length % 2; }

struct AnalyseMemory {
  std::span<std::uint16_t> keys;
  std::span<std::uint64_t> counts;

  AnalyseMemory(const AtomLayout& layout, Carver& carver) noexcept {
    if (layout.count <= kSortedAtoms) {
      keys = carver.take<std::uint16_t>(layout.count);
    } else {
      counts = carver.take<std::uint64_t>(kKeys);
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

std::size_t counted_bins(std::span<const double> rms, std::span<std::uint64_t> counts,
                         std::uint64_t weight, std::span<PriceBin> bins) noexcept {
  std::fill(counts.begin(), counts.end(), std::uint64_t{0});
  for (const double amplitude : rms) {
    if (amplitude > 0) counts[amplitude_key(amplitude)] += 1;
  }
  std::size_t used = 0;
  for (std::uint32_t key = 1; key < kKeys; ++key) {
    if (counts[key] != 0) bins[used++] = {counts[key] * weight, counts[key], key};
  }
  return used;
}

}  // namespace

std::size_t analyse_workspace_bytes(const AtomLayout& layout) noexcept {
  Carver carver;
  AnalyseMemory(layout, carver);
  return carver.bytes();
}

Status analyse(const float* x, const AtomLayout& layout, double* rms, std::span<PriceBin> bins,
               Bytes workspace, AtomAnalysis& found) noexcept {
  found = AtomAnalysis{};
  if (!valid_layout(layout)) return Status::unsupported;
  if (layout.count == 0) return Status::ok;
  Carver carver(workspace);
  const AnalyseMemory memory(layout, carver);
  if (!carver.fits() || bins.size() < max_price_bins(layout)) return Status::workspace_too_small;
  const double energy = atom_amplitudes(x, layout, rms);
  // Sums of squares of finite f32 cannot overflow f64, so the sum tells.
  found.finite = std::isfinite(energy);
  if (!found.finite) return Status::ok;
  const std::span<const double> all(rms, layout.count);
  for (const double amplitude : all) found.max_rms = std::max(found.max_rms, amplitude);
  const std::uint64_t weight = weight_of(layout.length);
  const std::size_t used = memory.counts.empty() ? sorted_bins(all, memory.keys, weight, bins)
                                                 : counted_bins(all, memory.counts, weight, bins);
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

}  // namespace atomo::cpu
