// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What kernels compiled as C++ need from the executor: a CUDA thread is a fibre that runs until it
/// waits at a barrier, meets its warp, or returns. The blocks of a grid run on the calling thread: one after
/// the other, in the random order also some at the same time.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

namespace hostexec {

using Location = std::source_location;

inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;  // of a block, static and dynamic
inline constexpr unsigned kMaxThreads = 1024;               // of a block

extern uint3 thread_idx, block_idx;
extern dim3 block_dim, grid_dim;

/// Prints what is wrong, where, and which thread of which kernel found it; aborts.
[[noreturn]] void fail(const char* what, Location where);

// ---- blocks

enum class Vote { none, count, all, any };
/// Waits for every thread of the block that has not returned; all must wait at the same place.
int barrier(Vote vote, bool predicate, Location where);
/// The block's object of that key, made of garbage when the block first asks for it.
void* shared_object(const void* key, std::size_t size, std::size_t align);
/// What the launch asked for, garbage at first, aligned to 16 bytes.
void* dynamic_shared();
void fence();
/// Lets other threads of the block run (`__nanosleep`).
void yield();
/// Called by every atomic operation: lets others run now and then in the random order, and ends
/// waits that nothing can end. `changed`: the operation wrote something else than it found.
void atomic_done(bool changed);

// ---- warps

/// A meeting of the lanes that a mask names. Lanes that returned are not waited for.
struct Meeting {
  std::uint32_t mask, arrived;  // bits of lanes
  std::uint32_t present,
      leaving;  // how many arrived; of them, once complete, who have yet to leave
  Location where;
  std::uint64_t value[32];
};
/// Returns when every named lane has come, to the same place with the same mask. The values stay
/// until all have called `leave`.
Meeting& meet(std::uint32_t mask, std::uint64_t value, bool orders_memory, Location where);
void leave(Meeting& meeting);
unsigned lane();

template <typename T>
std::uint64_t to_bits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <typename T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// ---- launches

/// A kernel with its arguments, as it waits in a stream or a graph.
struct Launch {
  const void* kernel;
  dim3 grid, block;
  std::size_t shared_bytes;
  void (*call)(void*);              ///< what each thread runs, given `arguments`
  std::shared_ptr<void> arguments;  ///< a copy: the caller's may be gone when the kernel runs
};
/// Runs a whole grid now.
void run(const Launch& launch);
/// The grid that runs, and how many began before it; null when none does.
extern const Launch* running;
extern std::size_t runs_before;
/// Puts it into the stream, or into the graph that the stream captures.
cudaError_t submit(Launch launch, cudaStream_t stream);
/// Fails when a kernel is given a pointer that is not null and not the device's.
void check_argument(const void* pointer, const void* kernel);

template <typename... P, typename... A>
cudaError_t launch_kernel(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                          A&&... arguments) {
  using Arguments = std::tuple<P...>;
  using Call = std::pair<void (*)(P...), Arguments>;
  const auto call = std::make_shared<Call>(kernel, Arguments(std::forward<A>(arguments)...));
  const void* const address = reinterpret_cast<const void*>(kernel);
  const auto check = [address](const auto& argument) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(argument)>>)
      check_argument(argument, address);
  };
  std::apply([&](const auto&... each) { (check(each), ...); }, call->second);
  const auto thread = [](void* c) {
    const Call& it = *static_cast<const Call*>(c);
    std::apply(it.first, it.second);
  };
  return submit(
      {address, config->gridDim, config->blockDim, config->dynamicSmemBytes, thread, call},
      config->stream);
}

}  // namespace hostexec
