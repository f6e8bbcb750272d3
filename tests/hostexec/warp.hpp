// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Barriers, fences and warp operations. All take the place they are called from, so that threads
/// that meet at different ones are seen.

#include <bit>

#include "executor.hpp"

namespace hostexec {

template <typename T>
T value_of_lane(std::uint32_t mask, T value, unsigned source, Location where) {
  Meeting& m = meet(mask, to_bits(value), false, where);
  if ((m.arrived >> source & 1) == 0) fail("shuffle reads a lane that does not take part", where);
  const T result = from_bits<T>(m.value[source]);
  leave(m);
  return result;
}

template <typename T, typename F>
T fold(std::uint32_t mask, T value, F combine, Location where) {
  Meeting& m = meet(mask, to_bits(value), false, where);
  int i = std::countr_zero(m.arrived);
  T result = from_bits<T>(m.value[i]);
  for (++i; i < 32; ++i) {
    if ((m.arrived >> i & 1) != 0) result = combine(result, from_bits<T>(m.value[i]));
  }
  leave(m);
  return result;
}

/// A bit for each lane that came with `value`.
inline std::uint32_t lanes_with(std::uint32_t mask, std::uint64_t mine, std::uint64_t value,
                                Location where) {
  Meeting& m = meet(mask, mine, false, where);
  std::uint32_t lanes = 0;
  for (int i = 0; i < 32; ++i) lanes |= static_cast<std::uint32_t>(m.value[i] == value) << i;
  lanes &= m.arrived;
  leave(m);
  return lanes;
}

}  // namespace hostexec

#define HOSTEXEC_WHERE hostexec::Location where = hostexec::Location::current()

inline void __syncthreads(HOSTEXEC_WHERE) { hostexec::barrier(hostexec::Vote::none, false, where); }
inline int __syncthreads_count(int predicate, HOSTEXEC_WHERE) {
  return hostexec::barrier(hostexec::Vote::count, predicate != 0, where);
}
inline int __syncthreads_and(int predicate, HOSTEXEC_WHERE) {
  return hostexec::barrier(hostexec::Vote::all, predicate != 0, where);
}
inline int __syncthreads_or(int predicate, HOSTEXEC_WHERE) {
  return hostexec::barrier(hostexec::Vote::any, predicate != 0, where);
}
/// The only warp operation that orders memory.
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, HOSTEXEC_WHERE) {
  hostexec::leave(hostexec::meet(mask, 0, true, where));
}
inline void __threadfence() { hostexec::fence(); }
inline void __threadfence_block() { hostexec::fence(); }
inline void __nanosleep(unsigned) { hostexec::yield(); }
[[noreturn]] inline void __trap(HOSTEXEC_WHERE) { hostexec::fail("__trap", where); }

// A shuffle within `width` lanes: the source is this lane where it would lie outside.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, HOSTEXEC_WHERE) {
  const unsigned within = static_cast<unsigned>(width) - 1;
  const unsigned from = (hostexec::lane() & ~within) | (static_cast<unsigned>(source) & within);
  return hostexec::value_of_lane(mask, value, from, where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, HOSTEXEC_WHERE) {
  const unsigned me = hostexec::lane(), from = me ^ static_cast<unsigned>(bits);
  const unsigned last = me | (static_cast<unsigned>(width) - 1);
  return hostexec::value_of_lane(mask, value, from <= last ? from : me, where);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, HOSTEXEC_WHERE) {
  const unsigned me = hostexec::lane(), from = me + delta;
  const unsigned last = me | (static_cast<unsigned>(width) - 1);
  return hostexec::value_of_lane(mask, value, from <= last ? from : me, where);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, HOSTEXEC_WHERE) {
  const unsigned me = hostexec::lane(), first = me & ~(static_cast<unsigned>(width) - 1);
  return hostexec::value_of_lane(mask, value, me >= first + delta ? me - delta : me, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, HOSTEXEC_WHERE) {
  return hostexec::lanes_with(mask, predicate != 0 ? 1 : 0, 1, where);
}
inline int __any_sync(unsigned mask, int predicate, HOSTEXEC_WHERE) {
  return hostexec::lanes_with(mask, predicate != 0 ? 1 : 0, 1, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, HOSTEXEC_WHERE) {
  return hostexec::lanes_with(mask, predicate != 0 ? 1 : 0, 0, where) == 0;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, HOSTEXEC_WHERE) {
  const std::uint64_t bits = hostexec::to_bits(value);
  return hostexec::lanes_with(mask, bits, bits, where);
}

#define HOSTEXEC_REDUCE(name, T, result)                         \
  inline T name(unsigned mask, T value, HOSTEXEC_WHERE) {        \
    return hostexec::fold(                                       \
        mask, value, [](T a, T b) { return T(result); }, where); \
  }
HOSTEXEC_REDUCE(__reduce_add_sync, unsigned, a + b)
HOSTEXEC_REDUCE(__reduce_add_sync, int, unsigned(a) + unsigned(b))
HOSTEXEC_REDUCE(__reduce_min_sync, unsigned, b < a ? b : a)
HOSTEXEC_REDUCE(__reduce_min_sync, int, b < a ? b : a)
HOSTEXEC_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
HOSTEXEC_REDUCE(__reduce_max_sync, int, a < b ? b : a)
HOSTEXEC_REDUCE(__reduce_or_sync, unsigned, a | b)
HOSTEXEC_REDUCE(__reduce_and_sync, unsigned, a& b)
HOSTEXEC_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef HOSTEXEC_REDUCE
#undef HOSTEXEC_WHERE
