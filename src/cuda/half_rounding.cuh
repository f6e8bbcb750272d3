// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Eight neighbours rounded stochastically to halves, by a lane: their draws are one Philox block
/// (core/short_draw.hpp). The results are those of core/half.hpp, whose branches lanes would take apart.

#include "core/half.hpp"
#include "core/short_draw.hpp"
#include "cuda/entries.cuh"

namespace atomo::cuda {

/// The first 16 bits of every draw, and the further ones of ties.
struct HalfDraws {
  Philox first, further;
};

/// |x| in units of 2^-16 of the spacing of f16 there, rounded down, and the bits of f16 to which its upper half is
/// added. Of |x| < 2^16.
struct F16Step {
  std::uint32_t fixed, base;
};
__device__ inline F16Step f16_step(float x) {
  constexpr std::uint32_t kLeast = 113;  // exponent of 2^-14, below which the spacing stays
  const std::uint32_t exponent = __float_as_uint(x) >> 23 & 0xFFu;
  const std::uint32_t spaced = std::min(exponent, kLeast);
  const std::uint32_t mantissa = (__float_as_uint(x) & 0x7FFFFFu) | 0x800000u;
  return {mantissa << 3 >> std::min(kLeast - spaced, 31u), (exponent - spaced) << 10};
}

/// Eight neighbours that stay below the largest half, `behind` 65535 less each draw: a sum with it carries where the
/// draw is below what is lost. False where all lower bits of one are ones and further bits decide, which bf16 has
/// none of.
template <bool kF16>
__device__ inline bool sum_eight(const float (&x)[8], const PhiloxWords& behind,
                                 std::uint32_t (&pairs)[4]) {
  std::uint32_t least = 0xFFFFu;
#pragma unroll
  for (unsigned k = 0; k < 8; ++k) {
    const std::uint32_t bits = __float_as_uint(x[k]);
    std::uint32_t half;
    if constexpr (kF16) {
      const F16Step step = f16_step(x[k]);
      const std::uint32_t sum = step.fixed + half_of(behind, k);
      least = std::min(least, ~sum & 0xFFFFu);
      half = ((sum >> 16) + step.base) | (bits >> 16 & 0x8000u);
    } else {
      half = (bits + half_of(behind, k)) >> 16;
    }
    pairs[k / 2] = k % 2 == 0 ? half : (pairs[k / 2] | half << 16);
  }
  return least != 0;
}

/// `pairs`: two neighbours each, the first in the lower half. `i` is the first entry's place in its layer, a
/// multiple of 8.
__device__ inline void round_eight(const float (&x)[8], DType dtype, const HalfDraws& draws,
                                   std::uint64_t i, std::uint32_t (&pairs)[4], bool& overflow) {
  const PhiloxWords words = draws.first(i / 8);
  const PhiloxWords behind{~words[0], ~words[1], ~words[2], ~words[3]};
  const bool f16 = dtype == DType::f16;
  const bool decided = f16 ? sum_eight<true>(x, behind, pairs) : sum_eight<false>(x, behind, pairs);
  // From this magnitude on an entry may round beyond the largest half.
  if (decided && largest_magnitude(x) < (f16 ? 0x477FE000u : 0x7F7F0000u)) return;
#pragma unroll 1
  for (unsigned k = 0; k < 8; ++k) {
    const ShortDraw draw{half_of(words, k), &draws.further, i + k};
    const float v = choose(x, k);
    const std::uint32_t half = f16 ? draw_f16(v, draw, overflow) : draw_bf16(v, draw, overflow);
    const unsigned shift = k % 2 * 16;
#pragma unroll
    for (unsigned p = 0; p < 4; ++p) {
      const std::uint32_t changed = (pairs[p] & ~(0xFFFFu << shift)) | half << shift;
      pairs[p] = p == k / 2 ? changed : pairs[p];
    }
  }
}

}  // namespace atomo::cuda
