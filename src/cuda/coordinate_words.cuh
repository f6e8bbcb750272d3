// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The words of a stream of coordinates (FORMAT.md, "2 coordinate") as a thread reads them, from bits
/// that its block has in shared memory, whichever way the stream goes: the first bit is the highest
/// of the first of 32-bit words. The fields of a stream that goes up are then upside down.
///
/// A reader has
///   pass(at)              passes over a word; the places that it takes
///   kGaps                 whether words have a gap, as those of lists do
///   read_gap(at, good)    the gap, the first part of a word
///   read_level(at, good)  the rest of it, a signed level; behind `read_gap`, where there is one
///   kLevels               whether levels differ
/// `at` is a bit, counted from the first of the staged ones. `good` turns false where a word breaks
/// the format; any bits give some word.

#include "cuda/gpu.cuh"
#include "format/coordinate_body.hpp"

namespace atomo::cuda::coordinate {

/// What the words of a stream are made of.
struct WordShape {
  unsigned gap_k, level_k, level_bits;
  bool down, gaps, levels;
  /// The least level.
  [[nodiscard]] __host__ __device__ constexpr std::uint32_t base() const {
    return !gaps ? 0 : down ? 2 : 1;
  }
};
/// The longest word: a gap, a sign and a level.
inline constexpr unsigned kLongestWord = kRiceLimit + kGapRawBits + 1 + kRiceLimit + kWideLevelBits;

/// Of segments that are not wide: a Rice word nearly always fits the 32 bits that are looked at.
template <bool kDown, bool kHasGaps, bool kHasLevels>
class NarrowWords {
 public:
  static constexpr bool kGaps = kHasGaps, kLevels = kHasLevels;
  __device__ NarrowWords(const std::uint32_t* staged, const WordShape& shape)
      : staged_(staged), gap_k_(shape.gap_k), level_k_(shape.level_k) {}

  __device__ std::uint32_t pass(std::uint32_t& at) const {
    bool any = true;
    if constexpr (!kGaps) {
      const Number level = read(at, level_k_, kLevelBits, any);
      at += level.value != 0 ? 1 : 0;
      return 1;
    }
    const std::uint32_t places = read(at, gap_k_, kGapRawBits, any).value + 1;
    at += 1;  // the sign
    if constexpr (kLevels) {
      const unsigned ones = leading_ones(top(at));
      at += ones < kRiceLimit ? ones + 1 + level_k_ : kRiceLimit + kLevelBits;
    }
    return places;
  }

  __device__ std::uint32_t read_gap(std::uint32_t& at, bool& good) {
    const Number gap = read(at, gap_k_, kGapRawBits, good);
    sign_ = gap.rest;
    return gap.value;
  }
  __device__ std::int32_t read_level(std::uint32_t& at, bool& good) {
    std::uint32_t level = kBase;
    bool has_sign = true;
    if constexpr (kGaps) at += 1;
    if constexpr (kLevels) {
      const Number number = read(at, level_k_, kLevelBits, good);
      good = good && number.value <= kMaxLevel - kBase;
      level += number.value;
      if constexpr (!kGaps) {
        has_sign = level != 0;
        at += has_sign ? 1 : 0;
        sign_ = number.rest;
      }
    }
    const auto magnitude = static_cast<std::int32_t>(level & kMaxLevel);
    return has_sign && sign_ >> 31 != 0 ? -magnitude : magnitude;
  }

 private:
  static constexpr std::uint32_t kBase =
      WordShape{0, 0, kLevelBits, kDown, kHasGaps, kHasLevels}.base();
  struct Number {
    std::uint32_t value;
    std::uint32_t rest;  ///< what follows: one bit at least, the highest
  };

