// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Stochastic rounding to eight bits of floating point under one scale a layer (FORMAT.md, "fp8"): OCP's
/// E4M3 and E5M2 ("OCP 8-bit Floating Point Specification", 2023). The scale is the least power of
/// two at which the largest magnitude is no number beyond the largest, so nothing saturates.

#include <bit>
#include <cstdint>
#include <limits>

#include "core/host_device.hpp"

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

/// Where the magnitudes of a layer stand under its scale, so that a code and its chance to go up are
/// fields of an f32's bits: shifts and one comparison an entry, all exact.
struct Fp8Grid {
  int mantissa;  ///< of the type
  /// 1, or 2^32 under a scale so small that the type's normal numbers are among the subnormal f32:
  /// magnitudes times `lift` are normal from `origin` on.
  float lift;
  std::uint32_t origin;  ///< exponent field of the type's least normal number, lifted
  bool at_top;           ///< the largest number is beyond the largest f32
};
[[nodiscard]] ATOMO_HD constexpr Fp8Grid fp8_grid(const Fp8Type& type, int scale) noexcept {
  const bool small = scale < -100;
  const int least = scale + type.least_exponent + (small ? 32 : 0) + 127;
  return {type.mantissa, small ? 0x1p32f : 1.0f, static_cast<std::uint32_t>(least),
          scale + type.largest_exponent > 127};
}

/// The last code whose number is not above a magnitude, and how many of 2^32 draws go up from it.
struct Fp8Step {
  std::uint32_t code, chance;
};
/// Of a magnitude that is at most the largest number, itself below 2^128. As a whole number and a
/// fraction of the distance of the type's numbers there, it is the f32's significand over 2^f; the
/// chance is the fraction, rounded up to a multiple of 2^-32.
[[nodiscard]] ATOMO_HD constexpr Fp8Step fp8_step(const Fp8Grid& grid, float magnitude) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(magnitude * grid.lift);
  const std::uint32_t field = bits >> 23, own = field > 0 ? field : 1;
  // The hidden bit, or the subnormal significand again.
  const std::uint32_t hidden = bits < 0x800000u ? bits : 0x800000u;
  const std::uint32_t significand = (bits & 0x7FFFFFu) | hidden;
  const std::uint32_t above = own > grid.origin ? own : grid.origin;
  const std::uint32_t f = above - own + static_cast<std::uint32_t>(23 - grid.mantissa);
  const std::uint32_t units = significand >> (f < 31 ? f : 31);
  const std::uint32_t left = f < 32 ? 32 - f : 0, beyond = f > 32 ? f - 32 : 0;
  const std::uint32_t right = beyond < 31 ? beyond : 31;
  const std::uint32_t chance = ((significand << left) + ((1u << right) - 1)) >> right;
  return {((above - grid.origin) << grid.mantissa) + units, chance};
}

/// The code of a magnitude that is at most the largest number times the scale; `random` is uniform
/// over 32 bits. The number after the last below the largest f32 is decoded to that f32, so the step
/// there is shorter by a unit of the significand.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t fp8_code(const Fp8Grid& grid, float magnitude,
                                                        std::uint32_t random) noexcept {
  const Fp8Step step = fp8_step(grid, magnitude);
  bool up = random < step.chance;
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const int f = 23 - grid.mantissa;
  if (grid.at_top && bits >> f == 0x7F7FFFFFu >> f) {
    const std::uint32_t last = (1u << f) - 1;
    up = std::uint64_t{random} * last < std::uint64_t{bits & last} << 32;
  }
  return step.code + (up ? 1u : 0u);
}

}  // namespace atomo::math
