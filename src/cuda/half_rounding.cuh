// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Eight neighbours rounded stochastically to halves, by a lane: their draws are one Philox block
/// (core/short_draw.hpp).

#include "core/half.hpp"
#include "core/short_draw.hpp"
#include "cuda/entries.cuh"

namespace atomo::cuda {

/// The first 16 bits of every draw, and the further ones of ties.
struct HalfDraws {
  Philox first, further;
};

/// `i` is the first entry's place in its layer, a multiple of 8.
__device__ inline void round_eight(const float (&x)[8], DType dtype, const HalfDraws& draws,
                                   std::uint64_t i, std::uint16_t (&half)[8], bool& overflow) {
  const PhiloxWords words = draws.first(i / 8);
#pragma unroll
  for (unsigned k = 0; k < 8; ++k) {
    const ShortDraw draw{half_of(words, k), &draws.further, i + k};
    half[k] =
        dtype == DType::f16 ? draw_f16(x[k], draw, overflow) : draw_bf16(x[k], draw, overflow);
  }
}

}  // namespace atomo::cuda
