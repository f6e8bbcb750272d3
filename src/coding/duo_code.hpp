// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The static prefix code of two dithered entries (tools/make_duo_code.py explains the model and
/// the tables).
///
/// A word stands for a cell (h0, h1) of a table, at the dither level of the pair's first entry.
/// Steps finer than the finest table send q = 2^raw h + l - 2^(raw-1): h by the table, then l of
/// the first entry and l of the second in `raw` bits each. Any other pair is sent by the escape
/// word of its level, then q0 and q1 in two's complement of `escape_bits` bits each.
///
/// Words and numbers stand in streams of either direction (core/bits.hpp).

#include <cmath>
#include <cstdint>

#include "coding/duo_code_tables.hpp"
#include "core/bits.hpp"
#include "core/host_device.hpp"
#include "math/centroids.hpp"

namespace atomo::coding {

/// Escaped integers are in [-2^25, 2^25): 32 q + 15 is an i32 and two of them fit one
/// `BitWriter::put`.
inline constexpr unsigned kMaxEscapeBits = 26;
/// Vectors (rows, blocks, factors) have at most this many entries, so that every class's escapes
/// fit.
inline constexpr std::uint64_t kMaxVectorEntries = std::uint64_t{1} << 22;

/// Bits of an escaped integer for a vector of `entries` entries whose content has an rms of at most
/// `reach` steps: the smallest w with 2^w >= 2 reach sqrt(entries) + 6.
///
/// That suffices: |x| <= ||x|| = sqrt(entries) * rms, so y = x / step has |y| <= Y = reach *
/// sqrt(entries) (every reach carries a margin of 2^-10, roundings are below 2^-20), q = floor(y +
/// u) with 0 <= u < 1 lies in [-Y - 1, Y + 1], one more when fma rounds up to an integer, and
/// 2^(w-1) >= Y + 3. The product and the root are IEEE f64.
[[nodiscard]] ATOMO_HD inline unsigned escape_bits(std::uint64_t entries, double reach) noexcept {
  const double bound = 2.0 * (std::sqrt(static_cast<double>(entries)) * reach) + 6.0;
  unsigned w = 3;
  while (w < kMaxEscapeBits && static_cast<double>(std::uint64_t{1} << w) < bound) ++w;
  return w;
}

/// One coding step as the loops use it.
struct DuoCoding {
  const std::uint32_t*
      encode;  ///< [level & level_mask][h0 + 2^(width-1)][h1 + 2^(width-1)], see EncodeEntry
  /// By direction: [level & level_mask & 7][the next `limit` bits], see DecodeEntry; of an upward
  /// stream the first bit is the lowest, of a downward one the highest.
  const std::uint16_t* decode[2];
  std::uint32_t decode_begin;  ///< of both among all tables of their direction
  std::uint32_t level_mask;    ///< 15, or 0 when all levels share a code
  std::uint32_t width, limit, raw, escape_bits;
  /// Of the centroids of a centred layer, in 32nds of a step; kDithered in any other.
  std::int32_t offset;

  [[nodiscard]] bool centred() const noexcept { return offset >= 0; }
};

/// Entries of `encode`. Cells that are sent as escapes have the escape word; cell 0 is one.
struct EncodeEntry {
  static constexpr std::uint32_t kEscape = 0x80000000u;
  static constexpr unsigned kDownwardShift = 16, kLengthShift = 27;
  static constexpr std::uint32_t kWord = 0x7FFu, kLength = 15;

