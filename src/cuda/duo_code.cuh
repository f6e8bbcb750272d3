// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The duo code on the device (duo_code.hpp): its words as constants that the compiler makes from
/// the committed lengths, 125 KiB to encode, 354 KiB to decode. A file that only encodes, or only
/// decodes, carries the one it uses.
///
/// Only the eight levels that the format gives are kept; the code of level j + 8 is that of level j
/// with h0 and h1 exchanged.

#include "coding/duo_code.hpp"
#include "coding/duo_code_words.hpp"
#include "cuda/gpu.cuh"

namespace atomo::cuda {

using coding::kCodeTables;

/// The places where the tables' words begin.
struct WordPlaces {
  std::uint32_t encode[kCodeTables + 1] = {}, decode[kCodeTables + 1] = {};
};
[[nodiscard]] constexpr WordPlaces word_places() {
  WordPlaces places;
  for (std::size_t t = 0; t < kCodeTables; ++t) {
    const coding::CodeLengths& table = coding::kCodeLengths[t];
    places.encode[t + 1] = places.encode[t] + (std::uint32_t{table.levels} << (2 * table.width));
    places.decode[t + 1] = places.decode[t] + (std::uint32_t{table.levels} << table.limit);
  }
  return places;
}

/// [table][level][h0 + half][h1 + half]: word, its first bit highest, | length << 12; cells without a
/// word, cell 0 among them, have the level's escape word and this flag.
inline constexpr std::uint32_t kEscapeBit = 1u << coding::kLongestWord;
struct EncodeWords {
  std::uint16_t cell[word_places().encode[kCodeTables]] = {};
};
[[nodiscard]] constexpr EncodeWords encode_words() {
  EncodeWords words;
  for (std::size_t t = 0; t < kCodeTables; ++t) {
    const coding::CodeLengths& table = coding::kCodeLengths[t];
    const std::uint32_t cells = 1u << (2 * table.width);
    for (unsigned level = 0; level < table.levels; ++level) {
      std::uint16_t* const out = words.cell + word_places().encode[t] + level * cells;
      std::uint16_t escape = 0;
      coding::for_each_word(
          table, level, [&](std::uint32_t symbol, std::uint32_t word, unsigned length) {
            const std::uint32_t entry = coding::reversed_bits(word, length) | length << 12;
            if (symbol == cells) {
              escape = static_cast<std::uint16_t>(entry | kEscapeBit);
            } else {
              out[symbol] = static_cast<std::uint16_t>(entry);
            }
          });
      for (std::uint32_t cell = 0; cell < cells; ++cell) {
        if (out[cell] == 0) out[cell] = escape;
      }
    }
  }
  return words;
}

/// [table][level][the next `limit` bits of the stream, the first highest]: length | (h0 & 63) << 4 |
/// (h1 & 63) << 10, the escape word with h0 = kEscapeCell.
inline constexpr std::int32_t kEscapeCell = -32;
struct DecodeWords {
  std::uint16_t entry[word_places().decode[kCodeTables]] = {};
};
/// Calls visit(first, count, entry) for each word of a table's code at `level`: the places among the next
/// `limit` bits that begin with it.
template <typename Visit>
constexpr void for_each_decoded(const coding::CodeLengths& table, unsigned level, Visit visit) {
  const std::uint32_t width = table.width, half = 1u << (width - 1);
  coding::for_each_word(
      table, level, [&](std::uint32_t symbol, std::uint32_t word, unsigned length) {
        std::uint32_t h0 = (symbol >> width) - half, h1 = (symbol & (2 * half - 1)) - half;
        if (symbol == 1u << (2 * width)) {
          h0 = static_cast<std::uint32_t>(kEscapeCell);
          h1 = 0;
        }
        const unsigned behind = table.limit - length;
        visit(coding::reversed_bits(word, length) << behind, 1u << behind,
              static_cast<std::uint16_t>(length | (h0 & 63u) << 4 | (h1 & 63u) << 10));
      });
}
[[nodiscard]] constexpr DecodeWords decode_words() {
  DecodeWords words;
  for (std::size_t t = 0; t < kCodeTables; ++t) {
    const coding::CodeLengths& table = coding::kCodeLengths[t];
    for (unsigned level = 0; level < table.levels; ++level) {
      std::uint16_t* const out = words.entry + word_places().decode[t] + (level << table.limit);
      for_each_decoded(table, level,
                       [&](std::uint32_t first, std::uint32_t count, std::uint16_t entry) {
                         for (std::uint32_t i = first; i < first + count; ++i) out[i] = entry;
                       });
    }
  }
  return words;
}
/// The cells of an entry of `decode_table`, and whether it is an escape's.
__device__ inline std::int32_t first_of(std::uint32_t entry) {
  return static_cast<std::int32_t>(entry << 22) >> 26;
}
__device__ inline std::int32_t second_of(std::uint32_t entry) {
  return static_cast<std::int32_t>(entry << 16) >> 26;
}
__device__ inline bool is_escape(std::uint32_t entry) {
  constexpr std::uint32_t kCell = static_cast<std::uint32_t>(kEscapeCell) & 63u;
  return ((entry >> 4 ^ kCell) & 63u) == 0;
}

/// A coding step of the ladder, all but its nominal size.
struct DeviceStep {
  std::uint32_t encode = 0, decode = 0;  ///< first entries of its table
  std::uint8_t width = 0, limit = 0, raw = 0;
  std::uint8_t level_mask = 0;  ///< 7, or 0 when all levels share a code
};
inline constexpr std::size_t kCodingStepCount = std::size(coding::kCodingSteps);
struct DeviceSteps {
  DeviceStep step[2 * kCodingStepCount];  ///< those of centred layers behind the others
};
[[nodiscard]] constexpr DeviceSteps device_steps() {
  DeviceSteps steps;
  for (std::size_t i = 0; i < 2 * kCodingStepCount; ++i) {
    const coding::CodingStep& s = coding::kCodingSteps[i % kCodingStepCount];
    const std::size_t number = i < kCodingStepCount ? s.table : s.centred;
    const coding::CodeLengths& table = coding::kCodeLengths[number];
    steps.step[i] = {word_places().encode[number],
                     word_places().decode[number],
                     table.width,
                     table.limit,
                     s.raw,
                     static_cast<std::uint8_t>(table.levels - 1)};
  }
  return steps;
}

// Within functions, so that a kernel carries what it calls for alone.
__device__ inline const std::uint16_t* encode_table() {
  static constexpr EncodeWords kWords = encode_words();
  return kWords.cell;
}
__device__ inline const std::uint16_t* decode_table() {
  static constexpr DecodeWords kWords = decode_words();
  return kWords.entry;
}
/// The ladder, in place of kCodingSteps.
__device__ inline const DeviceStep& device_step(std::uint32_t i, bool centred) {
  static constexpr DeviceSteps kSteps = device_steps();
  return kSteps.step[i + (centred ? kCodingStepCount : 0)];
}
/// Bits in the order of the stream, the first the highest of `count`.
struct DuoBits {
  std::uint64_t bits;
  unsigned count;  ///< at most 63 of a pair: a word of 11 and two integers of 26
};

/// A number of `bits` bits, at most 31, as the stream has it, or as it was: upward from its lowest bit
/// on, downward from its highest.
__device__ inline std::uint32_t in_order(std::uint32_t number, unsigned bits, bool upward) {
  return upward ? __brev(number) >> 1 >> (31 - bits) : number;
}

/// The entry of `encode_table` of a pair. `level` is the first entry's.
__device__ inline std::uint32_t encode_entry(const DeviceStep& step, std::uint32_t level,
                                             std::int32_t q0, std::int32_t q1) {
  const unsigned width = step.width, raw = step.raw;
  const std::int32_t centre = static_cast<std::int32_t>((1u << raw) >> 1), half = 1 << (width - 1);
  const auto i0 = static_cast<std::uint32_t>(((q0 + centre) >> raw) + half);
  const auto i1 = static_cast<std::uint32_t>(((q1 + centre) >> raw) + half);
  const bool swapped = (level & 8u & (step.level_mask + 1u)) != 0;
  const std::uint32_t cell = ((i0 | i1) >> width) != 0 ? 0
                             : swapped                 ? i1 << width | i0
                                                       : i0 << width | i1;
  return encode_table()[step.encode + ((level & step.level_mask) << (2 * width) | cell)];
}
/// Likewise up to 32 bits.
struct ShortBits {
  std::uint32_t bits;
  unsigned count;
};
/// The word of an entry, without what may follow it.
__device__ inline ShortBits word_of(std::uint32_t entry) {
  return {entry & (kEscapeBit - 1), entry >> 12};
}
/// Both words, `behind` behind `first`.
__device__ inline ShortBits join(ShortBits first, ShortBits behind) {
  return {first.bits << behind.count | behind.bits, first.count + behind.count};
}

/// A pair's word, that of `entry`, and what follows it; q0 and q1 fit `escape_bits`.
__device__ inline DuoBits put_duo(const DeviceStep& step, unsigned escape_bits, std::uint32_t entry,
                                  std::int32_t q0, std::int32_t q1, bool upward) {
  const bool escaped = (entry & kEscapeBit) != 0;
  const unsigned each = escaped ? escape_bits : step.raw;
  const std::uint32_t mask = (1u << each) - 1;
  const std::int32_t shift = escaped ? 0 : static_cast<std::int32_t>((1u << step.raw) >> 1);
  const std::uint64_t low0 = in_order(static_cast<std::uint32_t>(q0 + shift) & mask, each, upward);
  const std::uint64_t low1 = in_order(static_cast<std::uint32_t>(q1 + shift) & mask, each, upward);
  const ShortBits word = word_of(entry);
  return {std::uint64_t{word.bits} << (2 * each) | low0 << each | low1, word.count + 2 * each};
}

/// Appends `behind` to `first` where both fit 64 bits. Nothing is behind where nothing is first.
__device__ inline void join(DuoBits& first, DuoBits& behind) {
  if (first.count + behind.count > 64) return;
  first.bits = first.bits << behind.count | behind.bits;
  first.count += behind.count;
  behind = {0, 0};
}

/// The first bits of a window, at least one.
__device__ inline std::uint32_t first_bits(std::uint64_t window, unsigned bits) {
  return static_cast<std::uint32_t>(window >> 32) >> (32 - bits);
}

struct DuoRead {
  std::int32_t q0, q1;
  unsigned count;  ///< bits read, at most 63
};

/// The pair whose word, looked up as `entry`, begins at the highest bit of `window`; what of its bits the
/// window lacks counts as zeros.
__device__ inline DuoRead duo_of(const DeviceStep& step, unsigned escape_bits, std::uint32_t level,
                                 std::uint32_t entry, std::uint64_t window, bool upward) {
  const unsigned length = entry & 15u, raw = step.raw;
  std::int32_t h0 = first_of(entry), h1 = second_of(entry);
  const bool escaped = is_escape(entry);
  const unsigned each = escaped ? escape_bits : raw, above = 32 - each;
  // Shifts by 63 at most: without raw bits both numbers are 0.
  const std::uint64_t tail = window << length;
  const std::uint32_t low0 =
      in_order(static_cast<std::uint32_t>(tail >> 1 >> (63 - each)), each, upward);
  const std::uint32_t low1 =
      in_order(static_cast<std::uint32_t>(tail << each >> 1 >> (63 - each)), each, upward);
  if (escaped) {
    return {static_cast<std::int32_t>(low0 << above) >> above,
            static_cast<std::int32_t>(low1 << above) >> above, length + 2 * each};
  }
  if ((level & 8u & (step.level_mask + 1u)) != 0) {
    const std::int32_t other = h0;
    h0 = h1;
    h1 = other;
  }
  const std::int32_t centre = static_cast<std::int32_t>((1u << raw) >> 1);
  return {h0 * (1 << raw) + static_cast<std::int32_t>(low0) - centre,
          h1 * (1 << raw) + static_cast<std::int32_t>(low1) - centre, length + 2 * raw};
}

/// The pair whose bits begin at the highest of `window`. Any bits give some pair, at least a bit long.
__device__ inline DuoRead get_duo(const DeviceStep& step, unsigned escape_bits, std::uint32_t level,
                                  std::uint64_t window, bool upward) {
  const std::uint32_t looked_up =
      (level & step.level_mask) << step.limit | first_bits(window, step.limit);
  return duo_of(step, escape_bits, level, decode_table()[step.decode + looked_up], window, upward);
}

}  // namespace atomo::cuda
