// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The words of the duo code, from the lengths that duo_code_tables.hpp commits: the CPU's tables
/// (duo_code.cpp) and the device's (cuda/duo_code.cuh) are made of them.

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "coding/duo_code_tables.hpp"

namespace atomo::coding {

inline constexpr std::size_t kCodeTables = std::size(kCodeLengths);
inline constexpr unsigned kLongestWord = 11, kWidestCell = 5;

static_assert([] {
  for (const CodeLengths& t : kCodeLengths) {
    if (t.width > kWidestCell || t.limit > kLongestWord || (t.levels != 1 && t.levels != 8))
      return false;
  }
  return true;
}());

/// The lowest `length` bits of `code`, first bit last: the stream is read from its low end.
[[nodiscard]] constexpr std::uint32_t reversed_bits(std::uint32_t code, unsigned length) noexcept {
  std::uint32_t r = 0;
  for (unsigned i = 0; i < length; ++i) r |= ((code >> i) & 1u) << (length - 1 - i);
  return r;
}

/// Calls visit(symbol, word, length) for each word of a table's code at `level`; symbol (h0 +
/// half) << width | (h1 + half), or 1 << 2 width for the escape. The code is canonical: words in
/// the order of (length, symbol).
template <typename Visit>
constexpr void for_each_word(const CodeLengths& table, unsigned level, Visit visit) {
  const auto length_of = [&](std::uint32_t symbol) {
    const char digit = table.lengths[level][symbol];
    return static_cast<unsigned>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  };
  const std::uint32_t escape = 1u << (2 * table.width);
  std::uint32_t of_length[kLongestWord + 1] = {}, next[kLongestWord + 1] = {};
  for (std::uint32_t symbol = 0; symbol <= escape; ++symbol) ++of_length[length_of(symbol)];
  for (unsigned length = 2; length <= table.limit; ++length)
    next[length] = (next[length - 1] + of_length[length - 1]) << 1;
  for (std::uint32_t symbol = 0; symbol <= escape; ++symbol) {
    const unsigned length = length_of(symbol);
    if (length != 0) visit(symbol, reversed_bits(next[length]++, length), length);
  }
}

}  // namespace atomo::coding
