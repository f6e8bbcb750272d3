// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A body of chunked top-k (FORMAT.md, "chunked top-k"): its parameters and where its parts stand, for
/// host and device.

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::format {

/// How the kept entries' values are sent.
enum class ChunkValues : std::uint8_t { sign, two, four, eight, f16, f32 };

/// In which order entries stand in chunks, and whether tiles are transformed.
enum class ChunkLayout : std::uint8_t { entries, tiles, dct };

/// How chunked top-k keeps entries and sends them.
struct ChunkConfig {
  static constexpr std::uint32_t kMinChunk = 64, kMaxChunk = 4096, kMinSide = 2, kMaxSide = 64;

  std::uint32_t chunk = kMaxChunk;  ///< entries, a power of two
  std::uint32_t keep = 64;          ///< of a chunk at most, 1 to `chunk`
  ChunkValues values = ChunkValues::two;
  ChunkLayout layout = ChunkLayout::entries;
  std::uint32_t side = 0;  ///< of a tile at most; 0 where there are none
  friend bool operator==(const ChunkConfig&, const ChunkConfig&) = default;
};

[[nodiscard]] constexpr std::uint32_t chunk_params(const ChunkConfig& config) noexcept {
  return static_cast<std::uint32_t>(config.values) | (config.keep - 1) << 3 |
         static_cast<std::uint32_t>(std::countr_zero(config.chunk) - 6) << 15 |
         static_cast<std::uint32_t>(config.layout) << 18 |
         (config.side == 0 ? 0 : config.side - 1) << 20;
}

/// Of valid parameters.
[[nodiscard]] constexpr ChunkConfig chunk_config(std::uint32_t params) noexcept {
  ChunkConfig config;
  config.values = static_cast<ChunkValues>(params & 7u);
  config.keep = (params >> 3 & 0xFFFu) + 1;
  config.chunk = ChunkConfig::kMinChunk << (params >> 15 & 7u);
  config.layout = static_cast<ChunkLayout>(params >> 18 & 3u);
  config.side = config.layout == ChunkLayout::entries ? 0 : (params >> 20 & 0x3Fu) + 1;
  return config;
}

[[nodiscard]] constexpr bool valid_chunk(std::uint32_t params) noexcept {
  const std::uint32_t layout = params >> 18 & 3u, side = params >> 20 & 0x3Fu;
  return (params & 7u) <= 5 && (params >> 15 & 7u) <= 6 && layout <= 2 && params >> 26 == 0 &&
         (layout == 0) == (side == 0) &&
         (params >> 3 & 0xFFFu) < (ChunkConfig::kMinChunk << (params >> 15 & 7u));
}

/// Bits of a value's code.
[[nodiscard]] constexpr unsigned chunk_value_bits(ChunkValues values) noexcept {
  constexpr unsigned kBits[] = {1, 2, 4, 8, 16, 32};
  return kBits[static_cast<unsigned>(values)];
}
/// Words of 16 bits that say what a group's codes mean.
[[nodiscard]] constexpr unsigned chunk_level_words(ChunkValues values) noexcept {
  constexpr unsigned kWords[] = {1, 2, 8, 2, 1, 0};
  return kWords[static_cast<unsigned>(values)];
}

/// Bits of a gap that is written raw: gaps are at most the chunk's entries.
inline constexpr unsigned kRawGapBits = 13;
/// Bits of a gap's word at most (coding/rice.hpp).
inline constexpr unsigned kMaxGapBits = 20 + kRawGapBits;

/// The Rice parameter of the next gap, where `left` entries are left of which `marks` may yet be kept:
/// the logarithm of the mean gap.
[[nodiscard]] ATOMO_HD constexpr unsigned gap_parameter(std::uint32_t left,
                                                        std::uint32_t marks) noexcept {
  const std::uint32_t mean = left > marks ? (left - marks) / (marks + 1) : 0;
  unsigned k = 0;
  for (std::uint32_t rest = mean; rest > 1; rest >>= 1) ++k;
  return k;
}

/// Where the parts of a body of n >= 1 entries stand: lengths, levels, values, gaps. Groups of chunks
/// share levels and a stream of gaps.
struct ChunkBody {
  std::uint64_t n = 0, chunks = 0, groups = 0;
  std::uint32_t chunk = 0, keep = 0, last_entries = 0, last_keep = 0;
  std::uint32_t group_chunks = 0;  ///< of a group but the last
  unsigned value_bits = 0, level_words = 0;
  std::uint64_t levels_at = 0, values_at = 0, gaps_at = 0;  ///< bytes
  std::uint32_t group_value_bytes = 0;                      ///< of a group but the last

  ChunkBody() = default;
  ATOMO_HD constexpr ChunkBody(const ChunkConfig& config, std::uint64_t entries) noexcept
      : n(entries), chunk(config.chunk), keep(config.keep) {
    chunks = (n + chunk - 1) / chunk;
    last_entries = static_cast<std::uint32_t>(n - (chunks - 1) * chunk);
    last_keep = static_cast<std::uint32_t>((std::uint64_t{keep} * last_entries + chunk - 1) / chunk);
    unsigned log = 0;
    while (log < 10 && keep >> (log + 1) != 0) ++log;
    group_chunks = 1u << (10 - log < 8 ? 10 - log : 8);
    groups = (chunks + group_chunks - 1) / group_chunks;
    switch (config.values) {
      case ChunkValues::sign: value_bits = 1, level_words = 1; break;
      case ChunkValues::two: value_bits = 2, level_words = 2; break;
      case ChunkValues::four: value_bits = 4, level_words = 8; break;
      case ChunkValues::eight: value_bits = 8, level_words = 2; break;
      case ChunkValues::f16: value_bits = 16, level_words = 1; break;
      case ChunkValues::f32: value_bits = 32, level_words = 0; break;
    }
    group_value_bytes = value_bytes_of(std::uint64_t{group_chunks} * keep);
    levels_at = whole_words(2 * groups);
    values_at = levels_at + whole_words(2 * groups * level_words);
    gaps_at = values_at + (groups - 1) * group_value_bytes + value_bytes_of(group_slots(groups - 1));
  }

  /// Entries of a chunk, and how many of them may be kept.
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t entries_of(std::uint64_t c) const noexcept {
    return c + 1 == chunks ? last_entries : chunk;
  }
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t keep_of(std::uint64_t c) const noexcept {
    return c + 1 == chunks ? last_keep : keep;
  }
  /// Chunks of a group, and the slots for their values.
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t chunks_of(std::uint64_t g) const noexcept {
    const std::uint64_t left = chunks - g * group_chunks;
    return left < group_chunks ? static_cast<std::uint32_t>(left) : group_chunks;
  }
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t group_slots(std::uint64_t g) const noexcept {
    const std::uint32_t own = chunks_of(g);
    return g + 1 == groups ? (own - 1) * keep + last_keep : own * keep;
  }
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t value_bytes_of(std::uint64_t slots) const noexcept {
    return static_cast<std::uint32_t>((slots * value_bits + 31) / 32 * 4);
  }
  /// Where a group's values stand.
  [[nodiscard]] ATOMO_HD constexpr std::uint64_t values_of(std::uint64_t g) const noexcept {
    return values_at + g * group_value_bytes;
  }
  /// Bytes of a group's gaps at most, and of all bodies.
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t max_gap_bytes() const noexcept {
    const std::uint64_t slots = groups == 1 ? group_slots(0) : std::uint64_t{group_chunks} * keep;
    return static_cast<std::uint32_t>((slots * kMaxGapBits + 7) / 8);
  }
  [[nodiscard]] ATOMO_HD constexpr std::uint64_t max_bytes() const noexcept {
    return gaps_at + groups * max_gap_bytes();
  }

 private:
  [[nodiscard]] static ATOMO_HD constexpr std::uint64_t whole_words(std::uint64_t bytes) noexcept {
    return (bytes + 3) / 4 * 4;
  }
};

}  // namespace atomo::format
