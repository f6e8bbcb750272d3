// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The arithmetic of QSGD and TernGrad, over a scalar type and a source of random bits: the kernels
/// run it in f32 with Philox, tests run it in f64 over every outcome of short draws.
///
/// Stochastic rounding with integer probabilities. A value of y steps goes up from floor(y) with
/// probability P / 2^32, P = frac(y) rounded to 2^-32. P is compared with a draw of 32 bits, of
/// which the first 16 nearly always decide; only when they equal P's first 16 are the others drawn.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/host_device.hpp"

namespace atomo::math {

/// Bits that decide first, and bits drawn on a tie.
inline constexpr int kDrawBits = 16;

/// A `Draw` has `high()`, uniform over kBits bits, and `low()`, kBits further ones.
template <int kBits = kDrawBits, typename Scalar, typename Draw>
[[nodiscard]] ATOMO_HD bool goes_up(Scalar z, Scalar whole, std::uint32_t threshold,
                                    Draw& draw) noexcept {
  const std::uint32_t high = draw.high();
  if (high != threshold) return high < threshold;
  constexpr Scalar kUnit = Scalar(std::uint64_t{1} << kBits);
  return static_cast<Scalar>(draw.low()) < std::floor((z - whole) * kUnit + Scalar(0.5));
}

/// The level of |x|, given z = 2^kBits |x| / step >= 0: E[level] = z / 2^kBits.
template <int kBits = kDrawBits, typename Scalar, typename Draw>
[[nodiscard]] ATOMO_HD std::uint32_t round_to_level(Scalar z, Draw&& draw) noexcept {
  const Scalar whole = std::floor(z);
  const auto t = static_cast<std::uint32_t>(whole);
  const std::uint32_t level = t >> kBits, threshold = t & ((1u << kBits) - 1);
  return level + (goes_up<kBits>(z, whole, threshold, draw) ? 1u : 0u);
}

/// One bit: whether x decodes to +N rather than -N, given z = 2^(kBits-1) x / N in [-2^(kBits-1),
/// 2^(kBits-1)]: P(+) = (1 + x/N) / 2.
template <int kBits = kDrawBits, typename Scalar, typename Draw>
[[nodiscard]] ATOMO_HD bool round_to_sign(Scalar z, Draw&& draw) noexcept {
  const Scalar whole = std::floor(z);
  const auto threshold =
      static_cast<std::uint32_t>(static_cast<std::int32_t>(whole) + (1 << (kBits - 1)));
  return goes_up<kBits>(z, whole, threshold, draw);
}

/// The step of `levels` levels a side, from a finite norm: the least f32 whose `levels`-fold is at
/// least the norm, so no entry is beyond the last level; one f32 less where that level would
/// overflow (then the largest entries round down by at most 2^-23 of themselves). Exact for
/// subnormals: a step is then a whole number of the smallest f32.
[[nodiscard]] ATOMO_HD inline float level_step(float norm, int levels) noexcept {
  if (!(norm > 0)) return 0;
  float step = norm / static_cast<float>(levels);
  const double exact = static_cast<double>(step) * levels;  // 24 + 7 bits
  if (exact < static_cast<double>(norm))
    step = std::bit_cast<float>(std::bit_cast<std::uint32_t>(step) + 1);
  if (std::isinf(step * static_cast<float>(levels)))
    step = std::bit_cast<float>(std::bit_cast<std::uint32_t>(step) - 1);
  return step;
}

/// z = (|x| * pre) * inv, two rounded products, is `unit` |x| / step. `pre` is a power of two that
/// keeps both factors away from overflow and underflow; it loses nothing that reaches a
/// probability.
struct LevelScale {
  float pre = 1, inv = 0;
};
[[nodiscard]] ATOMO_HD inline LevelScale level_scale(float step, float unit) noexcept {
  if (!(step > 0)) return {};
  const float pre = step < 0x1p-60f ? 0x1p64f : step > 0x1p60f ? 0x1p-64f : 1.0f;
  return {pre, unit / (step * pre)};
}

/// An upper bound in f32 of a Euclidean norm whose squared sum is `sum`: rounded up, and at most
/// the largest f32 (which bounds every entry too, so rounding stays unbiased where the norm itself
/// would overflow).
[[nodiscard]] ATOMO_HD inline float norm_from_squares(double sum) noexcept {
  constexpr float kMax = std::numeric_limits<float>::max();
  const double root = std::sqrt(sum);
  if (root >= static_cast<double>(kMax)) return kMax;
  const auto norm = static_cast<float>(root);
  return static_cast<double>(norm) < root
             ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(norm) + 1)
             : norm;
}

/// The norm after entries were limited to clip * sigma, sigma^2 = squares / n: what the largest of
/// them then is.
[[nodiscard]] ATOMO_HD inline float clipped_norm(float largest, double squares, std::size_t n,
                                                 float clip) noexcept {
  const double limit = static_cast<double>(clip) * std::sqrt(squares / static_cast<double>(n));
  return limit < static_cast<double>(largest) ? static_cast<float>(limit) : largest;
}

/// The scale of signs: mean |x| as f32, 0 of no entries; the sum's rounding must not carry it
/// beyond the largest f32.
[[nodiscard]] ATOMO_HD inline float mean_magnitude(double sum, std::size_t n) noexcept {
  if (n == 0) return 0;
  const double mean = sum / static_cast<double>(n);
  return static_cast<float>(std::min(mean, static_cast<double>(std::numeric_limits<float>::max())));
}

}  // namespace atomo::math
