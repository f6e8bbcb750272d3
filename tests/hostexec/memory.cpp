// SPDX-License-Identifier: Apache-2.0
// Memory and copies of the stand-in for the CUDA runtime. Device memory is heap blocks of the exact
// size, filled with bytes that are no zeros; under ASan they are poisoned while neither a kernel
// nor a copy runs, so that a host that follows a device pointer is caught.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "executor.hpp"
#include "runtime.hpp"
#include "settings.hpp"

#ifdef HOSTEXEC_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace hostexec {

namespace {

using Blocks = std::map<const char*, std::size_t>;  // bytes by address
Blocks& device_blocks() {
  static Blocks all;
  return all;
}
Blocks& pinned_blocks() {
  static Blocks all;
  return all;
}

bool lies_in(const Blocks& blocks, const void* p, std::size_t bytes) {
  const char* const first = static_cast<const char*>(p);
  auto block = blocks.upper_bound(first);
  if (block == blocks.begin()) return false;
  --block;
  const std::size_t before = static_cast<std::size_t>(first - block->first);
  return before <= block->second && bytes <= block->second - before;
}
bool on_device(const void* p, std::size_t bytes) { return lies_in(device_blocks(), p, bytes); }

int visible_depth;

// Of large blocks only the ends are poisoned: who takes a device pointer for a host's begins at
// one.
[[maybe_unused]] constexpr std::size_t kPoisonedEnd = 256 * 1024;

void set_visible([[maybe_unused]] const Blocks::value_type& block, [[maybe_unused]] bool visible) {
#ifdef HOSTEXEC_ASAN
  const auto set = visible ? __asan_unpoison_memory_region : __asan_poison_memory_region;
  const auto [first, bytes] = block;
  if (bytes <= 2 * kPoisonedEnd) return set(first, bytes);
  set(first, kPoisonedEnd);
  set(first + bytes - kPoisonedEnd, kPoisonedEnd);
#endif
}

// Of the block that holds `p` only, where nothing else needs to be seen.
class BlockVisible {
 public:
  explicit BlockVisible(const void* p) {
    auto block = device_blocks().upper_bound(static_cast<const char*>(p));
    if (visible_depth != 0 || block == device_blocks().begin() || !on_device(p, 0)) return;
    block_ = &*--block;
    set_visible(*block_, true);
  }
  ~BlockVisible() {
    if (block_ != nullptr) set_visible(*block_, false);
  }
  BlockVisible(const BlockVisible&) = delete;
  BlockVisible& operator=(const BlockVisible&) = delete;

 private:
  const Blocks::value_type* block_ = nullptr;
};

void copy_now(void* to, const void* from, std::size_t bytes) {
  const BlockVisible source(from), target(to);
  std::memmove(to, from, bytes);
}

// Whether the pointers are where the direction says.
cudaError_t check_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool right = on_device(to, bytes) == to_device && on_device(from, bytes) == from_device;
  return right ? cudaSuccess : cudaErrorInvalidValue;
}

// Large blocks that were given back, to be taken again by who asks for as many bytes: what the
// system does for a new one takes longer than most kernels. ASan sees no one touch them meanwhile.
class SpareBlocks {
 public:
  SpareBlocks() = default;
  SpareBlocks(const SpareBlocks&) = delete;
  SpareBlocks& operator=(const SpareBlocks&) = delete;
  ~SpareBlocks() {
    for (Block& block : blocks_) drop(block);
  }
  void keep(void* p, std::size_t bytes) {
    if (bytes < kLeast || bytes > kMost) return std::free(p);
    Block& place = blocks_[next_++ % blocks_.size()];
    drop(place);
    place = {p, bytes};
    poison(place, true);
  }
  /// Null where there is none.
  void* take(std::size_t bytes) {
    for (Block& block : blocks_) {
      if (block.p == nullptr || block.bytes != bytes) continue;
      poison(block, false);
      return std::exchange(block.p, nullptr);
    }
    return nullptr;
  }

 private:
  struct Block {
    void* p = nullptr;
    std::size_t bytes = 0;
  };
  static constexpr std::size_t kLeast = 64 * 1024, kMost = 8 * 1024 * 1024;

  static void poison([[maybe_unused]] const Block& block, [[maybe_unused]] bool whether) {
#ifdef HOSTEXEC_ASAN
    (whether ? __asan_poison_memory_region : __asan_unpoison_memory_region)(block.p, block.bytes);
#endif
  }
  static void drop(Block& block) {
    if (block.p == nullptr) return;
    poison(block, false);
    std::free(std::exchange(block.p, nullptr));
  }

  std::array<Block, 8> blocks_;
  std::size_t next_ = 0;
};
SpareBlocks& spare_blocks() {
  static SpareBlocks all;
  return all;
}

cudaError_t take(void** p, std::size_t bytes) {
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  *p = spare_blocks().take(bytes);
  if (*p == nullptr && posix_memalign(p, 256, bytes) != 0) return result(cudaErrorMemoryAllocation);
  std::memset(*p, 0xCD, bytes);
  const auto block = device_blocks().emplace(static_cast<char*>(*p), bytes).first;
  if (visible_depth == 0) set_visible(*block, false);
  return cudaSuccess;
}

