// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Values from and to int8 in blocks of 256, each under its largest magnitude (math/kept_values.hpp).

#include <cstddef>
#include <cstdint>

#include "core/philox.hpp"

namespace atomo::cpu {

/// Rounds n values at random, to codes and the scales of their blocks. They draw as the entries of a
/// layer from `entry` on, a multiple of 128 (core/short_draw.hpp).
void round_to_int8(const float* x, std::size_t n, const Philox& draws, const Philox& further,
                   std::uint64_t entry, std::byte* scales, std::byte* codes) noexcept;

/// Writes n values as f32.
void widen_int8(const std::byte* scales, const std::byte* codes, std::size_t n, float* to) noexcept;

}  // namespace atomo::cpu
