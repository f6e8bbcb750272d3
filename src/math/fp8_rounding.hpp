// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Stochastic rounding to eight bits of floating point under one scale a layer (FORMAT.md, "fp8"): OCP's
/// E4M3 and E5M2 ("OCP 8-bit Floating Point Specification", 2023). The scale is the least power of
/// two at which the largest magnitude is no number beyond the largest, so nothing saturates.

#include <bit>
#include <cstdint>
#include <limits>

#include "core/host_device.hpp"
#include "math/draw_between.hpp"

namespace atomo::math {

/// The numbers of a type without their sign: code c is mantissa c mod 2^m under exponent field c / 2^m.
struct Fp8Type {
  int mantissa;             ///< m, bits
  int least_exponent;       ///< of normal numbers
  int largest_exponent;     ///< the largest number is 1.75 times 2 to this
  std::uint32_t last_code;  ///< of the largest number; those behind it are no numbers
  int least_scale;          ///< at 2 to this the distance of subnormal numbers is 2^-149
};
/// By the parameters on the wire: 0 E4M3, 1 E5M2.
[[nodiscard]] ATOMO_HD constexpr Fp8Type fp8_type(std::uint32_t params) noexcept {
  return params == 0 ? Fp8Type{3, -6, 8, 0x7E, -140} : Fp8Type{2, -14, 15, 0x7B, -133};
}

/// 2^exponent.
[[nodiscard]] ATOMO_HD constexpr double power_of_two(int exponent) noexcept {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}
/// The exponent of a normal f64, below all of them for 0.
[[nodiscard]] ATOMO_HD constexpr int exponent_of(double magnitude) noexcept {
  return static_cast<int>(std::bit_cast<std::uint64_t>(magnitude) >> 52) - 1023;
}

/// The exponent of the scale, from the largest magnitude.
[[nodiscard]] ATOMO_HD constexpr int fp8_scale(const Fp8Type& type, float largest) noexcept {
  const double x = largest;
  const int exponent = exponent_of(x);
  const bool over = largest > 0 && x > 1.75 * power_of_two(exponent);
  const int scale = exponent - type.largest_exponent + (over ? 1 : 0);
  return scale < type.least_scale ? type.least_scale : scale;
}

/// Whether a decoder takes the bits of an f32 for a scale; then `exponent` is its.
[[nodiscard]] ATOMO_HD constexpr bool read_fp8_scale(const Fp8Type& type, std::uint32_t bits,
                                                     int& exponent) noexcept {
  const std::uint32_t field = bits >> 23, mantissa = bits & 0x7FFFFFu;
  if (field >= 255 || (field == 0 && mantissa == 0)) return false;  // negative, Inf, NaN or 0
  if (field != 0 ? mantissa != 0 : (mantissa & (mantissa - 1)) != 0) return false;
  exponent = exponent_of(static_cast<double>(std::bit_cast<float>(bits)));
  // The largest f32 needs 1.75 * 2^127 to be below the largest number.
  return exponent >= type.least_scale && exponent <= 128 - type.largest_exponent;
}

/// What a code without its sign decodes to, exactly; the largest f32 in place of what is beyond it.
/// `scale` is a power of two that a decoder takes.
[[nodiscard]] ATOMO_HD constexpr float fp8_value(const Fp8Type& type, std::uint32_t code,
                                                 float scale) noexcept {
  constexpr float kMost = std::numeric_limits<float>::max();
  // The code's fields as those of an f32, whose exponents are 127 - bias less.
  const auto fields = std::bit_cast<float>(code << (23 - type.mantissa));
  const float unscaled = fields * static_cast<float>(power_of_two(126 + type.least_exponent));
  const float v = unscaled * scale;
  return v < kMost ? v : kMost;
}

/// The code of a magnitude that is at most the largest number times the scale; `inverse` is 1/scale,
/// `random` uniform over 32 bits.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t fp8_below(const Fp8Type& type, double inverse,
                                                         float magnitude) noexcept {
  const double y = static_cast<double>(magnitude) * inverse;  // exact
  const int own = exponent_of(y), exponent = own < type.least_exponent ? type.least_exponent : own;
  const auto units = static_cast<std::uint32_t>(y * power_of_two(type.mantissa - exponent));
  return (static_cast<std::uint32_t>(exponent - type.least_exponent) << type.mantissa) + units;
}
[[nodiscard]] ATOMO_HD constexpr std::uint32_t fp8_code(const Fp8Type& type, float scale,
                                                        double inverse, float magnitude,
                                                        std::uint32_t random) noexcept {
  const std::uint32_t code = fp8_below(type, inverse, magnitude);
  if (code >= type.last_code) return type.last_code;
  const auto below = static_cast<double>(fp8_value(type, code, scale)),
             above = static_cast<double>(fp8_value(type, code + 1, scale));
  const bool up = draw_between(static_cast<double>(magnitude) - below, above - below, random);
  return code + (up ? 1u : 0u);
}

}  // namespace atomo::math
