// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Natural compression of one entry (arXiv 1905.10988, section 2): the mantissa is dropped, and the
/// exponent goes up by one with the probability that makes the result unbiased. A code is the
/// exponent field of the f32 that it decodes to; 0 is zero, 255 the largest f32 in place of 2^128.

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

inline constexpr unsigned kMantissaBits = 23;

/// The code below x, and the chance in units of 2^-23 that it goes up. Below 2^-126 the codes are 0
/// and 1, and the chance is |x| / 2^-126.
struct NaturalStep {
  std::uint32_t code, chance;
};
[[nodiscard]] ATOMO_HD constexpr NaturalStep natural_step(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
  return {bits >> kMantissaBits, bits & ((1u << kMantissaBits) - 1)};
}

/// The code of a finite entry; `random` is uniform over 32 bits. Of its first 23 what is missing to all ones is
/// added to the mantissa: the sum reaches the exponent when they are below the chance.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t natural_code(float x,
                                                            std::uint32_t random) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
  return (bits + (~random >> (32 - kMantissaBits))) >> kMantissaBits;
}

[[nodiscard]] ATOMO_HD constexpr float natural_value(std::uint32_t code,
                                                     std::uint32_t negative) noexcept {
  const std::uint32_t magnitude = code == 255 ? 0x7F7FFFFFu : code << kMantissaBits;
  return std::bit_cast<float>(magnitude | negative << 31);
}

}  // namespace atomo::math
