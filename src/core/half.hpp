// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Conversions between f32 and the two half types, as bit patterns: f16 (IEEE binary16) and bf16
/// (the upper half of an f32). Integer arithmetic alone, so rounding modes and flush-to-zero do not
/// matter.
///
/// Up is exact. Down is either to nearest, ties to even, or stochastic: with `random` uniform over
/// 32 bits, E[result] = x exactly for every bf16 in range and for every f16 in range with |x| >=
/// 2^-33; below that, where f32 has bits finer than 2^-32 of the f16 spacing, |E[result] - x| <=
/// 2^-57. A finite value that rounds beyond the largest finite half becomes an infinity of its sign
/// and sets `overflow` (which is never cleared). Infinities stay, NaNs stay NaNs (quiet, with the
/// sign), neither sets `overflow`.
///
/// ```cpp
/// bool overflow = false;
/// std::uint16_t h = atomo::to_f16(0.1f, overflow);
/// float back = atomo::from_f16(h);
/// ```

#include <bit>
#include <cstdint>

#include "core/bit_counts.hpp"
#include "core/namespaces.hpp"

namespace atomo::core {

/// Exact.
[[nodiscard]] constexpr float from_bf16(std::uint16_t h) noexcept {
  return std::bit_cast<float>(std::uint32_t{h} << 16);
}

/// Exact.
[[nodiscard]] constexpr float from_f16(std::uint16_t h) noexcept {
  const std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16;
  const std::uint32_t exponent = (std::uint32_t{h} >> 10) & 31u;
  const std::uint32_t mantissa = h & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const auto shift =
      static_cast<std::uint32_t>(core::countl_zero(mantissa)) - 21u;  // brings the top bit to bit 10
  return std::bit_cast<float>(sign | ((113u - shift) << 23) |
                              (((mantissa << shift) & 0x3FFu) << 13));
}

/// Adds to `whole` one if the fraction `part` / 2^32 rounds up to nearest, ties to even.
struct NearestEven {
  [[nodiscard]] constexpr std::uint32_t operator()(std::uint32_t whole,
                                                   std::uint32_t part) const noexcept {
    return whole + (part > 0x80000000u || (part == 0x80000000u && (whole & 1u)) ? 1u : 0u);
  }
  static constexpr bool kSticky = true;  ///< bits below 2^-32 must not be lost to a tie
};

/// Adds to `whole` one with probability `part` / 2^32.
struct Stochastic {
  std::uint32_t random;
  [[nodiscard]] constexpr std::uint32_t operator()(std::uint32_t whole,
                                                   std::uint32_t part) const noexcept {
    return whole + (random < part ? 1u : 0u);
  }
  static constexpr bool kSticky = false;
};

/// Adds to `whole` one with probability `part` / 2^32. `draw.high()` is uniform over 16 bits;
/// `draw.low()`, 16 further bits, is asked for on a tie alone.
template <typename Draw>
struct StochasticDraw {
  const Draw* draw;
  [[nodiscard]] constexpr std::uint32_t operator()(std::uint32_t whole,
                                                   std::uint32_t part) const noexcept {
    const std::uint32_t first = draw->high(), threshold = part >> 16, rest = part & 0xFFFFu;
    const bool up = first != threshold ? first < threshold : rest != 0 && draw->low() < rest;
    return whole + (up ? 1u : 0u);
  }
  static constexpr bool kSticky = false;
};

template <typename Rounding>
[[nodiscard]] constexpr std::uint16_t f32_to_bf16(float x, Rounding round,
                                                  bool& overflow) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu, sign = bits >> 31 << 15;
  if (magnitude > 0x7F800000u)
    return static_cast<std::uint16_t>(sign | 0x7FC0u | (magnitude >> 16));
  const std::uint32_t h = round(magnitude >> 16, magnitude << 16);
  overflow = overflow || (h == 0x7F80u && magnitude != 0x7F800000u);
  return static_cast<std::uint16_t>(sign | h);
}

/// |x| in units of 2^-24, the spacing of subnormal f16, as whole and fraction, for |x| < 2^-14.
template <typename Rounding>
[[nodiscard]] constexpr std::uint32_t round_f16_subnormal(std::uint32_t magnitude,
                                                          Rounding round) noexcept {
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent == 0)
    return round(0, Rounding::kSticky && magnitude != 0 ? 1u : 0u);  // below 2^-126
  const std::uint64_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  // The value is mantissa * 2^(exponent - 150); as a fixed-point number with 32 fraction bits: <<
  // (exponent - 94).
  if (exponent >= 94) {
    const std::uint64_t fixed = mantissa << (exponent - 94);
    return round(static_cast<std::uint32_t>(fixed >> 32), static_cast<std::uint32_t>(fixed));
  }
  const std::uint32_t drop = 94 - exponent;
  if (drop > 32) return round(0, Rounding::kSticky ? 1u : 0u);
  const std::uint64_t kept = mantissa >> drop, lost = mantissa - (kept << drop);
  if (Rounding::kSticky) return round(0, static_cast<std::uint32_t>(kept | (lost != 0 ? 1u : 0u)));
  return round(0, static_cast<std::uint32_t>(kept + (lost >> (drop - 1))));
}

template <typename Rounding>
[[nodiscard]] constexpr std::uint16_t f32_to_f16(float x, Rounding round, bool& overflow) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu, sign = bits >> 31 << 15;
  if (magnitude > 0x7F800000u) {
    return static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude == 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
  std::uint32_t h = 0x7C00u;
  if (magnitude < 0x38800000u) {  // 2^-14
    h = round_f16_subnormal(magnitude, round);
  } else if (magnitude < 0x47800000u) {  // 2^16
    h = round((magnitude - 0x38000000u) >> 13, magnitude << 19);
  }
  overflow = overflow || h == 0x7C00u;
  return static_cast<std::uint16_t>(sign | h);
}

/// To nearest, ties to even.
[[nodiscard]] constexpr std::uint16_t to_f16(float x, bool& overflow) noexcept {
  return f32_to_f16(x, NearestEven{}, overflow);
}
/// To nearest, ties to even.
[[nodiscard]] constexpr std::uint16_t to_bf16(float x, bool& overflow) noexcept {
  return f32_to_bf16(x, NearestEven{}, overflow);
}

/// Stochastic, from one uniform 32-bit word.
[[nodiscard]] constexpr std::uint16_t to_f16(float x, std::uint32_t random,
                                             bool& overflow) noexcept {
  return f32_to_f16(x, Stochastic{random}, overflow);
}
/// Stochastic, from one uniform 32-bit word.
[[nodiscard]] constexpr std::uint16_t to_bf16(float x, std::uint32_t random,
                                              bool& overflow) noexcept {
  return f32_to_bf16(x, Stochastic{random}, overflow);
}
/// Stochastic, from a draw of 16 bits and, on a tie, 16 further ones: the same as from the word that
/// they make, the first above the further ones.
template <typename Draw>
[[nodiscard]] constexpr std::uint16_t draw_f16(float x, const Draw& draw, bool& overflow) noexcept {
  return f32_to_f16(x, StochasticDraw<Draw>{&draw}, overflow);
}
/// Likewise; never asks for further bits.
template <typename Draw>
[[nodiscard]] constexpr std::uint16_t draw_bf16(float x, const Draw& draw,
                                                bool& overflow) noexcept {
  return f32_to_bf16(x, StochasticDraw<Draw>{&draw}, overflow);
}

}  // namespace atomo::core
