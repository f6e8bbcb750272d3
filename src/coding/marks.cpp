// SPDX-License-Identifier: Apache-2.0
/// Writes and reads marks: chooses between the bit map and the Rice codes of the gaps, and refuses
/// bytes that no encoder writes.
#include "coding/marks.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace atomo::coding {
namespace {

/// Calls `visit(gap)` for every kept atom of one segment.
template <typename Visit>
void for_each_gap(std::span<const std::uint64_t> words, Visit visit) {
  std::uint64_t next = 0;
  for_each_mark(words, [&](std::uint64_t at) {
    visit(at - next);
    next = at + 1;
    return true;
  });
}

std::span<const std::uint64_t> segment_words(std::span<const std::uint64_t> marks,
                                             std::uint64_t segment) noexcept {
  const std::size_t begin = segment * (kMarksSegment / 64);
  return marks.subspan(begin, std::min<std::size_t>(kMarksSegment / 64, marks.size() - begin));
}

std::size_t even(std::size_t bytes) noexcept { return (bytes + 1) / 2 * 2; }

/// Bits of all gaps at every parameter.
std::array<std::uint64_t, kMaxRiceBits + 1> gap_bits(std::span<const std::uint64_t> marks,
                                                     std::uint64_t segments) noexcept {
  std::array<std::uint32_t, kMarksSegment> counts{};  // of gaps
  std::array<std::uint64_t, kMaxRiceBits + 1> bits{};
  std::uint64_t largest = 0;
  const auto spend = [&] {
    for (std::uint64_t gap = 0; gap <= largest; ++gap) {
      if (counts[gap] == 0) continue;
      for (unsigned k = 0; k <= kMaxRiceBits; ++k) bits[k] += counts[gap] * ((gap >> k) + 1 + k);
    }
    counts.fill(0);
  };
  constexpr std::uint64_t kTogether = std::uint64_t{1} << 19;  // segments whose counts fit
  for (std::uint64_t s = 0; s < segments; ++s) {
    for_each_gap(segment_words(marks, s), [&](std::uint64_t gap) {
      ++counts[gap];
      largest = std::max(largest, gap);
    });
    if (s % kTogether == kTogether - 1) spend();
  }
  spend();
  return bits;
}

void write_gaps(unsigned k, std::span<const std::uint64_t> marks, std::uint64_t segments,
                std::byte* heads, std::size_t stream_bytes) noexcept {
  std::byte* const stream = heads + 4 * segments;
  BitWriter out(stream, stream_bytes);
  for (std::uint64_t s = 0; s < segments; ++s) {
    const std::uint64_t before = out.position();
    std::uint16_t kept = 0;
    for_each_gap(segment_words(marks, s), [&](std::uint64_t gap) {
      std::uint64_t ones = gap >> k;
      for (; ones >= 32; ones -= 32) out.put(0xFFFFFFFFu, 32);
      const std::uint64_t low = gap & ((std::uint64_t{1} << k) - 1);
      const auto length = static_cast<unsigned>(ones) + 1;
      out.put(((std::uint64_t{1} << ones) - 1) | low << length, length + k);
      ++kept;
    });
    store_le(heads + 4 * s, kept);
    store_le(heads + 4 * s + 2, static_cast<std::uint16_t>(out.position() - before));
  }
  out.finish();
}

}  // namespace

MarksChoice choose_marks(std::span<const std::uint64_t> marks, std::uint64_t atoms) noexcept {
  MarksChoice best{0, max_marks_bytes(atoms)};
  const std::uint64_t segments = marks_segments(atoms);
  const auto bits = gap_bits(marks, segments);
  for (unsigned k = 0; k <= kMaxRiceBits; ++k) {
    const std::size_t bytes = even(1 + 4 * segments + (bits[k] + 7) / 8);
    if (bytes < best.bytes) best = {static_cast<std::uint8_t>(1 + k), bytes};
  }
  return best;
}

