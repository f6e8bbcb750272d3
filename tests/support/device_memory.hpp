// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Where a test's tensors, messages and workspaces are: in host memory, or, in suites compiled with
/// ATOMO_TEST_CUDA, in that of a CUDA device (a real one, or the host executor's).

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "atomo/types.hpp"

#ifdef ATOMO_TEST_CUDA
#include <cuda_runtime.h>
#endif

namespace atomo::test {

#ifdef ATOMO_TEST_CUDA

inline constexpr Device kDevice = Device::cuda;

/// A stream of its own, so that nothing touches the default one.
class StreamOwner {
 public:
  StreamOwner() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~StreamOwner() { static_cast<void>(cudaStreamDestroy(stream_)); }
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  [[nodiscard]] Stream get() const { return stream_; }
  void wait() const { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// `bytes` bytes of device memory, `offset` bytes behind a multiple of 256 and with nothing behind.
class Memory {
 public:
  explicit Memory(std::size_t bytes, std::size_t offset = 0) : bytes_(bytes), offset_(offset) {
    void* memory = nullptr;
    if (bytes + offset > 0) {
      EXPECT_EQ(cudaMalloc(&memory, bytes + offset), cudaSuccess);
    }
    base_ = static_cast<std::byte*>(memory);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { static_cast<void>(cudaFree(base_)); }

  [[nodiscard]] std::byte* data() const { return base_ + offset_; }
  [[nodiscard]] Bytes bytes() const { return {data(), bytes_}; }
  void put(ConstBytes values) const {
    if (!values.empty()) {
      EXPECT_EQ(cudaMemcpy(data(), values.data(), values.size(), cudaMemcpyHostToDevice),
                cudaSuccess);
      arrive();
    }
  }
  void fill(int byte) const {
    if (bytes_ > 0) {
      EXPECT_EQ(cudaMemset(data(), byte, bytes_), cudaSuccess);
      arrive();
    }
  }
  [[nodiscard]] std::vector<std::byte> get(std::size_t count) const {
    std::vector<std::byte> values(count);
    if (count > 0) {
      EXPECT_EQ(cudaMemcpy(values.data(), data(), count, cudaMemcpyDeviceToHost), cudaSuccess);
    }
    return values;
  }

 private:
  /// The calls above may return before the device is done, and the tests' streams do not wait.
  static void arrive() { EXPECT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess); }

  std::byte* base_ = nullptr;
  std::size_t bytes_, offset_;
};

#else

inline constexpr Device kDevice = Device::cpu;

class StreamOwner {
 public:
  [[nodiscard]] Stream get() const { return nullptr; }
  void wait() const {}
};

class Memory {
 public:
  explicit Memory(std::size_t bytes, std::size_t offset = 0)
      : memory_(bytes + offset + 256), bytes_(bytes), offset_(offset) {
    offset_ += (256 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 256) % 256;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::byte* data() const { return const_cast<std::byte*>(memory_.data()) + offset_; }
  [[nodiscard]] Bytes bytes() const { return {data(), bytes_}; }
  void put(ConstBytes values) const {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size());
  }
  void fill(int byte) const {
    if (bytes_ > 0) std::memset(data(), byte, bytes_);
  }
  [[nodiscard]] std::vector<std::byte> get(std::size_t count) const {
    return {data(), data() + count};
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_, offset_;
};

#endif

/// A value in that memory.
template <typename T>
class Word {
 public:
  explicit Word(T value = {}) : memory_(sizeof(T)) { set(value); }
  void set(T value) const { memory_.put(std::as_bytes(std::span(&value, 1))); }
  [[nodiscard]] T get() const {
    T value;
    const auto bytes = memory_.get(sizeof(T));
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data()); }

 private:
  Memory memory_;
};

}  // namespace atomo::test
