// SPDX-License-Identifier: Apache-2.0
/// Adds the levels of several bodies of coordinates, a segment of 32,768 entries at a time, and
/// writes the sum as an encoder would.
#include "cpu/coordinate_add.hpp"

#include <cstring>

#include "cpu/coordinate_read.hpp"

namespace atomo::cpu {
namespace {

constexpr std::int64_t kLevelEnd = std::int64_t{1} << kWideLevelBits;

std::uint64_t magnitude(std::int64_t level) noexcept {
  return static_cast<std::uint64_t>(level < 0 ? -level : level);
}

/// Levels of a sum; all fit `Value`.
template <typename Value>
struct SummedLevels {
  const std::int64_t* levels;

  [[nodiscard]] Value at(std::size_t place) const noexcept {
    return static_cast<Value>(magnitude(levels[place]));
  }
  [[nodiscard]] std::uint64_t negative(std::size_t place) const noexcept {
    return static_cast<std::uint64_t>(levels[place]) >> 63;
  }
};

}  // namespace

CoordinateAdder::CoordinateAdder(Carver& carver) noexcept
    : levels_(carver.take<std::int64_t>(kCoordinateSegment)),
      lists_{carver.take<std::uint16_t>(kCoordinateSegment),
             carver.take<std::uint16_t>(kCoordinateSegment),
             carver.take<std::uint16_t>(kCoordinateSegment)} {}

/// Adds up segment s, of m entries; `any` tells whether a body has something there.
Status CoordinateAdder::add_segment(std::span<AddedBody> bodies, std::size_t s, std::size_t m,
                                    bool& any) noexcept {
  any = false;
  bool fits = true;
  std::int64_t* const levels = levels_.data();
  const auto found = [&](std::size_t place, std::int64_t level) {
    const std::int64_t sum = levels[place] + level;
    levels[place] = sum;
    return fits = -kLevelEnd < sum && sum < kLevelEnd;
  };
  for (AddedBody& one : bodies) {
    if (one.body.empty()) continue;
    const SegmentWord word = SegmentTable{one.body}.word(s);
    if (word.bytes == 0) continue;
    if (!any) std::memset(levels, 0, m * sizeof *levels);
    any = true;
    const ConstBytes content = one.body.subspan(static_cast<std::size_t>(one.next));
    if (!read_segment(content, word, m, found)) return fits ? Status::corrupt : Status::too_large;
    one.next += word.bytes;
  }
  return Status::ok;
}

/// The word of the segment at hand, its content in `out`.
template <typename Value>
std::uint32_t CoordinateAdder::write_levels(std::size_t m, unsigned level_bits, Bytes out,
                                            Status& status) noexcept {
  const SummedLevels<Value> levels{levels_.data()};
  const SegmentLists lists = list_segment(levels, m, lists_);
  SegmentPlan plan = choose_word(levels, lists, m, level_bits);
  plan.word.bytes =
      static_cast<std::uint32_t>((plan.bits + 7) / 8 + (plan.word.wide() ? kSegmentWordBytes : 0));
  if (plan.word.bytes > out.size()) {
    status = Status::buffer_too_small;
    return 0;
  }
  write_content(out.data(), levels, lists, m, plan.word);
  return plan.word.pack();
}

std::uint32_t CoordinateAdder::write_segment(std::size_t m, Bytes out, Status& status) noexcept {
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < m; ++i) any |= magnitude(levels_[i]);
  if (any == 0) return 0;
  const auto width = static_cast<unsigned>(std::bit_width(any));  // of the largest
  return width <= kLevelBits ? write_levels<std::uint32_t>(m, kLevelBits, out, status)
                             : write_levels<std::uint64_t>(m, width, out, status);
}

Status CoordinateAdder::add(std::span<AddedBody> bodies, std::size_t n, Bytes out,
                            std::uint64_t& bytes) noexcept {
  bytes = 0;
  const std::size_t segments = segments_of(n);
  bool all_empty = true;
  for (AddedBody& one : bodies) {
    if (one.body.empty()) continue;
    const SegmentTable table{one.body, segments};
    if (!table.valid()) return Status::corrupt;
    one.next = table.bytes();
    all_empty = false;
  }
  if (all_empty) return Status::ok;
  const std::size_t begin = segments * kSegmentWordBytes;
  if (out.size() < begin) return Status::buffer_too_small;
  std::size_t end = begin;
  for (std::size_t s = 0; s < segments; ++s) {
    const std::size_t m = std::min(kCoordinateSegment, n - s * kCoordinateSegment);
    bool any = false;
    Status status = add_segment(bodies, s, m, any);
    const std::uint32_t word =
        any && !failed(status) ? write_segment(m, out.subspan(end), status) : 0;
    if (failed(status)) return status;
    store_le(out.data() + s * kSegmentWordBytes, word);
    end += SegmentWord::unpack(word).bytes;
  }
  bytes = end > begin ? end : 0;
  return Status::ok;
}

}  // namespace atomo::cpu