  /// 32 bits from `at` on.
  [[nodiscard]] __device__ std::uint32_t top(std::uint32_t at) const {
    const std::uint32_t* const word = staged_ + at / 32;
    return __funnelshift_l(word[1], word[0], at);
  }
  __device__ static unsigned leading_ones(std::uint32_t bits) {
    return static_cast<unsigned>(__clz(static_cast<int>(~bits)));
  }
  /// Words of fewer ones have at most 31 bits.
  __device__ static unsigned short_ones(unsigned k) {
    return 31 - k < kRiceLimit ? 31 - k : kRiceLimit;
  }
  /// The number in the highest `count` bits, at most 31.
  __device__ static std::uint32_t field(std::uint32_t bits, unsigned count) {
    return kDown ? bits >> 1 >> (31 - count) : __brev(bits) & ((1u << count) - 1);
  }
  /// A word of rice.hpp, and past it.
  __device__ Number read(std::uint32_t& at, unsigned k, unsigned raw, bool& good) const {
    const std::uint32_t bits = top(at);
    const unsigned ones = leading_ones(bits);
    if (ones < short_ones(k)) {
      const std::uint32_t behind = bits << (ones + 1);
      at += ones + 1 + k;
      return {ones << k | field(behind, k), behind << k};
    }
    return read_long(at, ones, k, raw, good);
  }
  __device__ Number read_long(std::uint32_t& at, unsigned ones, unsigned k, unsigned raw,
                              bool& good) const {
    const bool is_raw = ones >= kRiceLimit;
    at += is_raw ? kRiceLimit : ones + 1;
    const unsigned count = is_raw ? raw : k;
    const std::uint32_t number = field(top(at), count);
    at += count;
    good = good && (!is_raw || number >> k >= kRiceLimit);
    return {is_raw ? number : ones << k | number, top(at)};
  }

  const std::uint32_t* staged_;
  unsigned gap_k_, level_k_;
  std::uint32_t sign_ = 0;  ///< the highest bit
};

/// Of wide segments, which sums of messages have: any shape.
class WideWords {
 public:
  static constexpr bool kGaps = true, kLevels = true;  ///< in any case: they may have no length
  __device__ WideWords(const std::uint32_t* staged, const WordShape& shape)
      : staged_(staged), shape_(shape) {}

  __device__ std::uint32_t pass(std::uint32_t& at) {
    bool any = true;
    const std::uint32_t places = read_gap(at, any) + 1;
    (void)read_level(at, any);
    return places;
  }
  __device__ std::uint32_t read_gap(std::uint32_t& at, bool& good) {
    Cursor in{staged_, at, shape_.down};
    return shape_.gaps ? read_rice(in, shape_.gap_k, kGapRawBits, good) : 0;
  }
  __device__ std::int64_t read_level(std::uint32_t& at, bool& good) {
    Cursor in{staged_, at, shape_.down};
    bool negative = shape_.gaps && in.read_sign();
    std::uint64_t level = shape_.base();
    if (shape_.levels) level += read_wide_rice(in, shape_.level_k, shape_.level_bits, good);
    good = good && level >> shape_.level_bits == 0;
    if (!shape_.gaps && level != 0) negative = in.read_sign();
    return negative ? -static_cast<std::int64_t>(level) : static_cast<std::int64_t>(level);
  }

 private:
  /// The next bits, the first highest.
  struct Window {
    std::uint64_t bits;
    bool down;
    [[nodiscard]] __device__ unsigned ones() const {
      return static_cast<unsigned>(__clzll(static_cast<long long>(~bits)));
    }
    [[nodiscard]] __device__ std::uint64_t field(unsigned skipped, unsigned count) const {
      const std::uint64_t number = bits << skipped;
      return down ? number >> 1 >> (63 - count)
                  : __brevll(number) & ((std::uint64_t{1} << count) - 1);
    }
  };
  /// What read_rice takes.
  struct Cursor {
    const std::uint32_t* staged;
    std::uint32_t& at;
    bool down;
    [[nodiscard]] __device__ Window window() const {
      const std::uint32_t* const word = staged + at / 32;
      const std::uint32_t high = __funnelshift_l(word[1], word[0], at),
                          low = __funnelshift_l(word[2], word[1], at);
      return {std::uint64_t{high} << 32 | low, down};
    }
    __device__ void move(unsigned count) { at += count; }
    __device__ bool read_sign() {
      const bool negative = window().bits >> 63 != 0;
      move(1);
      return negative;
    }
  };

  const std::uint32_t* staged_;
  WordShape shape_;
};

}  // namespace atomo::cuda::coordinate
