// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A body of chunked top-k (FORMAT.md, "chunked top-k"): its parameters and where its parts stand, for
/// host and device.

#include <bit>
#include <cstdint>

#include "core/bit_counts.hpp"
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
  bool draws = false;      ///< entries are drawn, not the largest; decoding is the same
  friend bool operator==(const ChunkConfig&, const ChunkConfig&) = default;
};

[[nodiscard]] constexpr std::uint32_t chunk_params(const ChunkConfig& config) noexcept {
  return static_cast<std::uint32_t>(config.values) | (config.keep - 1) << 3 |
         static_cast<std::uint32_t>(core::countr_zero(config.chunk) - 6) << 15 |
         static_cast<std::uint32_t>(config.layout) << 18 |
         (config.side == 0 ? 0 : config.side - 1) << 20 | (config.draws ? 1u : 0u) << 26;
}

/// Of valid parameters.
[[nodiscard]] constexpr ChunkConfig chunk_config(std::uint32_t params) noexcept {
  ChunkConfig config;
  config.values = static_cast<ChunkValues>(params & 7u);
  config.keep = (params >> 3 & 0xFFFu) + 1;
  config.chunk = ChunkConfig::kMinChunk << (params >> 15 & 7u);
  config.layout = static_cast<ChunkLayout>(params >> 18 & 3u);
  config.side = config.layout == ChunkLayout::entries ? 0 : (params >> 20 & 0x3Fu) + 1;
  config.draws = (params >> 26 & 1u) != 0;
  return config;
}

[[nodiscard]] constexpr bool valid_chunk(std::uint32_t params) noexcept {
  const std::uint32_t layout = params >> 18 & 3u, side = params >> 20 & 0x3Fu;
  return (params & 7u) <= 5 && (params >> 15 & 7u) <= 6 && layout <= 2 && params >> 27 == 0 &&
         (layout == 0) == (side == 0) &&
         (params >> 3 & 0xFFFu) < (ChunkConfig::kMinChunk << (params >> 15 & 7u));
}

/// Bits of a value's code, its sign included.
[[nodiscard]] ATOMO_HD constexpr unsigned chunk_value_bits(ChunkValues values) noexcept {
  return 1u << static_cast<unsigned>(values);
}
/// Words of 16 bits that say what a group's codes mean.
[[nodiscard]] ATOMO_HD constexpr unsigned chunk_level_words(ChunkValues values) noexcept {
  switch (values) {
    case ChunkValues::two:
      return 3;
    case ChunkValues::four:
      return 8;
    case ChunkValues::eight:
      return 2;
    case ChunkValues::f32:
      return 0;
    default:
      return 1;
  }
}
/// Bins whose means are sent.
[[nodiscard]] ATOMO_HD constexpr unsigned chunk_bins(ChunkValues values) noexcept {
  return values == ChunkValues::sign ? 1 : values == ChunkValues::two ? 2 : 8;
}

/// Bits of a gap that is written raw: gaps are at most the chunk's entries.
inline constexpr unsigned kRawGapBits = 13;

/// The Rice parameter of the next gap, where `left` entries are left of which `marks` may yet be kept:
/// the logarithm of the mean gap, rounded down twice. Without a division: decoders wait for it.
[[nodiscard]] ATOMO_HD constexpr unsigned gap_parameter(std::uint32_t left,
                                                        std::uint32_t marks) noexcept {
  const std::uint32_t others = left - marks, gaps = marks + 1;
  if (left <= marks || others < gaps) return 0;
  const auto digits = static_cast<unsigned>(core::bit_width(others) - core::bit_width(gaps));
  return gaps << digits <= others ? digits : digits - 1;
}