void write_marks(const MarksChoice& plan, std::span<const std::uint64_t> marks, std::uint64_t atoms,
                 std::byte* out) noexcept {
  out[plan.bytes - 1] = std::byte{0};
  out[0] = static_cast<std::byte>(plan.mode);
  if (plan.mode == 0) {
    std::memcpy(out + 1, marks.data(), (atoms + 7) / 8);
    return;
  }
  const std::uint64_t segments = marks_segments(atoms);
  write_gaps(plan.mode - 1u, marks, segments, out + 1, plan.bytes - 1 - 4 * segments);
}

bool MarksReader::open(ConstBytes body, std::uint64_t atoms) noexcept {
  *this = MarksReader{};
  if (body.empty() || atoms == 0) return false;
  data_ = body.data() + 1;
  atoms_ = atoms;
  mode_ = static_cast<unsigned>(body[0]);
  if (mode_ > 1 + kMaxRiceBits) return false;
  if (mode_ != 0) return open_gaps(body);
  const std::size_t map_bytes = (atoms + 7) / 8;
  bytes_ = even(1 + map_bytes);
  if (body.size() < bytes_ || !all_zero(body.data(), 1 + map_bytes, bytes_)) return false;
  if (atoms % 8 != 0 && (static_cast<unsigned>(data_[map_bytes - 1]) >> (atoms % 8)) != 0)
    return false;
  for (std::size_t i = 0; i < map_bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data_ + i, std::min<std::size_t>(8, map_bytes - i));
    kept_ += static_cast<std::uint64_t>(std::popcount(word));
  }
  return kept_ != 0;
}

bool MarksReader::open_gaps(ConstBytes body) noexcept {
  const std::uint64_t segments = marks_segments(atoms_);
  if ((body.size() - 1) / 4 < segments) return false;
  std::uint64_t bits = 0;
  for (std::uint64_t s = 0; s < segments; ++s) {
    kept_ += load_le<std::uint16_t>(data_ + 4 * s);
    bits += load_le<std::uint16_t>(data_ + 4 * s + 2);
  }
  const std::size_t used = 1 + 4 * segments + (bits + 7) / 8;
  bytes_ = even(used);
  if (body.size() < bytes_ || kept_ == 0 || !all_zero(body.data(), used, bytes_)) return false;
  if (bits % 8 != 0 && (static_cast<unsigned>(body[used - 1]) >> (bits % 8)) != 0) return false;
  stream_ = BitReader(data_ + 4 * segments, (bits + 7) / 8);
  return true;
}

bool MarksReader::next(SegmentMarks& marks) noexcept {
  marks.fill(0);
  const std::uint64_t size = std::min(kMarksSegment, atoms_ - segment_ * kMarksSegment);
  if (mode_ == 0) {
    std::memcpy(marks.data(), data_ + segment_ * (kMarksSegment / 8), (size + 7) / 8);
    ++segment_;
    return true;
  }
  const bool good = next_gaps(size, marks);
  ++segment_;
  return good;
}

bool MarksReader::next_gaps(std::uint64_t size, SegmentMarks& marks) noexcept {
  const unsigned k = mode_ - 1;
  const auto count = load_le<std::uint16_t>(data_ + 4 * segment_);
  const std::uint64_t end = bit_ + load_le<std::uint16_t>(data_ + 4 * segment_ + 2);
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < count; ++i, ++at) {
    std::uint64_t quotient = 0;
    for (;;) {
      const auto ones =
          static_cast<std::uint64_t>(std::countr_one(stream_.peek(bit_) & 0xFFFFFFFFu));
      quotient += ones;
      bit_ += ones;
      if (ones < 32) break;
      if (bit_ >= end) return false;
    }
    ++bit_;  // the zero
    at += (quotient << k) + stream_.bits(bit_, k);
    bit_ += k;
    if (bit_ > end || at >= size) return false;
    marks[at / 64] |= std::uint64_t{1} << (at % 64);
  }
  return bit_ == end;
}

}  // namespace atomo::coding
