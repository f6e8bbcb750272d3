// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Entries rounded to levels: what QSGD and TernGrad share (math/stochastic_level.hpp has the
/// arithmetic).
///
/// A lane owns eight neighbours, whose draws are the halves of one Philox block
/// (core/short_draw.hpp): no lane needs another's draw.

#include "core/short_draw.hpp"
#include "cuda/entries.cuh"
#include "math/stochastic_level.hpp"

namespace atomo::cuda {

/// The first 16 bits of every draw, and the further ones of ties.
struct LevelDraws {
  Philox high, low;
};

/// How an entry becomes a code. At one bit: 1 where it decodes to -N, and 0 wherever N is 0. Else
/// the level, and the sign of a level above 0 at bit `sign_bit`.
template <bool kOneBit>
struct LevelCode {
  float limit;        ///< 65536 * levels; at one bit 32768
  unsigned sign_bit;  ///< not used at one bit

  __device__ float scaled(float x, const math::LevelScale& scale) const {
    if constexpr (kOneBit) {
      const float z = (x * scale.pre) * scale.inv;
      return z < -limit ? -limit : z > limit ? limit : z;
    } else {
      // Neither is below 0, so their bits are in their order.
      const float z = (std::fabs(x) * scale.pre) * scale.inv;
      return __uint_as_float(std::min(__float_as_uint(z), __float_as_uint(limit)));
    }
  }
  __device__ std::uint32_t code(std::uint32_t level, float x, const math::LevelScale& scale) const {
    if constexpr (kOneBit) return scale.inv == 0 ? 0 : level ^ 1u;
    return level | (level > 0 ? __float_as_uint(x) >> 31 << sign_bit : 0u);
  }
  /// Threshold plus 65535 minus a draw of 16 bits, which is `behind`: carries into the level exactly when
  /// the draw is below the threshold; the lower 16 bits are all ones on a tie (and else only where a tie is
  /// decided the same way).
  __device__ std::uint32_t sum(float z, std::uint32_t behind) const {
    const auto whole = static_cast<std::int32_t>(std::floor(z));
    return static_cast<std::uint32_t>(whole + (kOneBit ? 32768 : 0)) + behind;
  }
  __device__ std::uint32_t resolve(float z, const ShortDraw& draw) const {
    if constexpr (kOneBit) return math::round_to_sign(z, draw) ? 1 : 0;
    return math::round_to_level(z, draw);
  }
};

/// Whether a draw ties with a threshold: the lower half of their sum is all ones.
__device__ inline bool is_tie(std::uint32_t sum) { return (~sum & 0xFFFFu) == 0; }

/// The codes of the eight neighbours that Philox block `block` is for: `width` bits each, entry k from
/// bit k % 4 * width of codes[k / 4] on. `value(k)` and `scale(k)` are those of entry k; non-finite
/// values must be gone. Levels and signs are put side by side, four in a word, before they meet: adding
/// the largest level to each carries into the bit of its sign where it is above 0.
template <bool kOneBit, typename Value, typename Scale>
__device__ inline void eight_codes(const LevelCode<kOneBit>& rule, const LevelDraws& draws,
                                   std::uint64_t block, unsigned width, Value value, Scale scale,
                                   std::uint32_t (&codes)[2]) {
  const PhiloxWords words = draws.high(block);
  const PhiloxWords behind{~words[0], ~words[1], ~words[2], ~words[3]};  // 65535 less each draw
  const auto sum_of = [&](unsigned k) {
    return rule.sum(rule.scaled(value(k), scale(k)), half_of(behind, k));
  };
  const std::uint32_t places[4] = {1u, 1u << width, 1u << 2 * width, 1u << 3 * width};
  std::uint32_t least = 0xFFFFu, negative[2] = {0, 0};
  codes[0] = codes[1] = 0;
#pragma unroll
  for (unsigned k = 0; k < 8; ++k) {
    const std::uint32_t sum = sum_of(k);
    least = std::min(least, ~sum & 0xFFFFu);
    if constexpr (kOneBit) {
      codes[k / 4] |= rule.code(sum >> 16, value(k), scale(k)) << (k % 4 * width);
    } else {
      codes[k / 4] += (sum >> 16) * places[k % 4];
      negative[k / 4] += (__float_as_uint(value(k)) >> 31) * places[k % 4];
    }
  }
  if constexpr (!kOneBit) {
    const std::uint32_t largest =
        (places[0] + places[1] + places[2] + places[3]) * ((1u << rule.sign_bit) - 1);
#pragma unroll
    for (unsigned h = 0; h < 2; ++h)
      codes[h] |= (codes[h] + largest) & (negative[h] << rule.sign_bit);
  }
  if (least != 0) return;
  std::uint32_t ties = 0;  // one entry in 65,536
#pragma unroll
  for (unsigned k = 0; k < 8; ++k) ties |= is_tie(sum_of(k)) ? 1u << k : 0u;
  for (; ties != 0; ties &= ties - 1) {
    const unsigned k = static_cast<unsigned>(__ffs(static_cast<int>(ties))) - 1;
    const unsigned shift = k % 4 * width;
    const float x = value(k);
    const math::LevelScale of = scale(k);
    const ShortDraw draw{half_of(words, k), &draws.low, 8 * block + k};
    const std::uint32_t code = rule.code(rule.resolve(rule.scaled(x, of), draw), x, of) << shift;
    const std::uint32_t mask = ((1u << width) - 1) << shift;
    if (k < 4)
      codes[0] = (codes[0] & ~mask) | code;
    else
      codes[1] = (codes[1] & ~mask) | code;
  }
}

}  // namespace atomo::cuda
