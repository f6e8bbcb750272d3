// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Blocks that are rotated at random and sent as levels of the normal distribution: what DRIVE and EDEN are.

#include <cstdint>
#include <memory>

#include "atomo/own_codec.hpp"

namespace atomo::catalogue {

/// How levels are chosen and scaled back.
enum class RotatedForm : std::uint8_t {
  published,  ///< nearest level, |x|^2 / <Rx, levels>: no bias if the rotation were uniform
  mse,        ///< nearest level, the scale of least squared error: biased towards zero
  unbiased,   ///< a neighbouring level at random: no bias whatever the rotation is
};

/// The codec with 2^`bits` levels, 1 to 4. \throws Error unless `block` is a power of two.
std::shared_ptr<const OwnCodec> make_rotated(unsigned bits, std::size_t block, unsigned rotations,
                                             RotatedForm form);

/// Reads `block`, `rotations` and `form`. \throws Error
std::shared_ptr<const OwnCodec> read_rotated(unsigned bits, SpecKeys& keys);

/// Multiplies `v` by the Hadamard matrix, whose entries are 1 and -1. `n` is a power of two.
void hadamard(float* v, std::size_t n) noexcept;

/// The 2^bits levels of least squared error for a normal variable, ascending.
std::span<const float> normal_levels(unsigned bits) noexcept;

}  // namespace atomo::catalogue
