// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Streams of bits in global memory, lowest bit of byte 0 first, or downward (core/bits.hpp): read at
/// any address without touching a byte outside, written into zeroed words that neighbours share.

#include "cuda/gpu.cuh"

namespace atomo::cuda {

/// Looks at bits anywhere in `bytes` bytes at any address; beyond their end everything is zero.
/// Memory is read in aligned words, those at the ends a byte at a time.
class BitView {
 public:
  __device__ BitView(const std::byte* begin, std::uint64_t bytes)
      : skipped_(reinterpret_cast<std::uintptr_t>(begin) % 4),
        words_(begin - skipped_),
        end_(skipped_ + bytes),
        lead_(8 * skipped_) {}

  /// The same bits, counted from `bit`.
  __device__ BitView from(std::uint64_t bit) const {
    BitView view = *this;
    view.lead_ += bit;
    return view;
  }

  /// 32 bits from `bit` on.
  __device__ std::uint32_t peek32(std::uint64_t bit) const {
    bit += lead_;
    const std::uint64_t at = bit / 32 * 4;
    return __funnelshift_r(word(at), word(at + 4), static_cast<unsigned>(bit % 32));
  }
  /// The two words that hold the 32 bits from `bit` on. Where they are not all inside, they are 0 and not
  /// `whole`, and `peek32` is to be asked.
  struct Pair {
    std::uint32_t low, high;
    unsigned shift;
    bool whole;
    [[nodiscard]] __device__ std::uint32_t bits() const {
      return __funnelshift_r(low, high, shift);
    }
  };
  /// Without a branch, so that several are on their way together.
  __device__ Pair load_pair(std::uint64_t bit) const {
    bit += lead_;
    const std::uint64_t at = bit / 32 * 4;
    const bool whole = at >= skipped_ && at + 8 <= end_;
    const auto* const two = reinterpret_cast<const std::uint32_t*>(words_ + at);
    return {whole ? two[0] : 0, whole ? two[1] : 0, static_cast<unsigned>(bit % 32), whole};
  }
  /// 64 bits from `bit` on.
  __device__ std::uint64_t peek64(std::uint64_t bit) const { return window(bit + lead_); }
  /// The 32 bits below `bit`, of a downward stream; its first is the highest.
  __device__ std::uint32_t peek32_below(std::uint64_t bit) const {
    bit += lead_;
    if (bit < 32) return bit == 0 ? 0 : word(0) << (32 - bit);
    const std::uint64_t at = (bit - 32) / 32 * 4;
    return __funnelshift_r(word(at), word(at + 4), static_cast<unsigned>(bit % 32));
  }
  /// 64 bits of a stream in either direction, the first the highest: those from `bit` on, or below it.
  /// Lanes that go different ways read at once.
  __device__ std::uint64_t peek64_along(std::uint64_t bit, bool upward) const {
    bit += lead_;
    if (!upward && bit < 64) return bit == 0 ? 0 : window(0) << (64 - bit);
    const std::uint64_t bits = window(upward ? bit : bit - 64);
    return upward ? __brevll(bits) : bits;
  }
  /// True when the bits from `bit` up to byte `end` are zero: at most 31 of them.
  __device__ bool zero(std::uint64_t bit, std::uint64_t end) const {
    return (peek32(bit) & ((1u << (8 * end - bit)) - 1)) == 0;
  }

 private:
  /// 64 bits from bit `bit` of `words_` on.
  __device__ std::uint64_t window(std::uint64_t bit) const {
    const std::uint64_t at = bit / 32 * 4;
    std::uint32_t low, middle, high;
    if (at >= skipped_ && at + 12 <= end_) {
      const auto* const three = reinterpret_cast<const std::uint32_t*>(words_ + at);
      low = three[0], middle = three[1], high = three[2];
    } else {
      low = word(at), middle = word(at + 4), high = word(at + 8);
    }
    const auto shift = static_cast<unsigned>(bit % 32);
    return __funnelshift_r(low, middle, shift) |
           (std::uint64_t{__funnelshift_r(middle, high, shift)} << 32);
  }
  /// The word `at` bytes from `words_`; zero outside.
  __device__ std::uint32_t word(std::uint64_t at) const {
    if (at >= skipped_ && at + 4 <= end_)
      return *reinterpret_cast<const std::uint32_t*>(words_ + at);
    std::uint32_t value = 0;
    for (unsigned k = 0; k < 4; ++k) {
      if (at + k >= skipped_ && at + k < end_)
        value |= static_cast<std::uint32_t>(words_[at + k]) << (8 * k);
    }
    return value;
  }

  std::uint64_t skipped_;   ///< bytes of the first word before the first byte
  const std::byte* words_;  ///< the first word
  std::uint64_t end_;       ///< from `words_`, in bytes
  std::uint64_t lead_;      ///< bits from `words_` to bit 0
};

/// Sets bits from `bit` on, one after the other. The words are zero where it writes but for what
/// others set, in any order and at the same time.
class BitSetter {
 public:
  __device__ BitSetter(std::uint32_t* words, std::uint64_t bit)
      : next_(words + bit / 32), fill_(static_cast<unsigned>(bit % 32)) {}

  /// The low `length` bits of `value`, which has no others; `length` is at most 32.
  __device__ void put(std::uint32_t value, unsigned length) {
    pending_ |= std::uint64_t{value} << fill_;
    fill_ += length;
    if (fill_ < 32) return;
    flush();
    ++next_;
    pending_ >>= 32;
    fill_ -= 32;
  }
  /// Must be called after the last bit.
  __device__ void flush() {
    const auto word = static_cast<std::uint32_t>(pending_);
    if (word != 0) atomicOr(next_, word);
  }

 private:
  std::uint32_t* next_;
  std::uint64_t pending_ = 0;
  unsigned fill_;
};

}  // namespace atomo::cuda
