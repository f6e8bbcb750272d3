// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Rice words with a limited quotient, over streams of bits written from the lowest bit of each
/// byte up.
///
/// A value v under parameter k: q = v >> k ones, a zero, then the k low bits of v. When q would be
/// `kRiceLimit` or more: `kRiceLimit` ones and no zero, then v in `raw` bits. So a word is never
/// longer than `kRiceLimit` + raw bits, and one outlier cannot make a stream long.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace atomo::detail {

inline constexpr unsigned kRiceLimit = 20;

static_assert(std::endian::native == std::endian::little, "streams are stored in place");

[[nodiscard]] constexpr unsigned rice_bits(std::uint32_t v, unsigned k, unsigned raw) noexcept {
  const std::uint32_t q = v >> k;
  return q < kRiceLimit ? q + 1 + k : kRiceLimit + raw;
}

struct RiceWord {
  std::uint64_t bits;
  unsigned count;
};

[[nodiscard]] constexpr RiceWord rice_word(std::uint32_t v, unsigned k, unsigned raw) noexcept {
  const std::uint32_t q = v >> k;
  if (q >= kRiceLimit) {
    return {((std::uint64_t{1} << kRiceLimit) - 1) | (std::uint64_t{v} << kRiceLimit),
            kRiceLimit + raw};
  }
  const std::uint64_t low = v & ((1u << k) - 1);
  return {((std::uint64_t{1} << q) - 1) | (low << (q + 1)), q + 1 + k};
}

/// Appends bits to memory that has 8 bytes of room beyond what will be written.
class RiceWriter {
 public:
  explicit RiceWriter(std::byte* at) noexcept : begin_(at), at_(at) {}

  /// At most 56 bits.
  void put(std::uint64_t bits, unsigned count) noexcept {
    held_ |= bits << used_;
    std::memcpy(at_, &held_, 8);
    used_ += count;
    at_ += used_ >> 3;
    held_ >>= used_ & ~7u;
    used_ &= 7;
  }
  void put(RiceWord word) noexcept { put(word.bits, word.count); }

  /// Whole bytes, the last one padded with zero bits.
  std::size_t finish() noexcept {
    if (used_ > 0) *at_++ = static_cast<std::byte>(held_);
    held_ = used_ = 0;
    return static_cast<std::size_t>(at_ - begin_);
  }

 private:
  std::byte* begin_;
  std::byte* at_;
  std::uint64_t held_ = 0;
  unsigned used_ = 0;
};

/// Reads bits of [data, data + size); beyond the end there are zeros.
class RiceReader {
 public:
  RiceReader(const std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}

  /// At least 57 bits from the position on.
  [[nodiscard]] std::uint64_t peek() const noexcept {
    const std::size_t byte = bit_ >> 3;
    std::uint64_t word = 0;
    if (byte + 8 <= size_) {
      std::memcpy(&word, data_ + byte, 8);
    } else if (byte < size_) {
      std::memcpy(&word, data_ + byte, size_ - byte);
    }
    return word >> (bit_ & 7);
  }
  void skip(unsigned count) noexcept { bit_ += count; }
  [[nodiscard]] std::size_t bit() const noexcept { return bit_; }

  /// `canonical` turns false on a raw value that a shorter word exists for.
  std::uint32_t rice(unsigned k, unsigned raw, bool& canonical) noexcept {
    const std::uint64_t word = peek();
    const auto q = static_cast<unsigned>(std::countr_one(word));
    if (q < kRiceLimit) {
      skip(q + 1 + k);
      return (q << k) | (static_cast<std::uint32_t>(word >> (q + 1)) & ((1u << k) - 1));
    }
    const std::uint32_t v =
        static_cast<std::uint32_t>(word >> kRiceLimit) & ((std::uint32_t{1} << raw) - 1);
    canonical &= (v >> k) >= kRiceLimit;
    skip(kRiceLimit + raw);
    return v;
  }

 private:
  const std::byte* data_;
  std::size_t size_, bit_ = 0;
};

}  // namespace atomo::detail
