// SPDX-License-Identifier: Apache-2.0
#include "atomo/selection.hpp"

#include <algorithm>

#include "dither.hpp"

namespace atomo::cpu {

AtomChoice choose_atom(double rms, float price) noexcept {
  const double ratio = rms / static_cast<double>(price);
  if (ratio < 1.0) return {detail::probability_of_ratio(ratio), 0};
  return {0, static_cast<std::uint8_t>(detail::certain_class(ratio))};
}

KeptMask select_chunk(const double* rms, std::size_t count, float price, std::uint32_t u) noexcept {
  KeptMask kept{};
  std::array<std::uint32_t, kSelectionChunk> probability;
  for (std::size_t k = 0; k < count; ++k) {
    const double ratio = rms[k] / static_cast<double>(price);
    const bool certain = ratio >= 1.0;
    const std::uint32_t p = detail::probability_of_ratio(certain ? 0.5 : ratio);
    probability[k] = rms[k] > 0 && !certain ? p : 0u;
    kept[k / 64] |= std::uint64_t{certain} << (k % 64);
  }
  // Places beyond a short chunk are skipped: the order stays that of the full chunk.
  std::uint32_t sum = u;
  for (std::size_t i = 0; i < kSelectionChunk; ++i) {
    const std::size_t k = i * kSelectionStride % kSelectionChunk;
    if (k >= count) continue;
    const std::uint32_t next = sum + probability[k];
    kept[k / 64] |= std::uint64_t{next < sum} << (k % 64);
    sum = next;
  }
  return kept;
}

}  // namespace atomo::cpu
