// SPDX-License-Identifier: Apache-2.0
/// Builds the tables of the prefix code from the lengths of its words, at the first call, into
/// static storage of about a megabyte.
#include "coding/duo_code.hpp"

#include <array>
#include <cstddef>
#include <utility>

#include "coding/duo_code_words.hpp"

namespace atomo::coding {
namespace {

constexpr std::size_t kTables = kCodeTables;
constexpr unsigned kLevels = 16;

constexpr std::size_t encode_entries(const CodeLengths& t) {
  return (t.levels == 1 ? std::size_t{1} : kLevels) << (2 * t.width);
}
constexpr std::size_t decode_entries(const CodeLengths& t) {
  return std::size_t{t.levels} << t.limit;
}

template <typename Count>
constexpr auto offsets(Count count) {
  std::array<std::size_t, kTables + 1> begin{};
  for (std::size_t i = 0; i < kTables; ++i) begin[i + 1] = begin[i] + count(kCodeLengths[i]);
  return begin;
}

constexpr auto kEncodeBegin = offsets(encode_entries);
constexpr auto kDecodeBegin = offsets(decode_entries);

/// Every code of every table, a megabyte of static storage.
class DuoCodes {
 public:
  DuoCodes() noexcept {
    for (std::size_t t = 0; t < kTables; ++t) {
      const CodeLengths& table = kCodeLengths[t];
      for (unsigned level = 0; level < table.levels; ++level) {
        build_decode(t, level);
        build_encode(t, level, false);
        if (table.levels > 1) build_encode(t, level, true);
      }
    }
  }

  [[nodiscard]] const std::uint32_t* encode(std::size_t table) const noexcept {
    return encode_.data() + kEncodeBegin[table];
  }
  [[nodiscard]] const std::uint16_t* decode(std::size_t table, Direction direction) const noexcept {
    return decode_[static_cast<unsigned>(direction)].data() + kDecodeBegin[table];
  }

 private:
  /// The code of one level; `swapped` gives that of level xor 8 by exchanging the two entries.
  void build_encode(std::size_t t, unsigned level, bool swapped) noexcept {
    const CodeLengths& table = kCodeLengths[t];
    const unsigned place = level + (swapped ? kMateDither : 0u), width = table.width;
    const std::uint32_t cells = 1u << (2 * width), low = (1u << width) - 1;
    std::uint32_t* const encode =
        encode_.data() + kEncodeBegin[t] + (std::size_t{place} << (2 * width));
    std::uint32_t escape = 0;
    for_each_word(table, level, [&](std::uint32_t symbol, std::uint32_t word, unsigned length) {
      std::uint32_t h0 = symbol >> width, h1 = symbol & low;
      if (swapped) std::swap(h0, h1);
      const std::uint32_t entry = EncodeEntry::of(word, reversed_bits(word, length), length);
      if (symbol == cells) {
        escape = entry | EncodeEntry::kEscape;
      } else {
        encode[(h0 << width) | h1] = entry;
      }
    });
    for (std::uint32_t cell = 0; cell < cells; ++cell) {
      if (encode[cell] == 0) encode[cell] = escape;
    }
  }

  void build_decode(std::size_t t, unsigned level) noexcept {
    const CodeLengths& table = kCodeLengths[t];
    const unsigned width = table.width, limit = table.limit;
    const std::uint32_t cells = 1u << (2 * width), low = (1u << width) - 1;
    const std::int32_t half = 1 << (width - 1);
    const std::size_t begin = kDecodeBegin[t] + (std::size_t{level} << limit);
    for_each_word(table, level, [&](std::uint32_t symbol, std::uint32_t word, unsigned length) {
      const auto entry = static_cast<std::uint16_t>(
          symbol == cells
              ? DecodeEntry::of(length, 0, 0) | DecodeEntry::kEscape
              : DecodeEntry::of(length, static_cast<std::int32_t>(symbol >> width) - half,
                                static_cast<std::int32_t>(symbol & low) - half));
      for (std::uint32_t i = word; i < (1u << limit); i += 1u << length) {
        decode_[0][begin + i] = entry;
        decode_[1][begin + reversed_bits(i, limit)] = entry;
      }
    });
  }

  static constexpr unsigned kMateDither = 8;
  std::array<std::uint32_t, kEncodeBegin[kTables]> encode_{};
  std::array<std::array<std::uint16_t, kDecodeBegin[kTables]>, 2> decode_{};
};

}  // namespace

DuoCoding duo_coding(std::size_t step, unsigned escape_bits, bool centred) noexcept {
  static const DuoCodes codes;
  const CodingStep& s = kCodingSteps[step];
  const std::size_t number = centred ? s.centred : s.table;
  const CodeLengths& table = kCodeLengths[number];
  return {codes.encode(number),
          {codes.decode(number, Direction::upward), codes.decode(number, Direction::downward)},
          static_cast<std::uint32_t>(kDecodeBegin[number]),
          table.levels == 1 ? 0u : kLevels - 1,
          table.width,
          table.limit,
          s.raw,
          escape_bits,
          centred ? centroid_offset(static_cast<std::uint32_t>(step)) : kDithered};
}

}  // namespace atomo::coding
