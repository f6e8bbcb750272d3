// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How many launches a call asks for, from a capture that runs none of them.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <atomo/types.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include "calls.hpp"

namespace atomo::test {

/// Launches of `call`, captured on `stream` into a graph that nobody launches. A call that fails, or
/// that calls what it must not, fails the test.
template <class Call>
std::size_t captured_launches(cudaStream_t stream, Call call) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  hostexec::reset_calls();
  EXPECT_EQ(call(), Status::ok);
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  const std::size_t count = hostexec::launch_count();
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return count;
}

}  // namespace atomo::test
