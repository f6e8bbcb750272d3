// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the stand-ins for CUB share. They keep CUB's promises and no more: every value goes through
/// TempStorage, which needs a barrier before it is used again, and where CUB leaves a result
/// undefined it is garbage. One thread does the work of all, in order.

#include <cstring>
#include <type_traits>

namespace cub {

struct NullType {};

namespace detail {

struct Plus {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};

/// What a thread gets that CUB promises nothing to.
template <typename T>
T undefined() {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memset(static_cast<void*>(&value), 0xA5, sizeof value);
  return value;
}

inline unsigned thread_in_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
inline void expect_threads(unsigned count) {
  if (blockDim.x * blockDim.y * blockDim.z != count)
    hostexec::fail("a collective of CUB in a block of another size", hostexec::Location::current());
}

/// The group that a collective is for: its barrier, and each thread's number.
template <int Lanes>
struct Warp {
  static_assert(Lanes == 32 || Lanes == 16 || Lanes == 8 || Lanes == 4 || Lanes == 2);
  static unsigned rank() { return thread_in_block() % Lanes; }
  static void wait() {
    const unsigned first = thread_in_block() % 32 / Lanes * Lanes;
    __syncwarp((0xFFFFFFFFu >> (32 - Lanes)) << first);
  }
};
template <int Threads>
struct Block {
  static unsigned rank() {
    expect_threads(Threads);
    return thread_in_block();
  }
  static void wait() { __syncthreads(); }
};

template <typename T, int Count>
struct Slots {
  T value[Count];
  T total;
};

/// Where a thread leaves what it brings: in the slot that another one reads its result from, so
/// that memory used again too early is a race, and wrong in some order of threads.
template <int Count>
int other_end(int i) {
  return Count - 1 - i;
}

/// Leaves in slot r what the values of ranks 0 to r (inclusive) or to r - 1 combine to, and in
/// `total` all. Slot 0 of an exclusive scan gets `first`.
template <typename Group, typename T, int Count, typename Op>
void scan(Slots<T, Count>& slots, T mine, bool inclusive, T first, Op op) {
  const int rank = static_cast<int>(Group::rank());
  slots.value[other_end<Count>(rank)] = mine;
  Group::wait();
  if (rank == 0) {
    T values[Count];
    for (int i = 0; i < Count; ++i) values[i] = slots.value[other_end<Count>(i)];
    T sum = inclusive ? values[0] : op(first, values[0]);
    slots.value[0] = inclusive ? values[0] : first;
    for (int i = 1; i < Count; ++i) {
      const T before = sum;
      sum = op(sum, values[i]);
      slots.value[i] = inclusive ? sum : before;
    }
    slots.total = sum;
  }
  Group::wait();
}

/// All values combined, to rank 0 alone.
template <typename Group, typename T, int Count, typename Op>
T reduce(Slots<T, Count>& slots, T mine, int valid, Op op) {
  const unsigned rank = Group::rank();
  slots.value[rank] = mine;
  Group::wait();
  if (rank != 0) return undefined<T>();
  T sum = slots.value[0];
  for (int i = 1; i < valid; ++i) sum = op(sum, slots.value[i]);
  return sum;
}

}  // namespace detail
}  // namespace cub
