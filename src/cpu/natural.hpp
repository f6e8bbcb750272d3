// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Powers of two beside entries, drawn at random (math/natural_rounding.hpp, FORMAT.md "natural"): a code
/// of a byte and a bit of sign each.

#include <cstddef>

#include "core/philox.hpp"
#include "cpu/decode_mode.hpp"

namespace atomo::cpu {

/// Writes the codes and the signs of the entries [begin, end) of x, finite ones; `codes` and `signs` are
/// those of the whole layer. `begin` is a multiple of 64; signs are written in whole words of 32, behind
/// `end` as zeros. Nothing here allocates or throws. The processor must not flush subnormals to zero (a
/// Codec sees to that).
void natural_codes(const float* x, const Philox& draws, std::size_t begin, std::size_t end,
                   std::byte* signs, std::byte* codes) noexcept;

/// The values of the entries [begin, end), of any codes, into y or added to it; `begin` is a multiple of
/// 8. `signs`, `codes` and `y` are those of the whole layer.
void natural_values(const std::byte* signs, const std::byte* codes, std::size_t begin,
                    std::size_t end, const DecodeMode& mode, float* y) noexcept;

}  // namespace atomo::cpu
