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

#include <cmath>
#include <cstdint>

#include "coding/duo_code_tables.hpp"
#include "core/bits.hpp"
#include "core/host_device.hpp"

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
      encode;  ///< [level & level_mask][h0 + 2^(width-1)][h1 + 2^(width-1)], see kEscapeFlag
  const std::uint16_t* decode;  ///< [level & level_mask][limit bits of the stream], see kEscapeCell
  std::uint32_t level_mask;     ///< 15, or 0 when all levels share a code
  std::uint32_t width, limit, raw, escape_bits;
};

/// Entries of `encode`: word | length << 16, with this flag for the cells that are sent as escapes;
/// cell 0 is one.
inline constexpr std::uint32_t kEscapeFlag = 0x80000000u;
/// Entries of `decode`: length | (h0 & 63) << 4 | (h1 & 63) << 10; the escape word has h0 = -32.
inline constexpr std::int32_t kEscapeCell = -32;

/// `step` indexes kCodingSteps. The tables are built at the first call, into static storage.
[[nodiscard]] DuoCoding duo_coding(std::size_t step, unsigned escape_bits) noexcept;

/// Longest way to send a pair: its escape or its longest word with raw bits.
[[nodiscard]] inline unsigned max_duo_bits(std::size_t step, unsigned escape_bits) noexcept {
  const CodingStep& s = kCodingSteps[step];
  const unsigned tail = s.raw > escape_bits ? s.raw : escape_bits;
  return kCodeLengths[s.table].limit + 2 * tail;
}

/// `q0` and `q1` fit in `coding.escape_bits` bits.
inline void put_duo(BitWriter& out, const DuoCoding& coding, std::uint32_t level, std::int32_t q0,
                    std::int32_t q1) noexcept {
  const std::int32_t centre = static_cast<std::int32_t>((1u << coding.raw) >> 1),
                     half = 1 << (coding.width - 1);
  const auto i0 = static_cast<std::uint32_t>(((q0 + centre) >> coding.raw) + half);
  const auto i1 = static_cast<std::uint32_t>(((q1 + centre) >> coding.raw) + half);
  const std::uint32_t cell = ((i0 | i1) >> coding.width) != 0 ? 0 : (i0 << coding.width) | i1;
  const std::uint32_t entry =
      coding.encode[((level & coding.level_mask) << (2 * coding.width)) | cell];
  out.put(entry & 0xFFFFu, (entry >> 16) & 0xFFu);
  const bool escaped = (entry & kEscapeFlag) != 0;
  const unsigned bits = escaped ? coding.escape_bits : coding.raw;
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const std::int32_t shift = escaped ? 0 : centre;
  const std::uint64_t low0 = static_cast<std::uint32_t>(q0 + shift) & mask;
  const std::uint64_t low1 = static_cast<std::uint32_t>(q1 + shift) & mask;
  out.put(low0 | (low1 << bits), 2 * bits);
}

struct DecodedDuo {
  std::int32_t q0, q1;
};

/// Reads the pair at `bit` and moves past it. Any bits give some pair.
[[nodiscard]] inline DecodedDuo get_duo(const BitReader& in, const DuoCoding& coding,
                                        std::uint32_t level, std::uint64_t& bit) noexcept {
  const std::uint64_t window = in.peek(bit);
  const std::uint32_t mask = (1u << coding.limit) - 1;
  const std::uint32_t entry = coding.decode[((level & coding.level_mask) << coding.limit) |
                                            (static_cast<std::uint32_t>(window) & mask)];
  bit += entry & 15u;
  DecodedDuo pair{static_cast<std::int32_t>(entry << 22) >> 26,
                  static_cast<std::int32_t>(entry << 16) >> 26};
  if (pair.q0 == kEscapeCell) {
    const std::uint64_t tail = in.peek(bit);
    const unsigned w = coding.escape_bits;
    pair.q0 = static_cast<std::int32_t>(static_cast<std::uint32_t>(tail) << (32 - w)) >> (32 - w);
    pair.q1 =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(tail >> w) << (32 - w)) >> (32 - w);
    bit += 2 * w;
  } else if (coding.raw != 0) {
    const std::uint64_t tail =
        window >> (entry & 15u);  // a word of 11 bits and raw bits up to 2 * 13 are in sight
    const std::uint32_t low = (1u << coding.raw) - 1;
    const std::int32_t centre = 1 << (coding.raw - 1);
    pair.q0 = pair.q0 * (1 << coding.raw) +
              static_cast<std::int32_t>(static_cast<std::uint32_t>(tail) & low) - centre;
    pair.q1 = pair.q1 * (1 << coding.raw) +
              static_cast<std::int32_t>(static_cast<std::uint32_t>(tail >> coding.raw) & low) -
              centre;
    bit += 2 * coding.raw;
  }
  return pair;
}

}  // namespace atomo::coding
