// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The marks of a body: which atoms are kept, as a bit map or as Rice-coded gaps, whichever is
/// shorter.
///
/// Layout, from the body's first byte: a mode byte, then
/// - mode 0: a bit for each atom, bit i % 8 of byte i / 8;
/// - mode 1 + k, k = 0..12: for each segment of 4,096 atoms a u16 count of kept atoms and a u16
///   length in bits; then the segments' streams one after the other without gaps. A stream has, for
///   each kept atom, the number of atoms passed over since the one before in its segment (or since
///   the segment's start): its quotient by 2^k in unary (ones, then a zero) and the k low bits.
///
/// Zero bits follow up to an even number of bytes. A segment's gaps take fewer than 2^16 bits at
/// every k up to 12, and a larger k would not shorten them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "core/bit_counts.hpp"
#include "core/bits.hpp"

namespace atomo::coding {

inline constexpr std::uint64_t kMarksSegment = 4096;
inline constexpr unsigned kMaxRiceBits = 12;
/// A segment's marks, bit i % 64 of word i / 64.
using SegmentMarks = std::array<std::uint64_t, kMarksSegment / 64>;

/// How the marks of a layer will be written.
struct MarksChoice {
  std::uint8_t mode = 0;
  std::size_t bytes = 0;  ///< of the section, padding included
};

[[nodiscard]] constexpr std::uint64_t marks_segments(std::uint64_t atoms) noexcept {
  return atoms / kMarksSegment + (atoms % kMarksSegment != 0 ? 1 : 0);
}

/// The longest section: the bit map.
[[nodiscard]] constexpr std::size_t max_marks_bytes(std::uint64_t atoms) noexcept {
  return (1 + atoms / 8 + (atoms % 8 != 0 ? 1 : 0) + 1) / 2 * 2;
}

/// Words that hold the marks of `atoms` atoms.
[[nodiscard]] constexpr std::size_t marks_words(std::uint64_t atoms) noexcept {
  return atoms / 64 + (atoms % 64 != 0 ? 1 : 0);
}

/// Calls `visit(i)` for every set bit i of `words`, in order, until it returns false; whether it
/// never did.
template <typename Visit>
bool for_each_mark(std::span<const std::uint64_t> words, Visit visit) noexcept {
  for (std::size_t w = 0; w < words.size(); ++w) {
    for (std::uint64_t left = words[w]; left != 0; left &= left - 1) {
      if (!visit(std::uint64_t{w} * 64 + static_cast<std::uint64_t>(core::countr_zero(left)))) {
        return false;
      }
    }
  }
  return true;
}

/// `marks` has no bit beyond the last atom.
[[nodiscard]] MarksChoice choose_marks(std::span<const std::uint64_t> marks,
                                       std::uint64_t atoms) noexcept;

/// Writes `plan.bytes` bytes.
void write_marks(const MarksChoice& plan, std::span<const std::uint64_t> marks, std::uint64_t atoms,
                 std::byte* out) noexcept;

/// Reads the section a segment at a time; trusts nothing.
class MarksReader {
 public:
  /// Checks the section's frame and padding. False: the bytes are no section of so many atoms.
  [[nodiscard]] bool open(ConstBytes body, std::uint64_t atoms) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t kept() const noexcept { return kept_; }

  /// The marks of the next segment, in order. False: the stream is no sequence of gaps of the
  /// stated length.
  [[nodiscard]] bool next(SegmentMarks& marks) noexcept;

 private:
  [[nodiscard]] bool open_gaps(ConstBytes body) noexcept;
  [[nodiscard]] bool next_gaps(std::uint64_t size, SegmentMarks& marks) noexcept;

  const std::byte* data_ = nullptr;
  std::uint64_t atoms_ = 0, segment_ = 0, kept_ = 0;
  std::size_t bytes_ = 0;
  unsigned mode_ = 0;
  BitReader stream_{nullptr, 0};
  std::uint64_t bit_ = 0;
};

}  // namespace atomo::coding
