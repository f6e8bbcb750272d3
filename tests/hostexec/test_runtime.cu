// SPDX-License-Identifier: Apache-2.0
// The stand-in for the CUDA runtime: streams, events, graphs, errors, and the record of calls.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "calls.hpp"
#include "cuda/gpu.cuh"
#include "support/device_memory.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

using test::Memory;
using test::StreamOwner;

__global__ void add(unsigned* p, unsigned value) { p[threadIdx.x] += value; }
template <typename T>
__global__ void multiply(T* p, T value) {
  if (blockIdx.x == 0) p[threadIdx.x] *= value;
}
__global__ void two_dimensional(unsigned* p) { atomicAdd(p, blockIdx.y * gridDim.x + blockIdx.x); }

class Runtime : public testing::Test {
 protected:
  Runtime() {
    static_cast<void>(cudaGetLastError());  // of other tests
    memory_.fill(0);
  }
  [[nodiscard]] unsigned* words() const { return reinterpret_cast<unsigned*>(memory_.data()); }
  [[nodiscard]] unsigned word(std::size_t i = 0) const {
    unsigned value;
    EXPECT_EQ(cudaMemcpy(&value, words() + i, sizeof value, cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  }
  static cudaError_t launch(cudaStream_t stream, void (*kernel)(unsigned*, unsigned), unsigned* p,
                            unsigned value) {
    Queue queue(stream);
    queue.launch_blocks(kernel, 1, 8, 0, p, value);
    return queue.error();
  }

  Memory memory_{16 * sizeof(unsigned)};
  StreamOwner first_, second_;
};

TEST_F(Runtime, WorkWaitsInItsStream) {
  ASSERT_EQ(launch(first_.get(), add, words(), 1), cudaSuccess);
  ASSERT_EQ(launch(second_.get(), add, words(), 10), cudaSuccess);
  EXPECT_EQ(word(), 0u);
  EXPECT_EQ(cudaStreamQuery(second_.get()), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(second_.get()), cudaSuccess);
  EXPECT_EQ(word(), 10u);
  first_.wait();
  EXPECT_EQ(word(), 11u);
}

TEST_F(Runtime, TheDefaultStreamWaitsForBlockingStreamsOnly) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  ASSERT_EQ(launch(blocking, add, words(), 1), cudaSuccess);
  ASSERT_EQ(launch(first_.get(), add, words(), 10), cudaSuccess);
  EXPECT_EQ(word(), 1u);
  ASSERT_EQ(launch(blocking, add, words(), 1), cudaSuccess);
  ASSERT_EQ(launch(nullptr, multiply<unsigned>, words(), 5), cudaSuccess);
  EXPECT_EQ(word(), 10u);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(word(), 20u);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(blocking), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Runtime, EventsOrderStreams) {
  cudaEvent_t start = nullptr, done = nullptr;
  ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&done), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, done), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(start, first_.get()), cudaSuccess);
  ASSERT_EQ(launch(first_.get(), add, words(), 3), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(done, first_.get()), cudaSuccess);
  ASSERT_EQ(launch(first_.get(), add, words() + 8, 1), cudaSuccess);  // after the event
  ASSERT_EQ(cudaStreamWaitEvent(second_.get(), done, 0), cudaSuccess);
  ASSERT_EQ(launch(second_.get(), multiply<unsigned>, words(), 7), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, done), cudaErrorNotReady);
  second_.wait();
  EXPECT_EQ(word(), 21u);
  EXPECT_EQ(word(8), 0u);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, done), cudaSuccess);
  EXPECT_GE(milliseconds, 0.0f);
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(done, first_.get()), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(done), cudaSuccess);
  EXPECT_EQ(word(8), 1u);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(done), cudaSuccess);
}

