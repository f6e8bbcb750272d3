// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Bit and arithmetic intrinsics. Of the floating-point ones only those that IEEE 754 defines to
/// the bit: __expf, rsqrtf, __fdividef and the like must not compile.

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1;
}
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) {
  return static_cast<int>(static_cast<std::int64_t>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift < 32 ? shift : 32));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) << (shift < 32 ? shift : 32) >>
                               32);
}
/// Byte i of the result is the byte of b:a that nibble i of the selector names; bit 3 of a nibble
/// repeats that byte's sign.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> (4 * i) & 15u;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (nibble & 7u)) & 255u);
    if ((nibble & 8u) != 0) byte = (byte & 128u) != 0 ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}

#define HOSTEXEC_FLOAT(T, p)                         \
  inline T __##p##add_rn(T a, T b) { return a + b; } \
  inline T __##p##sub_rn(T a, T b) { return a - b; } \
  inline T __##p##mul_rn(T a, T b) { return a * b; } \
  inline T __##p##div_rn(T a, T b) { return a / b; } \
  inline T __##p##sqrt_rn(T a) { return std::sqrt(a); }
HOSTEXEC_FLOAT(float, f)
HOSTEXEC_FLOAT(double, d)
#undef HOSTEXEC_FLOAT
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

namespace hostexec {

/// As the device converts: what lies outside becomes the nearest value, NaN becomes 0.
template <std::integral I>
I saturate(double x) {
  using Limits = std::numeric_limits<I>;
  if (x != x) return 0;
  if (x <= static_cast<double>(Limits::min())) return Limits::min();
  if (x >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<I>(x);
}

}  // namespace hostexec

inline int __float2int_rn(float x) { return hostexec::saturate<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return hostexec::saturate<int>(std::trunc(x)); }
inline int __float2int_rd(float x) { return hostexec::saturate<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return hostexec::saturate<int>(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) { return hostexec::saturate<unsigned>(std::nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return hostexec::saturate<unsigned>(std::trunc(x)); }
inline unsigned __float2uint_rd(float x) { return hostexec::saturate<unsigned>(std::floor(x)); }

// Those of integers, which CUDA has in the global namespace.
template <std::integral T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <std::integral T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
