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

#include "atomo/types.hpp"
#include "core/bit_counts.hpp"
#include "core/workspace.hpp"
#include "format/dithered_layer.hpp"

namespace atomo::format {

/// The runs that the units of a body, or the layers of a message, fall into.
struct Runs {
  static constexpr unsigned kMostLog2 = 11;  ///< of a body
  static constexpr std::size_t kMost = std::size_t{1} << kMostLog2;
  std::uint64_t units = 0;
  std::uint32_t log2 = 0;

  [[nodiscard]] static constexpr Runs of(std::uint64_t units) noexcept {
    const auto log2 = static_cast<std::uint32_t>(core::bit_width(units)) - 1;
    return {units, log2 < kMostLog2 ? log2 : kMostLog2};
  }
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return std::uint64_t{1} << log2; }
  /// The first unit of a run; its last is the one before the next run's.
  [[nodiscard]] constexpr std::uint64_t first_unit(std::uint64_t run) const noexcept {
    return units * run >> log2;
  }
  [[nodiscard]] constexpr std::uint64_t run_of(std::uint64_t unit) const noexcept {
    std::uint64_t run = (unit << log2) / units;
    while (run + 1 < count() && first_unit(run + 1) <= unit) ++run;
    return run;
  }
  /// Whether a run is one of the `dropped` ones from `start` on.
  [[nodiscard]] constexpr bool drops(std::uint64_t run, std::uint64_t dropped,
                                     std::uint64_t start) const noexcept {
    return ((run + count() - start) & (count() - 1)) < dropped;
  }
  /// The factor that makes up for `dropped` runs: K / (K - d).
  [[nodiscard]] constexpr float gain(std::uint64_t dropped) const noexcept {
    const auto runs = static_cast<double>(count());
    return static_cast<float>(runs / (runs - static_cast<double>(dropped)));
  }
  /// The run that the draw chooses.
  [[nodiscard]] constexpr std::uint32_t start(std::uint32_t draw) const noexcept {
    return log2 == 0 ? 0 : draw >> (32 - log2);
  }
};

/// What a thinned body starts with, as a u32: log2 K in bits 0-7, d in bits 8-19, the start in bits
/// 20-31.
struct Thinning {
  std::uint32_t runs_log2 = 0, dropped = 0, start = 0;

  [[nodiscard]] constexpr std::uint32_t word() const noexcept {
    return runs_log2 | (dropped << 8) | (start << 20);
  }
  /// False when no encoder writes this word.
  [[nodiscard]] static constexpr bool read(std::uint32_t word, Thinning& thinning) noexcept {
    thinning = {word & 0xFF, (word >> 8) & 0xFFF, word >> 20};
    if (thinning.runs_log2 > Runs::kMostLog2) return false;
    const std::uint32_t runs = 1u << thinning.runs_log2;
    return thinning.dropped >= 1 && thinning.dropped < runs && thinning.start < runs;
  }
  /// K / (K - d).
  [[nodiscard]] constexpr float gain() const noexcept { return Runs{0, runs_log2}.gain(dropped); }
};
inline constexpr std::size_t kThinningBytes = 4;
/// Zero bits at the ends of the sections of a body, at most, and the rounding of its bytes.
inline constexpr std::uint64_t kThinningPaddingBits = 8 * (2 + 2 + 4);

/// A limit (the word included) that suffices whatever the data: the marks and one run.
[[nodiscard]] std::size_t max_thinnest_bytes(const DitheredLayer& layer) noexcept;
[[nodiscard]] std::size_t thinning_workspace_bytes(const DitheredLayer& layer) noexcept;

/// Bytes that `body` can be thinned to whatever is drawn, all runs but one left out; those of
/// `body` where there is one run or that would not be less.
[[nodiscard]] std::size_t thinnest_bytes(ConstBytes body, const DitheredLayer& layer,
                                         Bytes workspace) noexcept;

/// Writes `body` with as few runs left out as `limit` bytes ask for, behind its word. `out` has at
/// least `limit` bytes, `limit` is below the body's size and at least `thinnest_bytes` of it,
/// which `max_thinnest_bytes` bounds.
/// Neither allocates nor synchronises.
Status thin(ConstBytes body, const DitheredLayer& layer, std::size_t limit, const Key& key,
            Bytes out, Bytes workspace, std::size_t& bytes) noexcept;

/// The least number of consecutive runs (cyclic) without which `runs`, of `total` in all, take at
/// most `limit`, whatever the first; their count when there is none.
[[nodiscard]] std::uint64_t min_dropped(std::span<const std::uint64_t> runs, std::uint64_t total,
                                        std::uint64_t limit) noexcept;

}  // namespace atomo::format
