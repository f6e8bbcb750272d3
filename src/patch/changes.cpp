// SPDX-License-Identifier: Apache-2.0
/// Writes and reads the words of a block that differ: their marks, then their differences.
#include "patch/changes.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "coding/marks.hpp"
#include "coding/rice.hpp"
#include "core/bits.hpp"

namespace atomo::patch {
namespace {

using namespace coding;

constexpr std::uint64_t kRefused = ~std::uint64_t{0};

/// Between the bits of a word and its number, both ways.
template <typename Word>
struct Numbers {
  bool floating;
  static constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));

  [[nodiscard]] Word of(Word bits) const noexcept {
    if (!floating) return bits;
    return static_cast<Word>((bits & kSign) != 0 ? ~bits : bits | kSign);
  }
  [[nodiscard]] Word bits_of(Word number) const noexcept {
    if (!floating) return number;
    return static_cast<Word>((number & kSign) != 0 ? number & ~kSign : ~number);
  }
};

/// Small numbers for small differences of either sign; a difference is never 0.
template <typename Word>
[[nodiscard]] Word folded(Word difference) noexcept {
  const bool negative = (difference & Numbers<Word>::kSign) != 0;
  return static_cast<Word>(negative ? 2 * static_cast<Word>(-difference) - 1
                                    : 2 * (difference - 1));
}
template <typename Word>
[[nodiscard]] Word unfolded(Word value) noexcept {
  const Word half = static_cast<Word>(value / 2 + 1);
  return value % 2 == 0 ? half : static_cast<Word>(-half);
}

/// A bit for each of 64 words that differs, or of the `count` that there are.
template <typename Word>
[[nodiscard]] std::uint64_t differing(const std::byte* before, const std::byte* after,
                                      std::size_t count) noexcept {
  constexpr std::size_t kTogether = 8 / sizeof(Word);
  std::uint64_t mask = 0;
  std::size_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    std::uint64_t bits = load_le<std::uint64_t>(before + i * sizeof(Word)) ^
                         load_le<std::uint64_t>(after + i * sizeof(Word));
    for (std::size_t j = i; bits != 0; ++j) {
      if (static_cast<Word>(bits) != 0) mask |= std::uint64_t{1} << j;
      bits = kTogether == 1 ? 0 : bits >> (8 * sizeof(Word) % 64);
    }
  }
  for (; i < count; ++i) {
    const bool differs =
        std::memcmp(before + i * sizeof(Word), after + i * sizeof(Word), sizeof(Word)) != 0;
    mask |= std::uint64_t{differs} << i;
  }
  return mask;
}

/// The parameter that makes the words of these values shortest.
[[nodiscard]] RiceChoice choose_parameter(std::span<const std::uint32_t> values,
                                          unsigned word_bits) noexcept {
  std::uint64_t total = 0;
  for (const std::uint32_t v : values) total += v;
  return choose_rice(rice_range(values.size(), total, word_bits - 1), [&](unsigned k) {
    std::uint64_t bits = 0;
    for (const std::uint32_t v : values) bits += rice_bits(v, k, word_bits);
    return bits;
  });
}

