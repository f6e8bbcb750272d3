// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Codes of fp8: eight bits of floating point, rounded at random (math/fp8_rounding.hpp, FORMAT.md
/// "fp8").

#include <cstddef>

#include "core/philox.hpp"
#include "math/fp8_rounding.hpp"

namespace atomo::cpu {

/// Writes the codes of the entries [begin, end) of x, a byte each, into `codes`, those of the whole
/// layer. `begin` is a multiple of 64, `draws` the layer's; entries are at most the grid's largest
/// number. Nothing here allocates or throws. The processor must not flush subnormals to zero (a
/// Codec sees to that).
void fp8_codes(const math::Fp8Grid& grid, const float* x, const Philox& draws, std::size_t begin,
               std::size_t end, std::byte* codes) noexcept;

}  // namespace atomo::cpu
