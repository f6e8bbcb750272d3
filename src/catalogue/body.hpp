// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the codecs of the catalogue share: bodies written and read byte by byte and bit by bit, random
/// words one after another, rounding between two levels. A reader throws for what is wrong.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ranges>
#include <span>
#include <type_traits>

#include "atomo/own_codec.hpp"

namespace atomo::catalogue {

static_assert(std::endian::native == std::endian::little);

/// Adds what all of these codecs claim where they are unbiased. The bound is of f32 arithmetic, and of
/// draws of 32 bits.
inline void claim_unbiased(Traits& traits) noexcept {
  traits.unbiased = traits.averages_over_workers = true;
  traits.bias_bound = 1e-5;
}

/// \throws Error
inline void require(bool holds, const char* what) {
  if (!holds) throw Error(what);
}

/// The nearest f32 within the finite ones.
inline float finite(double v) noexcept {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(v > kMost ? kMost : v < -kMost ? -kMost : v);
}

/// The least f32 that is not below `v`, at most the largest finite one.
inline float rounded_up(double v) noexcept {
  const float f = finite(v);
  return double{f} < v && f < std::numeric_limits<float>::max()
             ? std::nextafter(f, std::numeric_limits<float>::infinity())
             : f;
}

/// The largest magnitude.
inline float largest_of(std::span<const float> x) noexcept {
  float most = 0;
  for (const float v : x) most = std::fabs(v) > most ? std::fabs(v) : most;
  return most;
}

/// The sum of squares, in four sums of f64.
inline double energy_of(std::span<const float> x) noexcept {
  double sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= x.size(); i += 4)
    for (std::size_t k = 0; k < 4; ++k) sums[k] += double{x[i + k]} * double{x[i + k]};
  for (; i < x.size(); ++i) sums[0] += double{x[i]} * double{x[i]};
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Word i of SplitMix64 of a seed.
inline std::uint64_t mixed(std::uint64_t seed, std::uint64_t i) noexcept {
  std::uint64_t v = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
  v = (v ^ v >> 27) * 0x94D049BB133111EBu;
  return v ^ v >> 31;
}

/// The cell, of `cells`, that a hash of a seed gives an entry.
inline std::size_t cell_of(std::uint64_t seed, std::uint64_t i, std::uint64_t cells) noexcept {
  return (mixed(seed, i) >> 32) * cells >> 32;
}

/// Random words of a layer, one after another.
class Words {
 public:
  Words(const Draws& draws, std::uint64_t first) noexcept : draws_(draws), next_(first) {}

  std::uint32_t next() noexcept {
    if (at_ == kHeld) {
      draws_.fill(next_, held_);
      next_ += kHeld;
      at_ = 0;
    }
    return held_[at_++];
  }
  /// True with this chance; up to 2^-32 of it.
  bool happens(double chance) noexcept { return static_cast<double>(next()) < chance * 0x1p32; }

 private:
  static constexpr std::size_t kHeld = 512;
  const Draws& draws_;
  std::uint64_t next_;
  std::size_t at_ = kHeld;
  std::uint32_t held_[kHeld];
};

/// Writes numbers, least byte first. \throws Error beyond the end.
class Writer {
 public:
  explicit Writer(Bytes out) noexcept : out_(out) {}

  template <typename T>
  void put(T value) {
    require(sizeof value <= out_.size() - at_, "the body is longer than its bound");
    std::memcpy(out_.data() + at_, &value, sizeof value);
    at_ += sizeof value;
  }
  void put_all(std::span<const float> values) {
    require(values.size_bytes() <= out_.size() - at_, "the body is longer than its bound");
    if (!values.empty()) std::memcpy(out_.data() + at_, values.data(), values.size_bytes());
    at_ += values.size_bytes();
  }
  [[nodiscard]] Bytes rest() const noexcept { return out_.subspan(at_); }
  void skip(std::size_t bytes) noexcept { at_ += bytes; }
  [[nodiscard]] std::size_t bytes() const noexcept { return at_; }

 private:
  Bytes out_;
  std::size_t at_ = 0;
};

/// Reads them. \throws Error beyond the end, and for an f32 that is not finite.
class Reader {
 public:
  explicit Reader(ConstBytes in) noexcept : in_(in) {}

  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    if constexpr (std::is_same_v<T, float>) require(std::isfinite(value), "a number is not finite");
    return value;
  }
  void get_all(std::span<float> values) {
    const ConstBytes from = take(values.size_bytes());
    if (!values.empty()) std::memcpy(values.data(), from.data(), from.size());
    for (const float v : values) require(std::isfinite(v), "a number is not finite");
  }
  ConstBytes take(std::size_t bytes) {
    require(bytes <= in_.size(), "the body ends early");
    const ConstBytes taken = in_.first(bytes);
    in_ = in_.subspan(bytes);
    return taken;
  }
  [[nodiscard]] ConstBytes rest() const noexcept { return in_; }
  void end() const { require(in_.empty(), "the body is too long"); }

