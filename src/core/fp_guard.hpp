// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The caller's process may flush subnormals to zero or round another way; results must not depend
/// on it.

#include <cfenv>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "core/namespaces.hpp"

namespace atomo::core {

/// Saves the floating-point modes of this thread, sets round-to-nearest without flush-to-zero,
/// restores on exit.
class FpGuard {
 public:
#if defined(__SSE__)
  FpGuard() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FpGuard() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FpGuard() noexcept { std::fegetenv(&saved_), std::fesetenv(FE_DFL_ENV); }
  ~FpGuard() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
 public:
  FpGuard(const FpGuard&) = delete;
  FpGuard& operator=(const FpGuard&) = delete;
};

}  // namespace atomo::core
