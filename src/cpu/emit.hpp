// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How finished values of a decoder meet the output.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/decode_mode.hpp"
namespace atomo::cpu {

/// Writes or adds `count` values as `mode` says; true when one of them is infinite.
inline bool emit(const float* values, std::size_t count, cpu::DecodeMode mode, float* y) noexcept {
  std::uint32_t infinite = 0;
  for (std::size_t i = 0; i < count; ++i) {
    infinite |= std::isinf(values[i]) ? 1u : 0u;
    y[i] = mode.add ? y[i] + (mode.alpha * values[i]) : values[i];
  }
  return infinite != 0;
}

}  // namespace atomo::cpu
