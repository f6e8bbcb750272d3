// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The words of the coarse tables of dithered content as a block has them in shared memory: those of up to 1.8 bits an entry, 15
/// KiB in all.
///
/// The code is canonical, so long words have the highest bits. Of the next nine bits the first six do where
/// they are below kShortPrefixes, for no longer word begins with them: a table of 512 places a level
/// has 92. Lanes that look words up in global memory take as many lines of the L1 cache as there are
/// lanes, one a cycle; here they meet in few words of the banks.

#include "cuda/duo_code.cuh"

namespace atomo::cuda {

/// Longest words of the tables that are short, their first bits and how many values of these do alone.
inline constexpr unsigned kShortLimit = 9, kShortBits = 6;
inline constexpr std::uint32_t kShortPrefixes = 60;
inline constexpr unsigned kFoldedBits = kShortLimit - kShortBits;
/// From the place of nine bits that are all needed to where they stand.
inline constexpr std::uint32_t kFoldedBefore = (kShortPrefixes << kFoldedBits) - kShortPrefixes;
inline constexpr std::uint32_t kShortPlaces = (1u << kShortLimit) - kFoldedBefore;
inline constexpr unsigned kShortLevels = 8;

/// They are the first tables.
[[nodiscard]] constexpr std::uint32_t short_tables() {
  std::uint32_t count = 0;
  while (coding::kCodeLengths[count].limit == kShortLimit &&
         coding::kCodeLengths[count].levels == kShortLevels)
    ++count;
  for (std::uint32_t t = count; t < kCodeTables; ++t) {
    const coding::CodeLengths& table = coding::kCodeLengths[t];
    if (table.limit <= kShortLimit && table.levels == kShortLevels)
      throw "a short table behind a longer one";
  }
  return count;
}

/// [table][level][place], entries as `decode_table` has them.
struct alignas(16) ShortWords {
  std::uint16_t entry[short_tables() * kShortLevels * kShortPlaces];
};
[[nodiscard]] constexpr ShortWords short_words() {
  ShortWords words = {};
  for (std::uint32_t t = 0; t < short_tables(); ++t) {
    for (unsigned level = 0; level < kShortLevels; ++level) {
      std::uint16_t* const out = words.entry + (t * kShortLevels + level) * kShortPlaces;
      for_each_decoded(coding::kCodeLengths[t], level,
                       [&](std::uint32_t first, std::uint32_t count, std::uint16_t entry) {
                         for (std::uint32_t i = first; i < first + count; ++i) {
                           const std::uint32_t place = i >> kFoldedBits < kShortPrefixes
                                                           ? i >> kFoldedBits
                                                           : i - kFoldedBefore;
                           if (out[place] != 0 && out[place] != entry)
                             throw "a longer word among the short";
                           out[place] = entry;
                         }
                       });
    }
  }
  return words;
}

/// By a whole block, which waits before it looks anything up.
__device__ inline void load_short_words(ShortWords& words) {
  static constexpr ShortWords kWords = short_words();
  static_assert(sizeof(ShortWords) % sizeof(uint4) == 0);
  const auto* const from = reinterpret_cast<const uint4*>(&kWords);
  auto* const to = reinterpret_cast<uint4*>(&words);
  for (unsigned i = threadIdx.x; i < sizeof(ShortWords) / sizeof(uint4); i += blockDim.x)
    to[i] = from[i];
}

/// The table of a coding step, wherever it is.
struct WordTable {
  const std::uint16_t* entries = nullptr;
  std::uint32_t level_places = 0;  ///< from one level's to the next, 0 where all share a code
  std::int32_t folded_bits = 0;    ///< kFoldedBits where few places stand for themselves, or 0
  unsigned unused_bits = 31;       ///< of 32, behind the longest word

  WordTable() = default;
  __device__ WordTable(const DeviceStep& step, const ShortWords& words) {
    const bool is_short = step.limit == kShortLimit && step.level_mask != 0;
    const std::uint32_t table = step.decode / (kShortLevels << kShortLimit);
    entries =
        is_short ? words.entry + table * kShortLevels * kShortPlaces : decode_table() + step.decode;
    level_places = is_short ? kShortPlaces : step.level_mask == 0 ? 0u : 1u << step.limit;
    folded_bits = is_short ? kFoldedBits : 0;
    unused_bits = 32u - step.limit;
  }

  /// The entry of the word that begins at the highest bit.
  [[nodiscard]] __device__ std::uint32_t look(std::uint32_t level, std::uint32_t bits) const {
    constexpr auto kBefore = static_cast<std::int32_t>(kFoldedBefore / kFoldedBits);
    static_assert(kFoldedBefore % kFoldedBits == 0);
    const std::uint32_t of_level = level % kShortLevels * level_places;
    const auto place = static_cast<std::int32_t>(bits >> unused_bits);
    const std::int32_t folded = place >> folded_bits, all = place - folded_bits * kBefore;
    return entries[of_level + static_cast<std::uint32_t>(folded > all ? folded : all)];
  }
};

}  // namespace atomo::cuda
