// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The arithmetic of dithered atoms, written once over a scalar type and a source of randomness:
/// the kernels use it in f32 with Philox, tests enumerate every outcome of it in double.
///
/// An atom of L entries has the amplitude rms = norm / sqrt(L). At the price `a` its ratio is
/// r = rms / a.
/// - r < 1, *uncertain*: the atom is kept with probability P / 2^32, P = floor(2^32 r) but at least
///   1; kept, its content is x / (P 2^-32). Dividing by the integer that was used, not by r, makes
///   any rounding of r harmless.
/// - r >= 1, *certain*: the atom is always kept, and its content is x itself. Its class, 1..31, is
///   the half octave of r: 1, 1.5, 2, 3, 4, ...
///
/// The content is sent by subtractive dither with the step a * delta[class]: with
/// u = (level + h) / 16, level one of 16 known to both ends and h uniform in [0, 1) known to the
/// encoder alone,
///     q = floor(x / step + 1 + u) - 1,   decoded (32 q - 2 level + 15) * (step / 32).
/// h rounds y = x / step stochastically to sixteenths:
/// floor((floor(16 y + h) + level) / 16) = floor(y + u), and the sum over levels of
/// floor(y + level / 16) is floor(16 y) (Hermite). Hence E[decoded] = x exactly, whatever x.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

inline constexpr double kTwo32 = 4294967296.0;
inline constexpr int kAtomClassCount = 32;
/// The ratio r at the top of the last class; the price is never below (largest rms) / this.
inline constexpr double kTopRatio = 1.5 * 32768.0;
/// Pairs of entries of a tile take the dither levels j and j xor 8: half a step apart.
inline constexpr std::uint32_t kMateDither = 8;

/// Class of a ratio in [1, kTopRatio): exponent and top bit of the mantissa.
[[nodiscard]] ATOMO_HD inline int certain_class(double ratio) noexcept {
  return static_cast<int>(std::bit_cast<std::uint64_t>(ratio) >> 51) - (1023 * 2) + 1;
}

/// 0 when uncertain.
[[nodiscard]] ATOMO_HD inline int class_of_ratio(double ratio) noexcept {
  return ratio < 1.0 ? 0 : certain_class(ratio);
}

/// The probability of being kept of an atom with a ratio below 1, in units of 2^-32.
[[nodiscard]] ATOMO_HD inline std::uint32_t probability_of_ratio(double ratio) noexcept {
  return std::max<std::uint32_t>(static_cast<std::uint32_t>(ratio * kTwo32), 1u);
}

/// The steps of tiny and huge prices leave the range of normal f32, so content is dithered after
/// scaling by this power of two, and decoded values are scaled back.
[[nodiscard]] ATOMO_HD inline float range_scale(float price) noexcept {
  return price < 0x1p-60f ? 0x1p80f : price > 0x1p60f ? 0x1p-80f : 1.0f;
}

/// Step of the content and what entries are multiplied by before they are dithered.
template <typename Real>
struct ContentScale {
  Real step, inverse;
};

/// `price` is the price times its range scale.
template <typename Real>
[[nodiscard]] ATOMO_HD inline ContentScale<Real> certain_scale(Real price, Real delta) noexcept {
  const Real step = price * delta;
  return {step, static_cast<Real>(1.0 / static_cast<double>(step))};
}

template <typename Real>
[[nodiscard]] ATOMO_HD inline ContentScale<Real> uncertain_scale(
    Real price, Real delta, std::uint32_t probability) noexcept {
  const Real step = price * delta;
  return {step, static_cast<Real>(kTwo32 /
                                  (static_cast<double>(probability) * static_cast<double>(step)))};
}

/// The draws of one entry as the messages have them: a level of 16 and 16 bits of pre-rounding.
/// `uniform` is 1 + (level + (pre + 1/2) / 2^16) / 16, exact in f32. The half keeps it symmetric:
/// |bias| <= 2^-21 step.
struct EntryDraw {
  std::uint32_t level;  ///< 0..15
  std::uint32_t pre;    ///< 0..65535

  template <typename Real>
  [[nodiscard]] ATOMO_HD Real uniform() const noexcept {
    return static_cast<Real>(std::bit_cast<float>(0x3F800004u | (level << 19) | (pre << 3)));
  }
};

/// |q| stays below 2^25 whatever x is (an Inf that slipped through), so that nothing overflows;
/// what a class can hold is far below.
inline constexpr float kLargestLevel = 33554430.0f;

/// q of one entry. `Draw::uniform<Real>()` is 1 + u.
template <typename Real, typename Draw>
[[nodiscard]] ATOMO_HD inline std::int32_t quantise(Real x, Real inverse,
                                                    const Draw& draw) noexcept {
  constexpr auto kBound = static_cast<Real>(kLargestLevel);
  const Real y = std::floor(std::fma(x, inverse, draw.template uniform<Real>()));
  return static_cast<std::int32_t>(std::max(std::min(kBound, y), -kBound)) - 1;
}

/// The value that q decodes to in 32nds of a step.
[[nodiscard]] ATOMO_HD inline std::int32_t dithered_units(std::int32_t q,
                                                          std::uint32_t level) noexcept {
  return 32 * q - 2 * static_cast<std::int32_t>(level) + 15;
}

/// What 32nds of a step are worth, rounded once: they are below 2^31, step / 32 is exact.
template <typename Real>
[[nodiscard]] ATOMO_HD inline Real value_of_units(std::int32_t units, Real step) noexcept {
  return static_cast<Real>(units) * (step * Real{0.03125});
}

template <typename Real>
[[nodiscard]] ATOMO_HD inline Real dequantise(std::int32_t q, std::uint32_t level,
                                              Real step) noexcept {
  return value_of_units(dithered_units(q, level), step);
}

/// Variance of a decoded entry in units of the squared step, averaged over x: the 1 / 256 comes
/// from the 16 levels.
inline constexpr double kDitherVariance = (1.0 + 1.0 / 256.0) / 12.0;

}  // namespace atomo::math