/// The same from the exponents of f32: a GPU counts zeros more slowly than it adds. `left` and `marks` are
/// below 2^22.
[[nodiscard]] ATOMO_HD constexpr unsigned gap_parameter_of_floats(std::uint32_t left,
                                                                  std::uint32_t marks) noexcept {
  constexpr std::uint32_t kUnits = 0x4B000000;  // 2^23, whose last bit is worth 1
  const auto float_of = [](std::uint32_t x) {
    return std::bit_cast<std::uint32_t>(std::bit_cast<float>(kUnits + x) - 8388608.0F);
  };
  const auto gaps = static_cast<std::int32_t>(marks + 1);
  const auto others = static_cast<std::int32_t>(left - marks);
  return (float_of(static_cast<std::uint32_t>(others > gaps ? others : gaps)) -
          float_of(static_cast<std::uint32_t>(gaps))) >>
         23;
}

/// Bits of the gaps of a chunk at most, and of those of the slots of a group that are in the upper bin.
/// Found by trying all gaps of up to 4,096 entries, from the last one back.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t max_chunk_gap_bits(std::uint32_t entries,
                                                                  std::uint32_t marks) noexcept {
  unsigned log = 0;
  while (entries >> (log + 1) >= marks) ++log;
  return (3 * marks * (log + 3) + 1) / 2;
}
[[nodiscard]] ATOMO_HD constexpr std::uint32_t max_upper_gap_bits(std::uint32_t slots) noexcept {
  return 2 * slots;
}

/// Where the parts of a body of n >= 1 entries stand: lengths, levels, values, gaps. Groups of chunks
/// share levels and a stream of gaps.
struct ChunkBody {
  static constexpr std::uint32_t kMaxGroup = 256;  ///< chunks

  std::uint64_t n = 0, chunks = 0, groups = 0;
  std::uint32_t chunk = 0, keep = 0, last_entries = 0, last_keep = 0;
  std::uint32_t group_chunks = 0;  ///< of a group but the last
  unsigned value_bits = 0;         ///< in a group's slots
  unsigned level_words = 0;
  bool lists_upper = false;  ///< which slots are in the upper of two bins stands behind the gaps
  std::uint64_t levels_at = 0, values_at = 0, gaps_at = 0;  ///< bytes
  std::uint32_t group_value_bytes = 0;                      ///< of a group but the last

  ChunkBody() = default;
  ATOMO_HD constexpr ChunkBody(const ChunkConfig& config, std::uint64_t entries) noexcept
      : n(entries), chunk(config.chunk), keep(config.keep) {
    chunks = (n + chunk - 1) / chunk;
    last_entries = static_cast<std::uint32_t>(n - (chunks - 1) * chunk);
    last_keep =
        static_cast<std::uint32_t>((std::uint64_t{keep} * last_entries + chunk - 1) / chunk);
    unsigned log = 0;
    while (log < 10 && keep >> (log + 1) != 0) ++log;
    group_chunks = 1u << (10 - log < 8 ? 10 - log : 8);
    groups = (chunks + group_chunks - 1) / group_chunks;
    lists_upper = config.values == ChunkValues::two;
    value_bits = lists_upper ? 1 : chunk_value_bits(config.values);
    level_words = chunk_level_words(config.values);
    group_value_bytes = value_bytes_of(std::uint64_t{group_chunks} * keep);
    levels_at = whole_words(2 * groups);
    values_at = levels_at + whole_words(2 * groups * level_words);
    gaps_at =
        values_at + (groups - 1) * group_value_bytes + value_bytes_of(group_slots(groups - 1));
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
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t value_bytes_of(
      std::uint64_t slots) const noexcept {
    return static_cast<std::uint32_t>((slots * value_bits + 31) / 32 * 4);
  }
  /// Where a group's values stand.
  [[nodiscard]] ATOMO_HD constexpr std::uint64_t values_of(std::uint64_t g) const noexcept {
    return values_at + g * group_value_bytes;
  }
  /// Bytes of a group's gaps at most, and of all bodies.
  [[nodiscard]] ATOMO_HD constexpr std::uint32_t max_gap_bytes() const noexcept {
    const std::uint32_t own = chunks_of(0);
    const std::uint64_t bits = std::uint64_t{own} * max_chunk_gap_bits(chunk, keep) +
                               (lists_upper ? max_upper_gap_bits(group_slots(0)) : 0);
    return static_cast<std::uint32_t>((bits + 7) / 8);
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
