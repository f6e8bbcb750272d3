// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The functions of <bit> that count, for the host and the device. Kernels must not call those of
/// <bit>: the standard library's use the host compiler's builtins, and what nvcc makes of them for 64
/// bits is a constant, without a word.

#include <bit>
#include <concepts>
#include <limits>
#include <type_traits>

#include "core/host_device.hpp"

namespace atomo::core {

/// Zeros above the highest one; all bits of 0. `Number` has at most 64 bits.
template <std::unsigned_integral Number>
[[nodiscard]] ATOMO_HD constexpr int countl_zero(Number x) noexcept {
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) {
    constexpr int kBits = std::numeric_limits<Number>::digits;
    if constexpr (kBits <= 32) return __clz(static_cast<int>(x)) - (32 - kBits);
    return __clzll(static_cast<long long>(x)) - (64 - kBits);
  }
#endif
  return std::countl_zero(x);
}

/// Zeros below the lowest one; all bits of 0.
template <std::unsigned_integral Number>
[[nodiscard]] ATOMO_HD constexpr int countr_zero(Number x) noexcept {
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) {
    constexpr int kBits = std::numeric_limits<Number>::digits;
    if constexpr (kBits <= 32) return x == 0 ? kBits : __ffs(static_cast<int>(x)) - 1;
    return x == 0 ? kBits : __ffsll(static_cast<long long>(x)) - 1;
  }
#endif
  return std::countr_zero(x);
}

/// Ones above the highest zero.
template <std::unsigned_integral Number>
[[nodiscard]] ATOMO_HD constexpr int countl_one(Number x) noexcept {
  return countl_zero(static_cast<Number>(~x));
}
/// Ones below the lowest zero.
template <std::unsigned_integral Number>
[[nodiscard]] ATOMO_HD constexpr int countr_one(Number x) noexcept {
  return countr_zero(static_cast<Number>(~x));
}

/// Bits up to the highest one; none of 0.
template <std::unsigned_integral Number>
[[nodiscard]] ATOMO_HD constexpr int bit_width(Number x) noexcept {
  return std::numeric_limits<Number>::digits - countl_zero(x);
}

}  // namespace atomo::core
