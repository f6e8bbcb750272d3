// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Atomic operations, relaxed as on the device, and loads and stores with hints. Integers only:
/// sums of floats that race for their order have no place in a result.

#include <concepts>
#include <type_traits>

#include "executor.hpp"

namespace hostexec {

template <typename T, typename F>
T read_modify_write(T* p, F next) {
  static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  T before = __atomic_load_n(p, __ATOMIC_RELAXED);
  T after = next(before);
  while (!__atomic_compare_exchange_n(p, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    after = next(before);
  atomic_done(before != after);
  return before;
}

}  // namespace hostexec

#define HOSTEXEC_ATOMIC(name, result)                                                       \
  template <typename T>                                                                     \
  T name(T* p, std::type_identity_t<T> b) {                                                 \
    return hostexec::read_modify_write(p, [b]([[maybe_unused]] T a) { return T(result); }); \
  }
HOSTEXEC_ATOMIC(atomicAdd, std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b))
HOSTEXEC_ATOMIC(atomicSub, std::make_unsigned_t<T>(a) - std::make_unsigned_t<T>(b))
HOSTEXEC_ATOMIC(atomicMin, b < a ? b : a)
HOSTEXEC_ATOMIC(atomicMax, a < b ? b : a)
HOSTEXEC_ATOMIC(atomicOr, a | b)
HOSTEXEC_ATOMIC(atomicAnd, a& b)
HOSTEXEC_ATOMIC(atomicXor, a ^ b)
HOSTEXEC_ATOMIC(atomicExch, b)
#undef HOSTEXEC_ATOMIC
template <typename T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return hostexec::read_modify_write(p, [=](T a) { return a == expected ? value : a; });
}

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, std::type_identity_t<T> value) {
  *p = value;
}
template <typename T>
void __stcg(T* p, std::type_identity_t<T> value) {
  *p = value;
}
