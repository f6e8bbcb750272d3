// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What was called of the CUDA runtime, for tests to look at:
///
///   hostexec::reset_calls();
///   encode(...);
///   EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

namespace hostexec {

struct Call {
  std::string name;         ///< as in CUDA's manual; a kernel's launch is cudaLaunchKernelExC
  bool has_stream = false;  ///< it takes a stream
  cudaStream_t stream = nullptr;
  std::size_t count = 0;
};

struct LaunchRecord {
  std::string kernel;  ///< its name with namespaces and template arguments, without parameters
  dim3 grid, block;
  std::size_t shared_bytes = 0;  ///< dynamic
  cudaStream_t stream = nullptr;
};

/// Since the last reset, in order of name and stream.
[[nodiscard]] std::vector<Call> calls();
/// Since the last reset, in the order they were asked for; a graph's are counted when captured.
[[nodiscard]] std::vector<LaunchRecord> launches();
[[nodiscard]] std::size_t launch_count();
/// Of the calls since the last reset those that encoding and decoding must not make: what takes or
/// gives back memory or handles, what waits or asks whether something is done, and what goes to the
/// default stream ("cudaMemsetAsync on the default stream").
[[nodiscard]] std::vector<std::string> forbidden_calls();
void reset_calls();

}  // namespace hostexec
