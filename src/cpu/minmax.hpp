// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Codes of minmax: stochastic levels between a bucket's least and largest entry
/// (math/minmax_rounding.hpp, FORMAT.md "minmax").
///
/// Nothing here allocates or throws. The processor must not flush subnormals to zero (a Codec sees
/// to that).

#include <cstddef>

#include "core/philox.hpp"
#include "math/minmax_rounding.hpp"

namespace atomo::cpu {

/// Least and largest of n entries, n above 0; false when one is not finite.
bool minmax_ends(const float* x, std::size_t n, float& least, float& largest) noexcept;

/// Writes the codes of the entries [begin, end) of x, all of one bucket, into `codes`, those of the
/// whole layer: a byte each, or 4 bits where `bits` is 4. `begin` is a multiple of 128, `largest` the
/// bucket's, `draws` the layer's. A half byte behind the last entry is 0.
void minmax_codes(const math::MinmaxGrid& grid, float largest, int bits, const float* x,
                  const Philox& draws, std::size_t begin, std::size_t end,
                  std::byte* codes) noexcept;

}  // namespace atomo::cpu