 private:
  ConstBytes in_;
};

/// Writes words of bits, the lowest bit first. \throws Error beyond the end.
class BitWriter {
 public:
  explicit BitWriter(Bytes out) noexcept : out_(out) {}

  /// `bits` is 0 to 32, `value` has no other bits.
  void put(std::uint32_t value, unsigned bits) {
    held_ |= std::uint64_t{value} << count_;
    count_ += bits;
    if (count_ < 32) return;
    require(at_ + 4 <= out_.size(), "the body is longer than its bound");
    const auto word = static_cast<std::uint32_t>(held_);
    std::memcpy(out_.data() + at_, &word, 4);
    at_ += 4;
    held_ >>= 32;
    count_ -= 32;
  }
  /// `zeros` zeros and a one.
  void put_unary(std::uint64_t zeros) {
    for (; zeros >= 32; zeros -= 32) put(0, 32);
    put(0, static_cast<unsigned>(zeros));
    put(1, 1);
  }
  /// Fills the last byte with zeros; the bytes in all.
  std::size_t finish() {
    for (; count_ > 0; count_ = count_ > 8 ? count_ - 8 : 0) {
      require(at_ < out_.size(), "the body is longer than its bound");
      out_[at_++] = static_cast<std::byte>(held_);
      held_ >>= 8;
    }
    return at_;
  }

 private:
  Bytes out_;
  std::size_t at_ = 0;
  std::uint64_t held_ = 0;
  unsigned count_ = 0;
};

/// Reads them. \throws Error beyond the end.
class BitReader {
 public:
  explicit BitReader(ConstBytes in) noexcept : in_(in) {}

  /// At least 32 bits, zeros beyond the end.
  std::uint64_t peek() noexcept {
    if (count_ < 32) refill();
    return held_;
  }
  void skip(unsigned bits) {
    require(bits <= count_, "the body ends early");
    held_ >>= bits;
    count_ -= bits;
  }
  std::uint32_t get(unsigned bits) {
    const auto value = static_cast<std::uint32_t>(peek() & ((std::uint64_t{1} << bits) - 1));
    skip(bits);
    return value;
  }
  std::uint64_t get_unary() {
    std::uint64_t zeros = 0;
    for (;;) {
      const auto low = static_cast<std::uint32_t>(peek());
      const auto run = static_cast<unsigned>(std::countr_zero(low));
      zeros += run;
      skip(run < 32 ? run + 1 : 32);
      if (run < 32) return zeros;
    }
  }
  /// The last byte's other bits are zeros; the bytes in all.
  std::size_t finish() {
    const std::uint64_t rest = held_ & ((1u << count_ % 8) - 1);
    require(rest == 0, "the last byte has bits that mean nothing");
    return at_ - count_ / 8;
  }
  /// The same, and nothing stands behind it.
  void end() { require(at_ == in_.size() && count_ < 8 && held_ == 0, "the body is too long"); }

 private:
  void refill() noexcept {
    if (at_ + 4 <= in_.size()) {
      std::uint32_t word = 0;
      std::memcpy(&word, in_.data() + at_, 4);
      held_ |= std::uint64_t{word} << count_;
      at_ += 4;
      count_ += 32;
      return;
    }
    for (; at_ < in_.size() && count_ < 56; ++at_, count_ += 8)
      held_ |= std::uint64_t{static_cast<std::uint8_t>(in_[at_])} << count_;
  }

  ConstBytes in_;
  std::size_t at_ = 0;
  std::uint64_t held_ = 0;
  unsigned count_ = 0;
};

/// Codes of `bits` bits each, packed.
inline std::size_t packed_bytes(std::size_t count, unsigned bits) noexcept {
  return (count / 8) * bits + ((count % 8) * bits + 7) / 8;
}
template <std::ranges::sized_range R>
void put_codes(Writer& out, const R& codes, unsigned bits) {
  BitWriter packed(out.rest());
  for (const auto code : codes) packed.put(code, bits);
  out.skip(packed.finish());
}
template <std::ranges::sized_range R>
void get_codes(Reader& in, R&& codes, unsigned bits) {
  BitReader packed(in.take(packed_bytes(std::ranges::size(codes), bits)));
  for (auto& code : codes)
    code = static_cast<std::remove_reference_t<decltype(code)>>(packed.get(bits));
  packed.end();
}

}  // namespace atomo::catalogue
