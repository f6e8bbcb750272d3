// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The magnitudes of a layer as a histogram over the upper 15 bits of |x| (128 bins an octave), zeros
/// left out. Its bytes: u64 bins, u64 entries, u32 bits of the largest magnitude, u32 0, then a u64 a
/// bin that is not empty, ascending: 16 bits of its number above 48 of its count.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/bits.hpp"
#include "price/coordinate_levels.hpp"

namespace atomo::price {

class MagnitudeHistogram {
 public:
  struct Bin {
    std::uint32_t bin;
    std::uint64_t count;
  };
  static constexpr std::size_t kHeadBytes = 24;
  static constexpr unsigned kCountBits = 48;

  explicit MagnitudeHistogram(ConstBytes bytes) noexcept : data_(bytes.data()) {}
  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(load_le<std::uint64_t>(data_));
  }
  [[nodiscard]] std::uint64_t entries() const noexcept { return load_le<std::uint64_t>(data_ + 8); }
  [[nodiscard]] float largest() const noexcept {
    return std::bit_cast<float>(load_le<std::uint32_t>(data_ + 16));
  }
  [[nodiscard]] Bin operator[](std::size_t i) const noexcept {
    const auto word = load_le<std::uint64_t>(data_ + kHeadBytes + 8 * i);
    return {static_cast<std::uint32_t>(word >> kCountBits),
            word & ((std::uint64_t{1} << kCountBits) - 1)};
  }

 private:
  const std::byte* data_;
};

/// Room for the histogram of n entries.
[[nodiscard]] constexpr std::size_t magnitude_histogram_bytes(std::size_t n) noexcept {
  return MagnitudeHistogram::kHeadBytes + 8 * std::min<std::size_t>(n, kMagnitudeBins);
}

/// Appends bins in ascending order.
class MagnitudeHistogramWriter {
 public:
  explicit MagnitudeHistogramWriter(Bytes bytes) noexcept : data_(bytes.data()) {}
  void add(std::uint32_t bin, std::uint64_t count) noexcept {
    store_le(data_ + MagnitudeHistogram::kHeadBytes + 8 * size_++,
             std::uint64_t{bin} << MagnitudeHistogram::kCountBits | count);
  }
  void finish(std::uint64_t entries, float largest) noexcept {
    store_le(data_, std::uint64_t{size_});
    store_le(data_ + 8, entries);
    store_le(data_ + 16, std::uint64_t{std::bit_cast<std::uint32_t>(largest)});
  }

 private:
  std::byte* data_;
  std::size_t size_ = 0;
};

}  // namespace atomo::price