template <typename Word>
std::uint64_t write(ConstBytes before, ConstBytes after, bool floating,
                    std::vector<std::byte>& out) {
  constexpr unsigned kBits = 8 * sizeof(Word);
  const std::size_t words = before.size() / sizeof(Word);
  std::vector<std::uint64_t> marks(marks_words(words));
  std::vector<std::uint32_t> values;
  const Numbers<Word> numbers{floating};
  for (std::size_t w = 0; w < marks.size(); ++w) {
    const std::size_t at = 64 * sizeof(Word) * w;
    marks[w] = differing<Word>(before.data() + at, after.data() + at,
                               std::min<std::size_t>(64, words - 64 * w));
    for (std::uint64_t left = marks[w]; left != 0; left &= left - 1) {
      const std::size_t i = at + sizeof(Word) * static_cast<std::size_t>(std::countr_zero(left));
      const Word from = numbers.of(load_le<Word>(before.data() + i)),
                 to = numbers.of(load_le<Word>(after.data() + i));
      values.push_back(folded(static_cast<Word>(to - from)));
    }
  }
  if (values.empty()) return 0;
  const MarksChoice plan = choose_marks(marks, words);
  const RiceChoice rice = choose_parameter(values, kBits);
  const std::size_t begin = out.size();
  const std::size_t stream = (rice.bits + 7) / 8;
  out.resize(begin + plan.bytes + 1 + stream);
  write_marks(plan, marks, words, out.data() + begin);
  out[begin + plan.bytes] = static_cast<std::byte>(rice.k);
  BitWriter writer(out.data() + begin + plan.bytes + 1, stream);
  for (const std::uint32_t v : values) {
    const RiceWord word = rice_word(v, rice.k, kBits);
    writer.put(word.bits, word.count);
  }
  writer.finish();
  return values.size();
}

struct UpwardStream {
  BitReader reader;
  std::uint64_t bit = 0;
  [[nodiscard]] UpwardWindow window() const noexcept { return {reader.peek(bit)}; }
  void move(unsigned count) noexcept { bit += count; }
};

template <typename Word>
std::uint64_t apply(ConstBytes block, bool floating, Bytes out) noexcept {
  constexpr unsigned kBits = 8 * sizeof(Word);
  const std::size_t words = out.size() / sizeof(Word);
  MarksReader marks;
  if (!marks.open(block, words) || block.size() - marks.bytes() < 2) return kRefused;
  const auto k = std::to_integer<unsigned>(block[marks.bytes()]);
  if (k >= kBits) return kRefused;
  const ConstBytes values = block.subspan(marks.bytes() + 1);
  UpwardStream stream{BitReader(values.data(), values.size())};
  const Numbers<Word> numbers{floating};
  bool good = true;
  SegmentMarks segment;
  for (std::size_t first = 0; first < words; first += kMarksSegment) {
    if (!marks.next(segment)) return kRefused;
    for_each_mark(segment, [&](std::uint64_t i) {
      const std::uint32_t value = read_rice(stream, k, kBits, good);
      good = good && value <= std::numeric_limits<Word>::max();
      std::byte* const word = out.data() + sizeof(Word) * (first + i);
      const Word number = numbers.of(load_le<Word>(word));
      store_le(word,
               numbers.bits_of(static_cast<Word>(number + unfolded(static_cast<Word>(value)))));
      return good;
    });
    if (!good || stream.bit > 8 * values.size()) return kRefused;
  }
  const bool ends = (stream.bit + 7) / 8 == values.size();
  const bool padded = ends && (stream.bit % 8 == 0 ||
                               std::to_integer<unsigned>(values.back()) >> stream.bit % 8 == 0);
  return padded ? marks.kept() : kRefused;
}

}  // namespace

WordType word_type(std::uint8_t element_bytes, bool floating) noexcept {
  return element_bytes == 8 ? WordType{4, false} : WordType{element_bytes, floating};
}

std::uint64_t write_changes(ConstBytes before, ConstBytes after, WordType type,
                            std::vector<std::byte>& out) {
  switch (type.bytes) {
    case 1:
      return write<std::uint8_t>(before, after, type.floating, out);
    case 2:
      return write<std::uint16_t>(before, after, type.floating, out);
    default:
      return write<std::uint32_t>(before, after, type.floating, out);
  }
}

std::uint64_t apply_changes(ConstBytes block, WordType type, Bytes words) noexcept {
  if (block.empty()) return 0;
  switch (type.bytes) {
    case 1:
      return apply<std::uint8_t>(block, type.floating, words);
    case 2:
      return apply<std::uint16_t>(block, type.floating, words);
    default:
      return apply<std::uint32_t>(block, type.floating, words);
  }
}

}  // namespace atomo::patch