// Pageable memory is done with when the call returns, pinned memory when the stream has come there.
TEST_F(Runtime, CopiesOfPageableAndPinnedMemory) {
  unsigned pageable[4] = {1, 2, 3, 4};
  void* p = nullptr;
  ASSERT_EQ(cudaMallocHost(&p, sizeof pageable), cudaSuccess);
  unsigned* const pinned = static_cast<unsigned*>(p);
  pinned[0] = 5;
  const cudaStream_t s = first_.get();
  ASSERT_EQ(cudaMemcpyAsync(words(), pageable, sizeof pageable, cudaMemcpyHostToDevice, s),
            cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(words() + 4, pinned, 4, cudaMemcpyDefault, s), cudaSuccess);
  pageable[0] = 100;
  pinned[0] = 6;
  ASSERT_EQ(cudaMemcpyAsync(pinned + 1, words() + 1, 8, cudaMemcpyDeviceToHost, s), cudaSuccess);
  pinned[1] = 0;
  unsigned read = 0;
  ASSERT_EQ(cudaMemcpyAsync(&read, words(), 4, cudaMemcpyDeviceToHost, s), cudaSuccess);
  EXPECT_EQ(read, 1u);
  first_.wait();
  EXPECT_EQ(pinned[1], 2u);
  EXPECT_EQ(pinned[2], 3u);
  EXPECT_EQ(word(4), 6u);
  EXPECT_EQ(cudaFreeHost(p), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(words(), words() + 15, 8, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(words(), &read, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
}

TEST_F(Runtime, GraphsRunWhatWasCaptured) {
  const cudaStream_t s = first_.get();
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
  cudaStreamCaptureStatus status;
  ASSERT_EQ(cudaStreamIsCapturing(s, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  unsigned value = 2;
  ASSERT_EQ(launch(s, add, words(), value), cudaSuccess);
  value = 1000;  // the graph has a copy
  // Another stream takes part between two events.
  cudaEvent_t fork = nullptr, join = nullptr;
  ASSERT_EQ(cudaEventCreate(&fork), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&join), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(fork, s), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second_.get(), fork, 0), cudaSuccess);
  ASSERT_EQ(launch(second_.get(), multiply<unsigned>, words(), 3), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(join, second_.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(s, join, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(words() + 8, words(), 4, cudaMemcpyDeviceToDevice, s), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(words() + 1, 0, 4, s), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess);
  std::size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 4u);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(word(), 0u);
  for (const unsigned expected : {6u, 24u}) {
    ASSERT_EQ(cudaGraphLaunch(executable, s), cudaSuccess);
    first_.wait();
    EXPECT_EQ(word(), expected);
    EXPECT_EQ(word(8), expected);
    EXPECT_EQ(word(1), 0u);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(fork), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(join), cudaSuccess);
}

TEST_F(Runtime, CapturesForbidWhatWaitsOrAllocates) {
  const cudaStream_t s = first_.get();
  void* p = nullptr;
  const auto spoils = [&](auto call) {
    EXPECT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(launch(s, add, words(), 1), cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
  };
  spoils([&] { return cudaStreamSynchronize(s); });
  spoils([&] { return cudaStreamQuery(s); });
  spoils([&] { return cudaDeviceSynchronize(); });
  spoils([&] { return cudaMalloc(&p, 4); });
  spoils([&] { return cudaFree(words()); });
  spoils([&] { return cudaMallocHost(&p, 4); });
  spoils([&] { return cudaMemcpy(words(), words() + 1, 4, cudaMemcpyDeviceToDevice); });
}

TEST_F(Runtime, RefusesLaunchesThatNoDeviceTakes) {
  const auto with = [&](dim3 grid, dim3 block, std::size_t shared_bytes) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = first_.get();
    return cudaLaunchKernelEx(&config, add, words(), 1u);
  };
  EXPECT_EQ(with(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(1, dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(dim3(1, 65536), 1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(1, 1, 48 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * 1024),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 * 1024),
            cudaSuccess);
  EXPECT_EQ(with(1, 1, 60 * 1024), cudaSuccess);
}

TEST_F(Runtime, CallsAndLaunchesAreWrittenDown) {
  const cudaStream_t s = first_.get();
  hostexec::reset_calls();
  ASSERT_EQ(launch(s, add, words(), 1), cudaSuccess);
  Queue queue(s);
  queue.launch_blocks(multiply<unsigned>, 3, 4, 16, words(), 1u);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2, 3);
  config.blockDim = dim3(1);
  config.stream = s;
  ASSERT_EQ(cudaLaunchKernelEx(&config, two_dimensional, words()), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(words(), 0, 4, s), cudaSuccess);
  EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});

  const std::vector<hostexec::LaunchRecord> launches = hostexec::launches();
  ASSERT_EQ(launches.size(), 3u);
  EXPECT_EQ(hostexec::launch_count(), 3u);
  EXPECT_EQ(launches[0].kernel, "atomo::cuda::(anonymous namespace)::add");
  EXPECT_EQ(launches[1].kernel, "atomo::cuda::(anonymous namespace)::multiply<unsigned int>");
  EXPECT_EQ(launches[1].grid.x, 3u);
  EXPECT_EQ(launches[1].block.x, 4u);
  EXPECT_EQ(launches[1].shared_bytes, 16u);
  EXPECT_EQ(launches[2].grid.y, 3u);
  EXPECT_EQ(launches[2].stream, s);
  const std::vector<hostexec::Call> calls = hostexec::calls();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].name, "cudaLaunchKernelExC");
  EXPECT_EQ(calls[0].count, 3u);
  EXPECT_EQ(calls[0].stream, s);
  EXPECT_EQ(calls[1].name, "cudaMemsetAsync");
  first_.wait();
  EXPECT_EQ(word(), 0u);
}

TEST_F(Runtime, ForbiddenCallsAreNamed) {
  void* p = nullptr;
  const auto forbidden = [](auto call) {
    hostexec::reset_calls();
    EXPECT_EQ(call(), cudaSuccess);
    const std::vector<std::string> found = hostexec::forbidden_calls();
    return found.size() == 1 ? found[0] : std::to_string(found.size());
  };
  EXPECT_EQ(forbidden([&] { return cudaMalloc(&p, 4); }), "cudaMalloc");
  EXPECT_EQ(forbidden([&] { return cudaFree(p); }), "cudaFree");
  EXPECT_EQ(forbidden([&] { return cudaMallocAsync(&p, 4, first_.get()); }), "cudaMallocAsync");
  EXPECT_EQ(forbidden([&] { return cudaFreeAsync(p, first_.get()); }), "cudaFreeAsync");
  EXPECT_EQ(forbidden([&] { return cudaMemset(words(), 0, 4); }), "cudaMemset");
  EXPECT_EQ(forbidden([] { return cudaDeviceSynchronize(); }), "cudaDeviceSynchronize");
  EXPECT_EQ(forbidden([&] { return cudaStreamSynchronize(first_.get()); }),
            "cudaStreamSynchronize");
  EXPECT_EQ(forbidden([&] { return cudaMemsetAsync(words(), 0, 4, nullptr); }),
            "cudaMemsetAsync on the default stream");
  EXPECT_EQ(forbidden([&] { return launch(cudaStreamPerThread, add, words(), 1); }),
            "cudaLaunchKernelExC on the default stream");
  EXPECT_EQ(forbidden([] { return cudaPeekAtLastError(); }), "0");
}

TEST_F(Runtime, HostThreadsTakeTurns) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const StreamOwner stream;
      for (unsigned k = 0; k < 20; ++k) {
        if (launch(stream.get(), add, words() + i % 2 * 8, 1) == cudaSuccess) stream.wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(word(0), 40u);
  EXPECT_EQ(word(15), 40u);
}

TEST_F(Runtime, PointersKnowWhereTheyPoint) {
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, words() + 3), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &attributes), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

}  // namespace
}  // namespace atomo::cuda
