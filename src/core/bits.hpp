// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Streams of bits, least significant bit first within bytes, and little-endian integers of a
/// message. Neither the writers nor the reader ever touch a byte outside their buffer, whatever they
/// are asked for.
///
/// A *downward* stream starts at its last bit: each field takes the bits just below those of the
/// field before, and a field's own highest bit is the first of them.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/host_device.hpp"

namespace atomo::core {

static_assert(std::endian::native == std::endian::little,
              "the message's integers are copied as they are");

template <typename Int>
[[nodiscard]] ATOMO_HD inline Int load_le(const std::byte* p) noexcept {
  Int value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <typename Int>
ATOMO_HD inline void store_le(std::byte* p, Int value) noexcept {
  std::memcpy(p, &value, sizeof value);
}

/// Which way a stream goes.
enum class Direction : std::uint8_t { upward, downward };

/// Writes a stream that begins at the begin of a buffer, a downward one at its end. Bytes behind the
/// last written bit are scratch until `finish`; when the buffer is full further bits are dropped and
/// `overflowed` tells.
template <Direction kDirection>
class DirectedBitWriter {
 public:
  DirectedBitWriter(std::byte* begin, std::size_t capacity) noexcept
      : first_(kUp ? begin : begin + capacity),
        next_(first_),
        last_(kUp ? begin + capacity : begin) {}

  /// The low `length` bits of `value`, which has no others; `length` is at most 56.
  void put(std::uint64_t value, unsigned length) noexcept {
    if constexpr (kUp) {
      pending_ |= value << fill_;
      fill_ += length;
    } else {
      fill_ += length;
      pending_ |= value << 1 << (63 - fill_);
    }
    if (bytes_between(next_, last_) >= 8) [[likely]] {
      std::memcpy(kUp ? next_ : next_ - 8, &pending_, 8);
      next_ +=
          kUp ? static_cast<std::ptrdiff_t>(fill_ >> 3) : -static_cast<std::ptrdiff_t>(fill_ >> 3);
      drop(fill_ & ~7u);
      fill_ &= 7u;
    } else {
      drain();
    }
  }

  /// Bits written so far.
  [[nodiscard]] std::uint64_t position() const noexcept {
    return bytes_between(first_, next_) * 8 + fill_;
  }

  /// Pads with zero bits to a whole byte; returns the bytes written.
  std::size_t finish() noexcept {
    if (fill_ > 0) {
      fill_ = 8;
      drain();
    }
    return bytes_between(first_, next_);
  }

  [[nodiscard]] bool overflowed() const noexcept { return overflowed_; }

 private:
  static constexpr bool kUp = kDirection == Direction::upward;

  [[nodiscard]] static std::size_t bytes_between(const std::byte* from,
                                                 const std::byte* to) noexcept {
    return static_cast<std::size_t>(kUp ? to - from : from - to);
  }
  void drop(unsigned bits) noexcept {
    if constexpr (kUp) {
      pending_ >>= bits;
    } else {
      pending_ <<= bits;
    }
  }
  void drain() noexcept {
    for (; fill_ >= 8; fill_ -= 8, drop(8)) {
      if (next_ == last_) {
        overflowed_ = true;
      } else if constexpr (kUp) {
        *next_++ = static_cast<std::byte>(pending_ & 0xFF);
      } else {
        *--next_ = static_cast<std::byte>(pending_ >> 56);
      }
    }
  }

  std::byte *first_, *next_, *last_;
  std::uint64_t pending_ = 0;  ///< its low `fill_` bits, of a downward stream its high ones
  unsigned fill_ = 0;
  bool overflowed_ = false;
};

using BitWriter = DirectedBitWriter<Direction::upward>;
using DownwardBitWriter = DirectedBitWriter<Direction::downward>;

/// Looks at bits anywhere in a buffer; outside of it everything is zero.
class BitReader {
 public:
  BitReader(const std::byte* begin, std::size_t bytes) noexcept : begin_(begin), bytes_(bytes) {}

  /// At least 57 bits from `bit` on, in the low end of the word.
  [[nodiscard]] std::uint64_t peek(std::uint64_t bit) const noexcept {
    const std::uint64_t byte = bit >> 3;
    if (byte + 8 <= bytes_) [[likely]]
      return load_le<std::uint64_t>(begin_ + byte) >> (bit & 7);
    return peek_near_end(byte) >> (bit & 7);
  }

  /// At least 57 bits of a downward stream, those below `bit`, in the high end of the word.
  [[nodiscard]] std::uint64_t peek_below(std::uint64_t bit) const noexcept {
    const std::uint64_t byte = (bit + 7) >> 3;
    if (byte >= 8 && byte <= bytes_) [[likely]]
      return load_le<std::uint64_t>(begin_ + byte - 8) << (8 * byte - bit);
    return peek_below_near_end(byte) << (8 * byte - bit);
  }

  /// `peek` or `peek_below`.
  template <Direction kDirection>
  [[nodiscard]] std::uint64_t window(std::uint64_t bit) const noexcept {
    return kDirection == Direction::upward ? peek(bit) : peek_below(bit);
  }

  /// Whether the words of a `peek` within the next `ahead` bits of a stream in this direction lie
  /// inside the buffer.
  template <Direction kDirection>
  [[nodiscard]] bool holds(std::uint64_t bit, std::uint64_t ahead) const noexcept {
    const std::uint64_t bits = 8 * std::uint64_t{bytes_}, needed = ahead + 64;
    if (bits < needed) return false;
    return kDirection == Direction::upward ? bit <= bits - needed : bit >= needed && bit <= bits;
  }
  /// `window` where `holds` allows it.
  template <Direction kDirection>
  [[nodiscard]] std::uint64_t look(std::uint64_t bit) const noexcept {
    if constexpr (kDirection == Direction::upward) {
      return load_le<std::uint64_t>(begin_ + (bit >> 3)) >> (bit & 7);
    } else {
      const std::uint64_t byte = (bit + 7) >> 3;
      return load_le<std::uint64_t>(begin_ + byte - 8) << (8 * byte - bit);
    }
  }

  /// `length` bits from `bit` on; `length` is at most 56.
  [[nodiscard]] std::uint64_t bits(std::uint64_t bit, unsigned length) const noexcept {
    return peek(bit) & ((std::uint64_t{1} << length) - 1);
  }

 private:
  [[nodiscard]] std::uint64_t peek_near_end(std::uint64_t byte) const noexcept {
    std::uint64_t value = 0;
    if (byte < bytes_) std::memcpy(&value, begin_ + byte, bytes_ - byte);
    return value;
  }

  [[nodiscard]] std::uint64_t peek_below_near_end(std::uint64_t byte) const noexcept {
    std::uint64_t value = 0;
    for (unsigned i = 1; i <= 8 && i <= byte; ++i) {
      if (byte - i < bytes_)
        value |= std::to_integer<std::uint64_t>(begin_[byte - i]) << (64 - 8 * i);
    }
    return value;
  }

  const std::byte* begin_;
  std::size_t bytes_;
};

/// True when the bytes [from, to) are all zero, as padding must be.
[[nodiscard]] inline bool all_zero(const std::byte* p, std::size_t from, std::size_t to) noexcept {
  std::byte any{0};
  for (std::size_t i = from; i < to; ++i) any |= p[i];
  return any == std::byte{0};
}

}  // namespace atomo::core
