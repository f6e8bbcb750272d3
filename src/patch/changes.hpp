// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The elements that differ between two states of a tensor, as places and differences (FORMAT.md,
/// "Patches"). A tensor is cut into blocks of `kBlockWords` words, each of which stands for itself.
///
/// A block is empty where nothing differs. Else it has the marks of the words that differ
/// (coding/marks.hpp), a byte k, and for each of them, in order, a Rice word with the parameter k:
/// the difference d of the two words' numbers, which is not 0, as 2 (d - 1) for d > 0 and
/// -2 d - 1 for d < 0. Zero bits follow up to a whole byte.
///
/// The number of a word is its bits as an integer; of a floating-point word, its place among all
/// such numbers, so that the next larger one has the next number. Differences are modulo 2^w, from
/// -2^(w-1) to 2^(w-1) - 1. An element of 8 bytes is two words that are integers.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo::patch {

inline constexpr std::uint64_t kBlockWords = std::uint64_t{1} << 18;

/// The words of a tensor.
struct WordType {
  std::uint8_t bytes = 4;  ///< 1, 2 or 4
  bool floating = false;
};
/// `element_bytes` is 1, 2, 4 or 8.
[[nodiscard]] WordType word_type(std::uint8_t element_bytes, bool floating) noexcept;

/// Appends a block to `out`; returns how many words differ. Both states have as many bytes, at most
/// a block's.
std::uint64_t write_changes(ConstBytes before, ConstBytes after, WordType type,
                            std::vector<std::byte>& out);

/// Makes the new state of a block in place. Returns how many words differed; any bytes at all may be
/// given, and ~0 says that they are no block of so many words: then `words` has any values.
std::uint64_t apply_changes(ConstBytes block, WordType type, Bytes words) noexcept;

}  // namespace atomo::patch
