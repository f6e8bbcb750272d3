// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Inside the stand-in for the CUDA runtime. What is put into a stream waits there until something
/// synchronises with it, as late as CUDA allows: a host that reads too early, or a stream that does
/// not wait for another, finds old values.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace hostexec {

using Operation = std::function<void()>;

/// A capture in progress, of one stream and of those that joined it through events.
struct Capture {
  std::vector<Operation> operations;
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool valid = true;
};

struct EventState {
  cudaStream_t stream = nullptr;  ///< it was recorded in
  std::size_t recorded = 0, completed = 0;
  double milliseconds = 0;           ///< of the clock when last completed
  std::shared_ptr<Capture> capture;  ///< it was recorded in
};

}  // namespace hostexec

struct CUstream_st {
  bool blocking = true;  ///< waits for the default stream, and the default stream for it
  std::deque<hostexec::Operation> waiting;
  std::shared_ptr<hostexec::Capture> capture;
};
struct CUevent_st {
  std::shared_ptr<hostexec::EventState> state = std::make_shared<hostexec::EventState>();
};
struct CUgraph_st {
  std::vector<hostexec::Operation> operations;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<hostexec::Operation>> operations;
};

namespace hostexec {

/// Host threads take turns.
[[nodiscard]] std::recursive_mutex& runtime_lock();

/// Holds the lock and writes the call down; every function of the runtime begins with one.
class Called {
 public:
  explicit Called(const char* name);
  Called(const char* name, cudaStream_t stream);

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};
void note_launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                 cudaStream_t stream);

/// Keeps an error for cudaGetLastError.
cudaError_t result(cudaError_t error);

// ---- streams

[[nodiscard]] bool is_default(cudaStream_t stream);
/// Into the stream, into its capture, or, on the default stream, done at once after all that blocks
/// it.
cudaError_t enqueue(cudaStream_t stream, Operation operation);
/// Runs all that waits in a stream.
void finish(cudaStream_t stream);
/// Runs what the default stream waits for, or all there is.
void finish_blocking();
void finish_all();
[[nodiscard]] bool captures(cudaStream_t stream);
/// For what must not be called during a capture: spoils the captures that forbid it.
[[nodiscard]] cudaError_t unless_capturing();

// ---- memory

/// While one lives, host code may touch device memory: kernels and copies run.
class DeviceVisible {
 public:
  DeviceVisible();
  ~DeviceVisible();
  DeviceVisible(const DeviceVisible&) = delete;
  DeviceVisible& operator=(const DeviceVisible&) = delete;
};

}  // namespace hostexec
