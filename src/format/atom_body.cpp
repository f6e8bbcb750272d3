// SPDX-License-Identifier: Apache-2.0
/// Opens bodies of dithered atoms: counts and places their sections, and refuses what contradicts
/// itself. Bounds their length.
#include "format/atom_body.hpp"

#include <bit>
#include <iterator>

#include "coding/duo_code.hpp"
#include "coding/tiles.hpp"

namespace atomo::format {

static_assert(std::size(kAtomClasses) == kAtomClassCount);
static_assert(kMaxVectorEntries == AtomLayout::kMaxRow);

namespace {

/// Ones among `count` bits from the start of `bytes`.
std::uint64_t count_ones(const std::byte* bytes, std::size_t size, std::uint64_t count) noexcept {
  const BitReader reader(bytes, size);
  std::uint64_t ones = 0, bit = 0;
  for (; bit + 56 <= count; bit += 56)
    ones += static_cast<std::uint64_t>(std::popcount(reader.bits(bit, 56)));
  return ones + static_cast<std::uint64_t>(
                    std::popcount(reader.bits(bit, static_cast<unsigned>(count - bit))));
}

/// True when the bits from `bit` up to byte `end` are all zero.
bool zero_from_bit(const std::byte* bytes, std::uint64_t bit, std::size_t end) noexcept {
  const std::size_t whole = (bit + 7) / 8;
  if (bit % 8 != 0 && (static_cast<unsigned>(bytes[bit / 8]) >> (bit % 8)) != 0) return false;
  return all_zero(bytes, whole, end);
}

}  // namespace

bool BodyIndex::open(ConstBytes body, const AtomLayout& layout, MarksReader& marks) noexcept {
  if (body.size() % 4 != 0 || !marks.open(body, layout.count)) return false;
  kept = marks.kept();
  if (kept > layout.count) return false;
  flags = marks.bytes();
  const std::size_t left = body.size() - flags;
  if ((kept + 7) / 8 > left) return false;
  certain = count_ones(body.data() + flags, left, kept);
  const std::uint64_t flag_bits = kept + kClassBits * certain;
  lengths = round_up(flags + (flag_bits + 7) / 8, 2);
  groups = GroupShape::of(layout.length).groups(kept);
  if (lengths > body.size() || groups > (body.size() - lengths) / 2) return false;
  if (!zero_from_bit(body.data() + flags, flag_bits, lengths - flags)) return false;
  const BitReader reader(body.data() + flags, left);
  for (std::uint64_t i = 0; i < certain; ++i) {
    if (reader.bits(kept + kClassBits * i, kClassBits) >= kAtomClassCount - 1) return false;
  }
  content = lengths + 2 * groups;
  content_bits = 0;
  for (std::uint64_t g = 0; g < groups; ++g)
    content_bits += load_le<std::uint16_t>(body.data() + lengths + 2 * g);
  if (round_up(content + (content_bits + 7) / 8, 4) != body.size()) return false;
  return zero_from_bit(body.data() + content, content_bits, body.size() - content);
}

std::size_t max_body_bytes(const AtomLayout& layout) noexcept {
  if (layout.count == 0) return 0;
  std::uint64_t pair_bits = 0;
  for (const AtomClass& c : kAtomClasses) {
    pair_bits = std::max<std::uint64_t>(pair_bits,
                                        max_duo_bits(c.step, escape_bits(layout.length, c.reach)));
  }
  const std::uint64_t pairs = (layout.count - 1) * duos_of(layout.length) + duos_of(layout.last);
  const std::size_t flags = round_up((layout.count * (1 + kClassBits) + 7) / 8, 2);
  const std::size_t lengths = 2 * GroupShape::of(layout.length).groups(layout.count);
  return round_up(max_marks_bytes(layout.count) + flags + lengths + (pairs * pair_bits + 7) / 8, 4);
}

}  // namespace atomo::format
