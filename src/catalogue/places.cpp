// SPDX-License-Identifier: Apache-2.0
/// \file
/// Gaps in Rice words: the gap over 2^k in unary, then its k low bits.
#include "catalogue/places.hpp"

#include <algorithm>

namespace atomo::catalogue {
namespace {

unsigned low_bits(std::size_t n, std::size_t count) noexcept {
  return static_cast<unsigned>(std::bit_width(n / count) - 1);
}

}  // namespace

std::size_t places_bound(std::size_t n, std::size_t most) noexcept {
  if (most == 0) return 8;
  // count (1 + k) + (n - count) / 2^k bits with 2^k <= n / count < 2^(k + 1): 5 n / 4 or less, whatever the count is.
  const std::size_t few = most * (3 + low_bits(n, most)) / 8;
  return 8 + std::min(n / 6, few) + 2;
}

void put_places(Writer& out, std::size_t n, std::span<const std::uint64_t> places) {
  out.put(static_cast<std::uint64_t>(places.size()));
  if (places.empty()) return;
  const unsigned k = low_bits(n, places.size());
  const std::uint64_t mask = (std::uint64_t{1} << k) - 1;
  BitWriter words(out.rest());
  std::uint64_t next = 0;
  for (const std::uint64_t place : places) {
    const std::uint64_t gap = place - next;
    words.put_unary(gap >> k);
    if (k > 32) words.put(static_cast<std::uint32_t>(gap & mask), 32);
    if (k > 32)
      words.put(static_cast<std::uint32_t>((gap & mask) >> 32), k - 32);
    else
      words.put(static_cast<std::uint32_t>(gap & mask), k);
    next = place + 1;
  }
  out.skip(words.finish());
}

std::vector<std::uint64_t> get_places(Reader& in, std::size_t n, std::size_t most) {
  const auto count = in.get<std::uint64_t>();
  // Each place has a bit at least.
  require(count <= most && count <= 8 * in.rest().size(), "there are too many places");
  std::vector<std::uint64_t> places(count);
  if (count == 0) return places;
  const unsigned k = low_bits(n, count);
  BitReader words(in.rest());
  std::uint64_t next = 0;
  for (std::uint64_t& place : places) {
    const std::uint64_t over = words.get_unary();
    require(over <= n >> k, "a place is beyond the end");
    std::uint64_t low = words.get(std::min(k, 32u));
    if (k > 32) low |= std::uint64_t{words.get(k - 32)} << 32;
    place = next + (over << k) + low;
    require(place < n, "a place is beyond the end");
    next = place + 1;
  }
  in.take(words.finish());
  return places;
}

}  // namespace atomo::catalogue