  /// `word` has its first bit lowest, `downward` highest.
  [[nodiscard]] static constexpr std::uint32_t of(std::uint32_t word, std::uint32_t downward,
                                                  unsigned length) noexcept {
    return word | downward << kDownwardShift | length << kLengthShift;
  }
  template <Direction kDirection>
  [[nodiscard]] static constexpr std::uint32_t word(std::uint32_t entry) noexcept {
    return (kDirection == Direction::upward ? entry : entry >> kDownwardShift) & kWord;
  }
  [[nodiscard]] static constexpr unsigned length(std::uint32_t entry) noexcept {
    return entry >> kLengthShift & kLength;
  }
};

/// Entries of `decode`: six bits that say how far a window of 64 bits is shifted past the word, then
/// h0 + 16 and h1 + 16 in five bits each. The escape word's shift is 48 too large.
struct DecodeEntry {
  static constexpr std::uint32_t kShift = 63, kEscape = 48, kLength = 15;
  static constexpr unsigned kFirstShift = 6, kSecondShift = 11;
  static constexpr std::int32_t kCentre = 16;

  [[nodiscard]] static constexpr std::uint32_t of(unsigned length, std::int32_t h0,
                                                  std::int32_t h1) noexcept {
    return length | static_cast<std::uint32_t>(h0 + kCentre) << kFirstShift |
           static_cast<std::uint32_t>(h1 + kCentre) << kSecondShift;
  }
  [[nodiscard]] static constexpr bool escaped(std::uint32_t entry) noexcept {
    return (entry & kEscape) == kEscape;
  }
  [[nodiscard]] static constexpr std::int32_t first(std::uint32_t entry) noexcept {
    return static_cast<std::int32_t>(entry >> kFirstShift & 31u) - kCentre;
  }
  [[nodiscard]] static constexpr std::int32_t second(std::uint32_t entry) noexcept {
    return static_cast<std::int32_t>(entry >> kSecondShift) - kCentre;
  }
};

/// `step` indexes kCodingSteps. The tables are built at the first call, into static storage.
[[nodiscard]] DuoCoding duo_coding(std::size_t step, unsigned escape_bits,
                                   bool centred = false) noexcept;

/// Longest way to send a pair: its escape or its longest word with raw bits.
[[nodiscard]] inline unsigned max_duo_bits(std::size_t step, unsigned escape_bits) noexcept {
  const CodingStep& s = kCodingSteps[step];
  const unsigned tail = s.raw > escape_bits ? s.raw : escape_bits;
  return kCodeLengths[s.table].limit + 2 * tail;
}

/// `entry` is that of the pair; `q0` and `q1` fit in `coding.escape_bits` bits. In line, for a call
/// would keep a writer out of registers.
template <Direction kDirection>
[[gnu::always_inline]] inline void put_duo(DirectedBitWriter<kDirection>& out,
                                           const DuoCoding& coding, std::uint32_t entry,
                                           std::int32_t q0, std::int32_t q1) noexcept {
  out.put(EncodeEntry::word<kDirection>(entry), EncodeEntry::length(entry));
  const bool escaped = (entry & EncodeEntry::kEscape) != 0;
  const unsigned bits = escaped ? coding.escape_bits : coding.raw;
  if (bits == 0) return;
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const std::int32_t shift = escaped ? 0 : static_cast<std::int32_t>((1u << coding.raw) >> 1);
  const std::uint64_t low0 = static_cast<std::uint32_t>(q0 + shift) & mask;
  const std::uint64_t low1 = static_cast<std::uint32_t>(q1 + shift) & mask;
  out.put(kDirection == Direction::upward ? low0 | (low1 << bits) : (low0 << bits) | low1,
          2 * bits);
}

/// The entry of a pair in `coding.encode`.
[[nodiscard]] inline std::uint32_t duo_entry(const DuoCoding& coding, std::uint32_t level,
                                             std::int32_t q0, std::int32_t q1) noexcept {
  const std::int32_t centre = static_cast<std::int32_t>((1u << coding.raw) >> 1),
                     half = 1 << (coding.width - 1);
  const auto i0 = static_cast<std::uint32_t>(((q0 + centre) >> coding.raw) + half);
  const auto i1 = static_cast<std::uint32_t>(((q1 + centre) >> coding.raw) + half);
  const std::uint32_t cell = ((i0 | i1) >> coding.width) != 0 ? 0 : (i0 << coding.width) | i1;
  return coding.encode[((level & coding.level_mask) << (2 * coding.width)) | cell];
}

struct DecodedDuo {
  std::int32_t q0, q1;
};

/// The two numbers of `bits` bits, at least one, that begin a window.
template <Direction kDirection>
[[nodiscard]] constexpr DecodedDuo two_numbers(std::uint64_t window, unsigned bits) noexcept {
  if constexpr (kDirection == Direction::upward) {
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    return {static_cast<std::int32_t>(window & mask),
            static_cast<std::int32_t>(window >> bits & mask)};
  }
  return {static_cast<std::int32_t>(window >> (64 - bits)),
          static_cast<std::int32_t>(window << bits >> (64 - bits))};
}

/// The index within a level of the word that begins a window of a stream.
template <Direction kDirection>
[[nodiscard]] constexpr std::uint32_t word_index(std::uint64_t window, unsigned limit) noexcept {
  return static_cast<std::uint32_t>(kDirection == Direction::upward
                                        ? window & ((std::uint64_t{1} << limit) - 1)
                                        : window >> (64 - limit));
}

/// What is left of a window behind its first bits.
template <Direction kDirection>
[[nodiscard]] constexpr std::uint64_t behind(std::uint64_t window, unsigned bits) noexcept {
  return kDirection == Direction::upward ? window >> bits : window << bits;
}

/// Moves along a stream.
template <Direction kDirection>
[[nodiscard]] constexpr std::uint64_t moved(std::uint64_t bit, std::uint64_t by) noexcept {
  return kDirection == Direction::upward ? bit + by : bit - by;
}

/// Reads the integers behind an escape word and moves past them.
template <Direction kDirection>
[[nodiscard]] DecodedDuo get_escaped(const BitReader& in, unsigned bits,
                                     std::uint64_t& bit) noexcept {
  DecodedDuo pair = two_numbers<kDirection>(in.window<kDirection>(bit), bits);
  const unsigned above = 32 - bits;
  pair.q0 = static_cast<std::int32_t>(static_cast<std::uint32_t>(pair.q0) << above) >> above;
  pair.q1 = static_cast<std::int32_t>(static_cast<std::uint32_t>(pair.q1) << above) >> above;
  bit = moved<kDirection>(bit, 2 * bits);
  return pair;
}

/// Reads the pair at `bit` and moves past it. Any bits give some pair.
template <Direction kDirection>
[[nodiscard]] DecodedDuo get_duo(const BitReader& in, const DuoCoding& coding, std::uint32_t level,
                                 std::uint64_t& bit) noexcept {
  const std::uint64_t window = in.window<kDirection>(bit);
  const std::uint32_t of_code = level & coding.level_mask;
  const std::uint32_t entry = coding.decode[static_cast<unsigned>(
      kDirection)][((of_code & 7u) << coding.limit) | word_index<kDirection>(window, coding.limit)];
  const unsigned length = entry & DecodeEntry::kLength;
  bit = moved<kDirection>(bit, length);
  if (DecodeEntry::escaped(entry)) return get_escaped<kDirection>(in, coding.escape_bits, bit);
  DecodedDuo pair{DecodeEntry::first(entry), DecodeEntry::second(entry)};
  if ((of_code & 8u) != 0) pair = {pair.q1, pair.q0};
  if (coding.raw != 0) {  // a word of 11 bits and raw bits up to 2 * 13 are in sight
    const DecodedDuo low = two_numbers<kDirection>(behind<kDirection>(window, length), coding.raw);
    const std::int32_t centre = 1 << (coding.raw - 1);
    pair.q0 = pair.q0 * (1 << coding.raw) + low.q0 - centre;
    pair.q1 = pair.q1 * (1 << coding.raw) + low.q1 - centre;
    bit = moved<kDirection>(bit, 2 * coding.raw);
  }
  return pair;
}

}  // namespace atomo::coding
