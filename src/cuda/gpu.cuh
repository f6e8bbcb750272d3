// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What kernels are written with: launches, shared memory, a warp's lanes. The only header that
/// knows that kernels may also be compiled for the host executor (tests/hostexec).
///
/// Kernels here are written for a warp a unit of work: block sizes only group warps, so any
/// multiple of 32 threads gives the same bytes. Where a kernel needs a whole block (scans), it is
/// launched with `launch_blocks` and a fixed number of threads.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "atomo/types.hpp"
#include "cuda/plan.hpp"
#include "cuda/tuning.hpp"

namespace atomo::cuda {

inline constexpr unsigned kLanes = 32, kAllLanes = 0xFFFFFFFFu;

inline constexpr unsigned kMaxWarps = 8;

/// One static object in shared memory, its contents undefined at first. `T` is private to a kernel.
template <typename T>
__device__ inline T& shared() {
  static_assert(std::is_trivial_v<T>);
#ifdef ATOMO_HOSTEXEC
  static char key;
  return *static_cast<T*>(hostexec::shared_object(&key, sizeof(T), alignof(T)));
#else
  __shared__ T object;
  return object;
#endif
}

/// The shared memory whose size the launch gave, aligned to 16 bytes.
template <typename T>
__device__ inline T* dynamic_shared() {
#ifdef ATOMO_HOSTEXEC
  return static_cast<T*>(hostexec::dynamic_shared());
#else
  extern __shared__ __align__(16) unsigned char atomo_dynamic_shared[];
  return reinterpret_cast<T*>(atomo_dynamic_shared);
#endif
}

__device__ inline unsigned lane() { return threadIdx.x % kLanes; }
/// Number of this warp in its block.
__device__ inline unsigned warp_in_block() { return threadIdx.x / kLanes; }
/// Number of this warp in the grid.
__device__ inline std::uint64_t warp_in_grid() {
  return std::uint64_t{blockIdx.x} * (blockDim.x / kLanes) + warp_in_block();
}
__device__ inline std::uint64_t warps_in_grid() {
  return std::uint64_t{gridDim.x} * (blockDim.x / kLanes);
}

/// The pointer, of which the compiler no longer knows what it was made of: loops then add to it, and not
/// to each of its parts.
template <typename T>
__device__ inline T* in_one(T* pointer) {
#ifndef ATOMO_HOSTEXEC
  asm("" : "+l"(pointer));
#endif
  return pointer;
}

/// The number, of which the compiler makes nothing ahead of the loop that needs it: what follows from it
/// would take registers there.
__device__ inline std::uint32_t not_ahead(std::uint32_t number) {
#ifndef ATOMO_HOSTEXEC
  asm volatile("" : "+r"(number));
#endif
  return number;
}

/// Adds `count` and returns the value before. What this thread wrote, and what others wrote before a
/// barrier that it passed with them, is seen by the threads that take a later ticket, and by those
/// behind their next barrier.
template <typename T>
__device__ inline T take_ticket(T* tickets, T count = 1) {
#ifdef ATOMO_HOSTEXEC
  __threadfence();
  const T before = atomicAdd(tickets, count);
  __threadfence();
  return before;
#else
  static_assert(std::is_unsigned_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  T before;  // what <cuda/atomic> makes of fetch_add, whose header takes longer to compile than most kernels
  if constexpr (sizeof(T) == 4) {
    asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(tickets), "r"(count)
                 : "memory");
  } else {
    asm volatile("atom.add.acq_rel.gpu.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(tickets), "l"(count)
                 : "memory");
  }
  return before;
#endif
}

/// Waits until `enough` holds of the word, and sees what was written before it was made so. Only for what
/// blocks do that surely run: those that came before this one, in the order of tickets.
template <typename Enough>
__device__ inline void wait_until(std::uint32_t* word, Enough enough) {
#ifdef ATOMO_HOSTEXEC
  while (!enough(atomicAdd(word, 0u))) {
  }
  __threadfence();
#else
  for (;;) {
    std::uint32_t now;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    if (enough(now)) return;
    __nanosleep(64);
  }
#endif
}
/// Until `tickets` were taken.
__device__ inline void wait_for_tickets(std::uint32_t* tickets, std::uint32_t count) {
  wait_until(tickets, [count](std::uint32_t taken) { return taken >= count; });
}

/// A stream and the first error of what was launched on it. Nothing waits, nothing allocates.
class Queue {
 public:
  /// `handles` and `tables`, the plan's on the host, are for operations that call libraries.
  explicit Queue(cudaStream_t stream, Handles* handles = nullptr,
                 const std::byte* tables = nullptr) noexcept
      : stream_(stream), handles_(handles), tables_(tables) {}

  /// A warp for each of `units`; the kernel leaves warps beyond them idle
  /// (`warp_in_grid() >= units`). Nothing is launched for 0 units.
  template <typename... P, typename... A>
  void launch_warps(void (*kernel)(P...), std::uint64_t units, A&&... arguments) noexcept {
    launch_warps_each(kernel, units, 1, std::forward<A>(arguments)...);
  }
  /// The same of each of `parts` parts, whose number is blockIdx.y.
  template <typename... P, typename... A>
  void launch_warps_each(void (*kernel)(P...), std::uint64_t units, unsigned parts,
                         A&&... arguments) noexcept {
    if (units == 0) return;
    const std::uint64_t blocks = (units + warps_per_block - 1) / warps_per_block;
    launch(kernel, blocks, warps_per_block * kLanes, 0, parts, std::forward<A>(arguments)...);
  }
  /// Blocks of `threads` threads with `shared_bytes` of dynamic shared memory.
  template <typename... P, typename... A>
  void launch_blocks(void (*kernel)(P...), std::uint64_t blocks, unsigned threads,
                     std::size_t shared_bytes, A&&... arguments) noexcept {
    launch_blocks_each(kernel, blocks, 1, threads, shared_bytes, std::forward<A>(arguments)...);
  }
  /// The same of each of `parts` parts, whose number is blockIdx.y.
  template <typename... P, typename... A>
  void launch_blocks_each(void (*kernel)(P...), std::uint64_t blocks, unsigned parts,
                          unsigned threads, std::size_t shared_bytes, A&&... arguments) noexcept {
    if (blocks == 0) return;
    launch(kernel, blocks, threads, shared_bytes, parts, std::forward<A>(arguments)...);
  }

  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }
  [[nodiscard]] Handles* handles() const noexcept { return handles_; }
  /// What the host put into a table, where the queue was made with the plan's tables.
  template <typename T>
  [[nodiscard]] const T* on_host(Table<T> table) const noexcept {
    return reinterpret_cast<const T*>(tables_ + table.at);
  }
  [[nodiscard]] cudaError_t error() const noexcept { return error_; }
  /// The call's status tells of it: the runtime keeps nothing for whoever asks it next.
  void note(cudaError_t error) noexcept {
    if (error == cudaSuccess) return;
    if (error_ == cudaSuccess) error_ = error;
    (void)cudaGetLastError();
  }

 private:
  template <typename... P, typename... A>
  void launch(void (*kernel)(P...), std::uint64_t blocks, unsigned threads,
              std::size_t shared_bytes, unsigned parts, A&&... arguments) noexcept {
    if (error_ != cudaSuccess) return;
    if (blocks > 0x7FFFFFFFu) return note(cudaErrorInvalidConfiguration);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks), parts);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream_;
    note(cudaLaunchKernelEx(&config, kernel, std::forward<A>(arguments)...));
  }

  cudaStream_t stream_;
  Handles* handles_;
  const std::byte* tables_;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace atomo::cuda
