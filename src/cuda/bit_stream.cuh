// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Streams of bits in global memory, lowest bit of byte 0 first: read at any address without
/// touching a byte outside, written into zeroed words that neighbours share.

#include "cuda/gpu.cuh"

namespace atomo::cuda {

/// Looks at bits anywhere in `bytes` bytes at any address; beyond their end everything is zero.
/// Memory is read in aligned words, those at the ends a byte at a time. Bit 0 is bit `from` of the
/// first byte.
class BitView {
 public:
  __device__ BitView(const std::byte* begin, std::uint64_t bytes, unsigned from = 0)
      : words_(reinterpret_cast<std::uintptr_t>(begin) & ~std::uintptr_t{3}),
        begin_(reinterpret_cast<std::uintptr_t>(begin)),
        end_(begin_ + bytes),
        lead_(static_cast<unsigned>(begin_ - words_) * 8 + from) {}

  /// 32 bits from `bit` on.
  __device__ std::uint32_t peek32(std::uint64_t bit) const {
    bit += lead_;
    return __funnelshift_r(word(bit / 32), word(bit / 32 + 1), static_cast<unsigned>(bit % 32));
  }
  /// 64 bits from `bit` on.
  __device__ std::uint64_t peek64(std::uint64_t bit) const {
    bit += lead_;
    const auto shift = static_cast<unsigned>(bit % 32);
    const std::uint32_t middle = word(bit / 32 + 1);
    const std::uint64_t low = __funnelshift_r(word(bit / 32), middle, shift);
    return low | (std::uint64_t{__funnelshift_r(middle, word(bit / 32 + 2), shift)} << 32);
  }

  /// True when the bits from `bit` up to byte `end` are zero: at most 31 of them.
  __device__ bool zero(std::uint64_t bit, std::uint64_t end) const {
    return (peek32(bit) & ((1u << (8 * end - bit)) - 1)) == 0;
  }

  /// The aligned word `index`, counted from the one that holds the first byte; zero outside.
  __device__ std::uint32_t word(std::uint64_t index) const {
    const std::uintptr_t address = words_ + 4 * index;
    if (address >= begin_ && address + 4 <= end_)
      return *reinterpret_cast<const std::uint32_t*>(address);
    std::uint32_t value = 0;
    for (unsigned k = 0; k < 4; ++k) {
      if (address + k >= begin_ && address + k < end_)
        value |= std::uint32_t{*reinterpret_cast<const std::uint8_t*>(address + k)} << (8 * k);
    }
    return value;
  }

 private:
  std::uintptr_t words_, begin_, end_;
  unsigned lead_;  ///< bits of the first word before bit 0
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