cudaError_t give_back(void* p) {
  const auto block = device_blocks().find(static_cast<char*>(p));
  if (block == device_blocks().end()) return cudaErrorInvalidValue;
  set_visible(*block, true);
  const std::size_t bytes = block->second;
  device_blocks().erase(block);
  spare_blocks().keep(p, bytes);
  return cudaSuccess;
}

}  // namespace

DeviceVisible::DeviceVisible() {
  if (visible_depth++ != 0) return;
  for (const auto& block : device_blocks()) set_visible(block, true);
}
DeviceVisible::~DeviceVisible() {
  if (--visible_depth != 0) return;
  for (const auto& block : device_blocks()) set_visible(block, false);
}

void check_argument(const void* pointer, const void* kernel) {
  const std::lock_guard guard(runtime_lock());
  if (pointer == nullptr || on_device(pointer, 0) || lies_in(pinned_blocks(), pointer, 0)) return;
  std::fprintf(stderr, "hostexec: kernel %s is given %p, which is no device memory\n",
               kernel_name(kernel), pointer);
  std::abort();
}

}  // namespace hostexec

using namespace hostexec;

extern "C" {

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  const Called called("cudaMalloc");
  if (const cudaError_t e = unless_capturing(); e != cudaSuccess) return result(e);
  return take(p, bytes);
}
cudaError_t cudaFree(void* p) {
  const Called called("cudaFree");
  if (const cudaError_t e = unless_capturing(); e != cudaSuccess) return result(e);
  if (p == nullptr) return cudaSuccess;
  finish_all();
  return result(give_back(p));
}
cudaError_t cudaMallocAsync(void** p, std::size_t bytes, cudaStream_t stream) {
  const Called called("cudaMallocAsync", stream);
  if (captures(stream)) return result(cudaErrorNotSupported);
  return take(p, bytes);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  const Called called("cudaFreeAsync", stream);
  if (captures(stream)) return result(cudaErrorNotSupported);
  if (p == nullptr) return cudaSuccess;
  if (!device_blocks().contains(static_cast<char*>(p))) return result(cudaErrorInvalidValue);
  return result(enqueue(stream, [p] { give_back(p); }));
}
cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) {
  const Called called("cudaHostAlloc");
  if (const cudaError_t e = unless_capturing(); e != cudaSuccess) return result(e);
  *p = std::malloc(bytes == 0 ? 1 : bytes);
  if (*p == nullptr) return result(cudaErrorMemoryAllocation);
  pinned_blocks()[static_cast<char*>(*p)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, std::size_t bytes) {
  return cudaHostAlloc(p, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void* p) {
  const Called called("cudaFreeHost");
  if (const cudaError_t e = unless_capturing(); e != cudaSuccess) return result(e);
  if (p == nullptr) return cudaSuccess;
  finish_all();
  if (pinned_blocks().erase(static_cast<char*>(p)) == 0) return result(cudaErrorInvalidValue);
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const Called called("cudaMemcpy");
  if (const cudaError_t e = unless_capturing(); e != cudaSuccess) return result(e);
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t e = check_copy(to, from, bytes, kind); e != cudaSuccess) return result(e);
  finish_blocking();
  copy_now(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Called called("cudaMemcpyAsync", stream);
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t e = check_copy(to, from, bytes, kind); e != cudaSuccess) return result(e);
  // Pageable memory is read before the call returns, and written before it returns; a graph keeps
  // the pointer.
  const auto pageable = [&](const void* p) {
    return !on_device(p, bytes) && !lies_in(pinned_blocks(), p, bytes);
  };
  if (pageable(from) && !captures(stream)) {
    const char* const first = static_cast<const char*>(from);
    const auto staged = std::make_shared<const std::vector<char>>(first, first + bytes);
    return result(enqueue(stream, [=] { copy_now(to, staged->data(), bytes); }));
  }
  const cudaError_t e = enqueue(stream, [=] { copy_now(to, from, bytes); });
  if (e == cudaSuccess && pageable(to) && !captures(stream)) finish(stream);
  return result(e);
}
cudaError_t cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t stream) {
  const Called called("cudaMemsetAsync", stream);
  if (bytes == 0) return cudaSuccess;
  if (!on_device(p, bytes)) return result(cudaErrorInvalidValue);
  return result(enqueue(stream, [=] {
    const BlockVisible block(p);
    std::memset(p, value, bytes);
  }));
}
cudaError_t cudaMemset(void* p, int value, std::size_t bytes) {
  const Called called("cudaMemset");
  if (bytes == 0) return cudaSuccess;
  if (!on_device(p, bytes)) return result(cudaErrorInvalidValue);
  return result(enqueue(nullptr, [=] {
    const BlockVisible block(p);
    std::memset(p, value, bytes);
  }));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  const Called called("cudaPointerGetAttributes");
  *attributes = {};
  void* const pointer = const_cast<void*>(p);
  if (on_device(p, 0)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = pointer;
  } else if (lies_in(pinned_blocks(), p, 0)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = attributes->hostPointer = pointer;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->hostPointer = pointer;
    attributes->device = cudaInvalidDeviceId;
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  const Called called("cudaMemGetInfo");
  *total = std::size_t{8} << 30;
  *free_bytes = *total;
  for (const auto& block : device_blocks()) *free_bytes -= block.second;
  return cudaSuccess;
}

}  // extern "C"
