// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The types in which a memory keeps its values (docs/memories.md): f32, bf16, or int8 in blocks of 256
/// entries, whose levels are equally far apart up to the block's largest magnitude. Rounding to int8 is
/// stochastic, in whole numbers and single f32 operations, so that every backend finds the same.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/half.hpp"
#include "core/host_device.hpp"

namespace atomo::math {

/// The numbers stand in saved states.
enum class KeptType : std::uint8_t { f32 = 0, bf16 = 2, int8 = 3 };

inline constexpr std::size_t kInt8Block = 256;  ///< entries under one scale
inline constexpr int kInt8Levels = 127;         ///< above 0; as many below

/// Of n entries: how many blocks there are, each with an f32.
[[nodiscard]] constexpr std::size_t int8_blocks(std::size_t n) noexcept {
  return (n + kInt8Block - 1) / kInt8Block;
}
/// Bytes in front of n values: the scales of int8.
[[nodiscard]] constexpr std::size_t scale_bytes(KeptType type, std::size_t n) noexcept {
  return type == KeptType::int8 ? int8_blocks(n) * sizeof(float) : 0;
}
/// Bytes of n values without their scales.
[[nodiscard]] constexpr std::size_t value_bytes(KeptType type, std::size_t n) noexcept {
  return n * (type == KeptType::f32 ? 4 : type == KeptType::bf16 ? 2 : 1);
}
[[nodiscard]] constexpr std::size_t kept_bytes(KeptType type, std::size_t n) noexcept {
  return scale_bytes(type, n) + value_bytes(type, n);
}
/// Two vectors of a layer draw apart: the first entry of u draws as entry number this would.
[[nodiscard]] ATOMO_HD constexpr std::uint64_t first_draw_of_velocity(std::uint64_t n) noexcept {
  return (n + kInt8Block - 1) / kInt8Block * kInt8Block;
}

/// A magnitude as levels of int8 count it; what is no number counts as the largest.
[[nodiscard]] ATOMO_HD constexpr float int8_magnitude(float v) noexcept {
  constexpr std::uint32_t kMost = 0x7F7FFFFF;
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
  return std::bit_cast<float>(magnitude < kMost ? magnitude : kMost);
}

/// The last level whose value is not above a magnitude, and how many of 2^32 draws go up from it.
struct Int8Step {
  std::uint32_t level, chance;
};
/// `scale` is the largest magnitude of the block. The chance is rounded down to a multiple of 2^-32.
[[nodiscard]] ATOMO_HD constexpr Int8Step int8_step(float magnitude, float scale) noexcept {
  if (!(scale > 0)) return {0, 0};
  const float levels = magnitude / scale * static_cast<float>(kInt8Levels);
  const auto level = static_cast<std::uint32_t>(levels);
  return {level, static_cast<std::uint32_t>((levels - static_cast<float>(level)) * 0x1p32f)};
}

/// The code of a value. `draw` is one of 32 bits as core/short_draw.hpp has them.
template <typename Draw>
[[nodiscard]] ATOMO_HD constexpr std::int8_t int8_code(float v, float scale,
                                                       const Draw& draw) noexcept {
  const Int8Step step = int8_step(int8_magnitude(v), scale);
  const std::uint32_t level = core::StochasticDraw<Draw>{&draw}(step.level, step.chance);
  return static_cast<std::int8_t>(v < 0 ? -static_cast<int>(level) : static_cast<int>(level));
}

/// What is kept of a code.
[[nodiscard]] ATOMO_HD constexpr float int8_value(std::int8_t code, float scale) noexcept {
  return scale * (static_cast<float>(code) * (1.0f / static_cast<float>(kInt8Levels)));
}

}  // namespace atomo::math
