// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Memory, streams and events of a CUDA device, which throw `std::runtime_error` where CUDA fails.

#include <cuda_runtime_api.h>

#include <atomo/types.hpp>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace train::device {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

/// Memory of the device, or pinned memory of the host, that grows when it must.
class Memory {
 public:
  explicit Memory(bool pinned, std::size_t bytes = 0) : pinned_(pinned) { reserve(bytes); }
  ~Memory() { release(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Forgets the contents when it grows.
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    release();
    bytes_ = 0;
    void* memory = nullptr;
    check(pinned_ ? cudaMallocHost(&memory, bytes) : cudaMalloc(&memory, bytes),
          pinned_ ? "pinned memory" : "memory");
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] atomo::Bytes bytes() const noexcept { return {data_, bytes_}; }
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void release() noexcept {
    static_cast<void>(pinned_ ? cudaFreeHost(data_) : cudaFree(data_));
    data_ = nullptr;
  }
  bool pinned_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class StreamOwner {
 public:
  StreamOwner() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  ~StreamOwner() { static_cast<void>(cudaStreamDestroy(stream_)); }
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "waiting for the device"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A point in a stream that others wait for. Waiting for one never recorded is no waiting.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "an event"); }
  void wait() const { check(cudaEventSynchronize(event_), "waiting for an event"); }
  void hold(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

inline void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, kind, stream), "a copy");
}

}  // namespace train::device
