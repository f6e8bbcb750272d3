// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Writing one segment of coordinates: list what is not zero, take the shortest of one list, two
/// lists and dense levels, write it. `Levels` is where the levels come from:
///
///   levels.at(place)        magnitude, std::uint32_t or (of sums) std::uint64_t
///   levels.negative(place)  1 where it is below 0, else 0
///
/// The body's layout stands in FORMAT.md, "coordinate".

#include <algorithm>
#include <bit>
#include <span>
#include <type_traits>

#include "core/bits.hpp"
#include "format/coordinate_body.hpp"

namespace atomo::cpu {

/// What one `BitWriter::put` takes.
inline constexpr unsigned kMaxPutBits = 56;

struct SegmentLists {
  std::span<const std::uint16_t> nonzero, ones, others;
};

/// Memory for lists of up to m places.
struct ListMemory {
  std::span<std::uint16_t> nonzero, ones, others;
};

template <typename Levels>
SegmentLists list_segment(const Levels& levels, std::size_t m, const ListMemory& memory) noexcept {
  // Every place is written, what does not belong is overwritten by the next: no branch on the data.
  std::uint16_t* const nonzero = memory.nonzero.data();
  std::uint16_t* const ones = memory.ones.data();
  std::uint16_t* const others = memory.others.data();
  std::size_t count = 0, large = 0;
  for (std::size_t i = 0; i < m; ++i) {
    nonzero[count] = static_cast<std::uint16_t>(i);
    count += std::size_t{levels.at(i) != 0};
  }
  for (std::size_t i = 0; i < count; ++i) {
    ones[i - large] = others[large] = nonzero[i];
    large += std::size_t{levels.at(nonzero[i]) > 1};
  }
  return {memory.nonzero.first(count), memory.ones.first(count - large),
          memory.others.first(large)};
}

/// The same from bit maps of the levels that are not 0 and of those above 1.
inline SegmentLists list_marked(std::span<const std::uint64_t> nonzero,
                                std::span<const std::uint64_t> large,
                                const ListMemory& memory) noexcept {
  const auto list = [](std::span<std::uint16_t> places, std::size_t words, auto word_at) {
    std::uint16_t* out = places.data();
    for (std::size_t w = 0; w < words; ++w) {
      for (std::uint64_t left = word_at(w); left != 0; left &= left - 1)
        *out++ =
            static_cast<std::uint16_t>(64 * w + static_cast<std::size_t>(std::countr_zero(left)));
    }
    return places.first(static_cast<std::size_t>(out - places.data()));
  };
  return {list(memory.nonzero, nonzero.size(), [&](std::size_t w) { return nonzero[w]; }),
          list(memory.ones, nonzero.size(), [&](std::size_t w) { return nonzero[w] & ~large[w]; }),
          list(memory.others, nonzero.size(), [&](std::size_t w) { return large[w]; })};
}

// ---- choosing

[[nodiscard]] constexpr unsigned level_word_bits(std::uint32_t v, unsigned k,
                                                 unsigned raw) noexcept {
  return rice_bits(v, k, raw);
}
[[nodiscard]] constexpr unsigned level_word_bits(std::uint64_t v, unsigned k,
                                                 unsigned raw) noexcept {
  return wide_rice_bits(v, k, raw);
}

/// Bits of the gaps of ascending places, and of the end mark: the gap to place m.
[[nodiscard]] std::uint32_t gaps_bits(std::span<const std::uint16_t> places, std::size_t m,
                                      unsigned k) noexcept;

/// Bits of the levels above 1, less `base`.
template <typename Levels>
std::uint32_t large_bits(const Levels& levels, std::span<const std::uint16_t> places,
                         std::uint32_t base, unsigned k, unsigned raw) noexcept {
  std::uint32_t bits = 0;
  for (const std::uint16_t place : places) bits += level_word_bits(levels.at(place) - base, k, raw);
  return bits;
}

/// `level_bits`: kLevelBits, or the width of the largest level where that is more.
template <typename Levels>
SegmentPlan choose_word(const Levels& levels, const SegmentLists& lists, std::size_t m,
                        unsigned level_bits = kLevelBits) noexcept {
  SegmentCounts counts{static_cast<std::uint32_t>(m),
                       static_cast<std::uint32_t>(lists.nonzero.size()),
                       static_cast<std::uint32_t>(lists.others.size()), 0, level_bits};
  const auto ones = static_cast<std::uint32_t>(lists.ones.size());
  counts.total = counts.shift() == 0 ? ones : 0;
  for (const std::uint16_t place : lists.others) counts.total += levels.at(place) >> counts.shift();
  const auto bits_at = [&](SegmentSum sum, unsigned k) noexcept -> std::uint32_t {
    const auto zeros = static_cast<std::uint32_t>(m - lists.nonzero.size());
    const auto larger = [&](std::uint32_t base) {
      return large_bits(levels, lists.others, base, k, level_bits);
    };
    const auto word = [&](unsigned level) {
      return level_word_bits(decltype(levels.at(0)){level}, k, level_bits);
    };
    switch (sum) {
      case kEveryGaps:
        return gaps_bits(lists.nonzero, m, k);
      case kEveryLevels:
        return ones * word(0) + larger(1);
      case kOnesGaps:
        return gaps_bits(lists.ones, m, k);
      case kOthersGaps:
        return gaps_bits(lists.others, m, k);
      case kOthersLevels:
        return larger(2);
      case kDenseLevels:
        break;
    }
    return zeros * word(0) + ones * word(1) + larger(0);
  };
  return plan_segment(counts, bits_at);
}

// ---- writing

/// The direction of a writer.
template <typename Writer>
inline constexpr Direction kDirectionOf =
    std::is_same_v<Writer, DownwardBitWriter> ? Direction::downward : Direction::upward;

/// `before`, then a level under `k`.
template <typename Writer>
void put_level(Writer& out, RiceWord before, std::uint32_t v, unsigned k, unsigned raw) noexcept {
  const RiceWord level = rice_word<kDirectionOf<Writer>>(v, k, raw);
  if (before.count + level.count > kMaxPutBits) {
    out.put(before.bits, before.count);
    before = {0, 0};
  }
  const RiceWord both = join<kDirectionOf<Writer>>(before, level);
  out.put(both.bits, both.count);
}
template <typename Writer>
void put_level(Writer& out, RiceWord before, std::uint64_t v, unsigned k, unsigned raw) noexcept {
  if (before.count > 0) out.put(before.bits, before.count);
  const std::uint64_t q = v >> k;
  const bool escapes = q >= kRiceLimit;
  const RiceWord ones =
      rice_ones<kDirectionOf<Writer>>(escapes ? kRiceLimit : static_cast<unsigned>(q), !escapes);
  out.put(ones.bits, ones.count);
  if (escapes) {
    out.put(v, raw);
  } else {
    out.put(v & ((std::uint64_t{1} << k) - 1), k);
  }
}

/// Gap and sign of every place; when `with_levels`, then the level less `base` under `k`. At the
/// end the gap to place m.
template <bool with_levels, typename Writer, typename Levels>
void write_list(Writer& stream, const Levels& levels, std::span<const std::uint16_t> places,
                std::size_t m, unsigned gap_k, std::uint32_t base, unsigned k,
                unsigned raw) noexcept {
  constexpr Direction direction = kDirectionOf<Writer>;
  Writer out = stream;  // a copy the compiler can keep in registers
  std::size_t next = 0;
  for (const std::uint16_t place : places) {
    const RiceWord gap =
        rice_word<direction>(static_cast<std::uint32_t>(place - next), gap_k, kGapRawBits);
    next = std::size_t{place} + 1;
    const RiceWord word = join<direction>(gap, {levels.negative(place), 1});
    if constexpr (with_levels) {
      put_level(out, word, levels.at(place) - base, k, raw);
    } else {
      out.put(word.bits, word.count);
    }
  }
  const RiceWord end =
      rice_word<direction>(static_cast<std::uint32_t>(m - next), gap_k, kGapRawBits);
  out.put(end.bits, end.count);
  stream = out;
}

template <typename Levels>
void write_dense(BitWriter& stream, const Levels& levels, std::size_t m, unsigned k,
                 unsigned raw) noexcept {
  BitWriter out = stream;
  for (std::size_t i = 0; i < m; ++i) {
    const auto level = levels.at(i);
    const unsigned has_sign = level != 0 ? 1 : 0;
    const std::uint64_t sign = levels.negative(i) & has_sign;
    if constexpr (std::is_same_v<decltype(level), const std::uint32_t>) {
      const RiceWord word = rice_word(level, k, raw);
      out.put(word.bits | sign << word.count, word.count + has_sign);
    } else {
      put_level(out, {0, 0}, level, k, raw);
      out.put(sign, has_sign);
    }
  }
  stream = out;
}

/// Writes a stream that goes down behind one of `front` bits from `content` on, so that it ends at
/// `bytes`; the two may share a byte, and what neither fills is 0. `write(out)` writes it.
template <typename Write>
void write_from_end(std::byte* content, std::size_t bytes, std::uint64_t front,
                    Write write) noexcept {
  const std::size_t at = front / 8;
  const std::byte shared = front % 8 != 0 ? content[at] : std::byte{0};
  DownwardBitWriter out(content + at, bytes - at);
  write(out);
  const bool meets = out.finish() == bytes - at;
  content[at] = shared | (meets ? content[at] : std::byte{0});
}

/// The content of a segment under `how`, of `how.bytes` bytes.
template <typename Levels>
void write_content(std::byte* content, const Levels& levels, const SegmentLists& lists,
                   std::size_t m, const SegmentWord& how) noexcept {
  const unsigned raw = how.level_bits;
  BitWriter out(content, how.bytes);
  if (how.wide()) out.put(how.pack_second(), 8 * kSegmentWordBytes);
  if (how.mode == SegmentMode::dense) {
    write_dense(out, levels, m, how.level, raw);
  } else if (how.mode == SegmentMode::one_list) {
    write_list<true>(out, levels, lists.nonzero, m, how.others, 1, how.level, raw);
  } else {
    write_list<false>(out, levels, lists.ones, m, how.ones, 0, 0, raw);
  }
  const std::uint64_t front = out.position();
  out.finish();
  if (how.mode != SegmentMode::two_lists) return;
  write_from_end(content, how.bytes, front, [&](DownwardBitWriter& down) {
    write_list<true>(down, levels, lists.others, m, how.others, 2, how.level, raw);
  });
}

}  // namespace atomo::cpu
