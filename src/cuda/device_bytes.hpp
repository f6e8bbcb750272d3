// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Memory of a model on the device, taken and filled while it is set up.

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string>

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo::cuda {

/// Throws what a set-up call of the runtime reports.
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // it was told, and nobody else meets it
  throw Error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

struct FreeDevice {
  void operator()(std::byte* memory) const noexcept { static_cast<void>(cudaFree(memory)); }
};
using DeviceBytes = std::unique_ptr<std::byte, FreeDevice>;

[[nodiscard]] inline DeviceBytes device_bytes(std::size_t bytes) {
  std::byte* memory = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&memory), bytes), "memory for a model");
  return DeviceBytes(memory);
}

/// The device that was current when this was made, whose memory a model's tables and state are in: a
/// kernel on another one would fault, and leave its context useless.
class OwnDevice {
 public:
  [[nodiscard]] bool is_current() const noexcept { return current() == device_; }
  /// `call`, which waits for all work of this device and says whether all went well, while this device
  /// is the current one.
  template <typename Call>
  [[nodiscard]] Status wait_on(Call call) const noexcept {
    const int before = current();
    bool done = before == device_ || cudaSetDevice(device_) == cudaSuccess;
    done = done && cudaDeviceSynchronize() == cudaSuccess && call() &&
           cudaStreamSynchronize(cudaStreamLegacy) == cudaSuccess;
    if (!done) static_cast<void>(cudaGetLastError());  // it is told, and nobody else meets it
    if (before >= 0 && before != device_) static_cast<void>(cudaSetDevice(before));
    return done ? Status::ok : Status::external;
  }

 private:
  static int current() noexcept {
    int device = -1;
    return cudaGetDevice(&device) == cudaSuccess ? device : -1;
  }
  int device_ = current();
};

/// Copies or zeros of the runtime may return before their last bytes have arrived, and other
/// streams do not wait for them.
inline void wait_for_set_up(const char* what) {
  check(cudaStreamSynchronize(cudaStreamLegacy), what);
}

/// The values on the current device, once they have arrived.
[[nodiscard]] inline DeviceBytes on_device(ConstBytes values, const char* what) {
  DeviceBytes memory = device_bytes(values.size());
  check(cudaMemcpy(memory.get(), values.data(), values.size(), cudaMemcpyHostToDevice), what);
  wait_for_set_up(what);
  return memory;
}

}  // namespace atomo::cuda
