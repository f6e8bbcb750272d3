// SPDX-License-Identifier: Apache-2.0
/// \file
/// A canonical Huffman code. Words are numbered by length, then by symbol; a word's first bit is its highest.
#include "catalogue/huffman.hpp"

#include <algorithm>
#include <array>
#include <queue>
#include <vector>

namespace atomo::catalogue {
namespace {

constexpr unsigned kMost = 12;  ///< bits of a word
constexpr std::uint8_t kPacked = 0, kWords = 1;

struct Word {
  std::uint16_t bits = 0;  ///< the first one lowest
  std::uint8_t length = 0;
};

unsigned reversed(unsigned word, unsigned length) noexcept {
  unsigned turned = 0;
  for (unsigned i = 0; i < length; ++i) turned |= (word >> i & 1) << (length - 1 - i);
  return turned;
}

std::array<Word, 256> words_of(std::span<const std::uint8_t> lengths) noexcept {
  std::array<Word, 256> words{};
  unsigned next = 0;
  for (unsigned length = 1; length <= kMost; ++length, next <<= 1)
    for (std::size_t s = 0; s < lengths.size(); ++s)
      if (lengths[s] == length)
        words[s] = {static_cast<std::uint16_t>(reversed(next++, length)), lengths[s]};
  return words;
}

/// Lengths of a Huffman code of these weights; the longest.
unsigned lengths_of(std::span<const std::uint64_t> weights, std::span<std::uint8_t> lengths) {
  using Node = std::pair<std::uint64_t, std::size_t>;  // weight, number
  std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
  std::vector<std::size_t> parent(2 * weights.size());
  for (std::size_t s = 0; s < weights.size(); ++s)
    if (weights[s] > 0) open.emplace(weights[s], s);
  const std::size_t used = open.size();
  std::size_t made = weights.size();
  while (open.size() > 1) {
    const Node a = open.top();
    open.pop();
    const Node b = open.top();
    open.pop();
    parent[a.second] = parent[b.second] = made;
    open.emplace(a.first + b.first, made++);
  }
  unsigned longest = 0;
  std::vector<unsigned> depth(made);
  for (std::size_t node = made; node-- > 0;) {
    const bool inner = node >= weights.size();
    if (!inner && weights[node] == 0) continue;
    depth[node] = node + 1 == made && inner ? 0 : used == 1 ? 1 : depth[parent[node]] + 1;
    if (inner) continue;
    lengths[node] = static_cast<std::uint8_t>(std::min(depth[node], 255u));
    longest = std::max(longest, depth[node]);
  }
  return longest;
}

}  // namespace

std::size_t symbols_bound(std::size_t count, unsigned bits) noexcept {
  return 1 + packed_bytes(count, bits);
}

void huffman_lengths(std::span<const std::uint64_t> counts, std::span<std::uint8_t> lengths) {
  std::ranges::fill(lengths, std::uint8_t{0});
  std::uint64_t total = 0;
  for (const std::uint64_t c : counts) total += c;
  std::vector<std::uint64_t> weights(counts.begin(), counts.end());
  // Rare symbols count as less rare until no word is too long.
  for (std::uint64_t least = total / 4096 + 1; lengths_of(weights, lengths) > kMost; least *= 2)
    for (std::uint64_t& w : weights)
      if (w > 0) w = std::max(w, least);
}

void put_symbols(Writer& out, std::span<const std::uint8_t> codes, unsigned bits) {
  const std::size_t symbols = std::size_t{1} << bits;
  std::array<std::uint64_t, 256> counts{};
  for (const std::uint8_t code : codes) ++counts[code];
  std::array<std::uint8_t, 256> lengths{};
  huffman_lengths(std::span(counts).first(symbols), std::span(lengths).first(symbols));
  const bool one = std::ranges::count(lengths, 0) == 255;
  std::uint64_t total = 0;
  for (std::size_t s = 0; s < symbols; ++s) total += one ? 0 : counts[s] * lengths[s];
  if ((4 * symbols + total + 7) / 8 >= packed_bytes(codes.size(), bits)) {
    out.put(kPacked);
    put_codes(out, codes, bits);
    return;
  }
  out.put(kWords);
  BitWriter packed(out.rest());
  for (std::size_t s = 0; s < symbols; ++s) packed.put(lengths[s], 4);
  const auto words = words_of(std::span(lengths).first(symbols));
  if (!one)
    for (const std::uint8_t code : codes) packed.put(words[code].bits, words[code].length);
  out.skip(packed.finish());
}

void get_symbols(Reader& in, std::span<std::uint8_t> codes, unsigned bits) {
  const auto kind = in.get<std::uint8_t>();
  require(kind == kPacked || kind == kWords, "codes are neither packed nor words");
  if (kind == kPacked) return get_codes(in, codes, bits);
  const std::size_t symbols = std::size_t{1} << bits;
  BitReader packed(in.rest());
  std::array<std::uint8_t, 256> lengths{};
  std::uint64_t filled = 0, used = 0;
  std::uint8_t last = 0;
  for (std::size_t s = 0; s < symbols; ++s) {
    lengths[s] = static_cast<std::uint8_t>(packed.get(4));
    require(lengths[s] <= kMost, "a word of the code is too long");
    if (lengths[s] == 0) continue;
    filled += std::uint64_t{1} << (kMost - lengths[s]);
    last = static_cast<std::uint8_t>(s);
    ++used;
  }
  const bool one = used == 1 && lengths[last] == 1;
  require(one || filled == std::uint64_t{1} << kMost, "the lengths of words make no code");
  if (one) {
    std::ranges::fill(codes, last);
  } else {
    const auto words = words_of(std::span(lengths).first(symbols));
    std::vector<std::uint16_t> table(std::size_t{1} << kMost);  // symbol, and length above it
    for (std::size_t s = 0; s < symbols; ++s)
      for (std::size_t at = words[s].bits; words[s].length > 0 && at < table.size();
           at += std::size_t{1} << words[s].length)
        table[at] = static_cast<std::uint16_t>(s | std::size_t{words[s].length} << 8);
    for (std::uint8_t& code : codes) {
      const std::uint16_t found = table[packed.peek() & (table.size() - 1)];
      packed.skip(found >> 8);
      code = static_cast<std::uint8_t>(found);
    }
  }
  in.take(packed.finish());
}

}  // namespace atomo::catalogue
