// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A hard cap on the size of a layer of dithered atoms, without bias (FORMAT.md, "Thinning").
///
/// The kept atoms of a finished body form K runs. d consecutive runs (cyclic) from a uniform start
/// are left out, d the least such that every start fits, and the others are scaled by K / (K - d).
/// Whatever d came out to be, a run is left out with probability d / K exactly, so the estimate
/// stays unbiased (the tower rule); drawing again would not be.

#include <cstddef>
#include <cstdint>

#include "atomo/atoms.hpp"
#include "atomo/types.hpp"

namespace atomo::detail {

/// What a thinned body starts with, as a u32: log2 K in bits 0-7, d in bits 8-19, the start in bits
/// 20-31.
struct Thinning {
  static constexpr unsigned kMostRunsLog2 = 11;
  std::uint32_t runs_log2 = 0, dropped = 0, start = 0;

  [[nodiscard]] std::uint32_t word() const noexcept {
    return runs_log2 | (dropped << 8) | (start << 20);
  }
  /// False when no encoder writes this word.
  [[nodiscard]] static constexpr bool read(std::uint32_t word, Thinning& thinning) noexcept {
    thinning = {word & 0xFF, (word >> 8) & 0xFFF, word >> 20};
    if (thinning.runs_log2 > kMostRunsLog2) return false;
    const std::uint32_t runs = 1u << thinning.runs_log2;
    return thinning.dropped >= 1 && thinning.dropped < runs && thinning.start < runs;
  }
  /// K / (K - d).
  [[nodiscard]] constexpr float gain() const noexcept {
    const auto runs = static_cast<double>(std::uint64_t{1} << runs_log2);
    return static_cast<float>(runs / (runs - static_cast<double>(dropped)));
  }
};
inline constexpr std::size_t kThinningBytes = 4;

/// A limit (the word included) that suffices whatever the data: the marks and one run.
[[nodiscard]] std::size_t least_thinned_bytes(const AtomLayout& layout) noexcept;
[[nodiscard]] std::size_t thinning_workspace_bytes(const AtomLayout& layout) noexcept;

/// Writes `body` with as few runs left out as `limit` bytes ask for, behind its word. `out` has at
/// least `limit` bytes, `limit` is below the body's size and at least `least_thinned_bytes`.
/// Neither allocates nor synchronises.
Status thin(ConstBytes body, const AtomLayout& layout, std::size_t limit, const Key& key, Bytes out,
            Bytes workspace, std::size_t& bytes) noexcept;

}  // namespace atomo::detail
