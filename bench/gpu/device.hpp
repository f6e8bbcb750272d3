// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Memory, streams and times of the current CUDA device, for benchmarks.

#include <cuda_runtime.h>

#include <algorithm>
#include <atomo/types.hpp>
#include <cstddef>
#include <functional>
#include <vector>

namespace atomo::bench {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw Error(cudaGetErrorString(error));
}

struct DeviceMemory {
  explicit DeviceMemory(std::size_t size) : bytes(size) { check(cudaMalloc(&data, size)); }
  ~DeviceMemory() { static_cast<void>(cudaFree(data)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  [[nodiscard]] Bytes span() const { return {static_cast<std::byte*>(data), bytes}; }

  void* data = nullptr;
  std::size_t bytes;
};

/// Median, least and most of some times, in seconds.
struct Times {
  double median = 0, least = 0, most = 0;

  /// \param all not empty
  static Times of(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return {all[all.size() / 2], all.front(), all.back()};
  }
};

/// What a callable queues on a stream, captured so that it can be replayed.
class Graph {
 public:
  /// \throws Error where something that `work` does cannot be captured.
  Graph(cudaStream_t stream, const std::function<void()>& work) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream, &graph));
      static_cast<void>(cudaGetLastError());
      throw;
    }
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (ended != cudaSuccess) static_cast<void>(cudaGetLastError());
    check(ended);
    const cudaError_t made = cudaGraphInstantiate(&replay_, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    check(made);
  }
  ~Graph() { static_cast<void>(cudaGraphExecDestroy(replay_)); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(replay_, stream)); }

 private:
  cudaGraphExec_t replay_ = nullptr;
};

/// A stream, two events, and what empties the L2 cache.
class Timer {
 public:
  static constexpr std::size_t kSamples = 15;

  Timer() : flushed_(2 * l2_bytes()) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~Timer() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  [[nodiscard]] cudaStream_t stream() const { return stream_; }

  /// Writes twice the L2 cache's size, `times` times.
  void flush(std::size_t times = 1) const {
    for (std::size_t i = 0; i < times; ++i)
      check(cudaMemsetAsync(flushed_.data, 1, flushed_.bytes, stream_));
  }

  /// Times between two events around `work`, each after a flush; one call before them is not timed.
  [[nodiscard]] Times time(const std::function<void()>& work) const {
    std::vector<double> all;
    work();
    for (std::size_t i = 0; i < kSamples; ++i) {
      flush();
      check(cudaEventRecord(begin_, stream_));
      work();
      check(cudaEventRecord(end_, stream_));
      check(cudaEventSynchronize(end_));
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin_, end_));
      all.push_back(1e-3 * milliseconds);
    }
    return Times::of(std::move(all));
  }

 private:
  static std::size_t l2_bytes() {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
    return std::max<std::size_t>(static_cast<std::size_t>(bytes), std::size_t{1} << 20);
  }

  DeviceMemory flushed_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace atomo::bench
