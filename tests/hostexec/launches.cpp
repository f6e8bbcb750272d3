// SPDX-License-Identifier: Apache-2.0
// Launches, graphs and what is set for a kernel: the stand-in for the CUDA runtime.
#include <map>

#include "executor.hpp"
#include "runtime.hpp"

namespace hostexec {

namespace {

constexpr std::size_t kUsualSharedBytes =
    48 * 1024;  // of dynamic shared memory, unless asked for more

std::map<const void*, std::size_t>& shared_limits() {
  static std::map<const void*, std::size_t> all;
  return all;
}

cudaError_t check(const Launch& launch) {
  const dim3 &g = launch.grid, &b = launch.block;
  const std::size_t threads = std::size_t{b.x} * b.y * b.z;
  const bool fits = threads != 0 && threads <= kMaxThreads && b.z <= 64 && g.x != 0 && g.y != 0 &&
                    g.z != 0 && g.x <= 0x7FFFFFFFu && g.y <= 65535 && g.z <= 65535;
  if (!fits) return cudaErrorInvalidConfiguration;
  const auto limit = shared_limits().find(launch.kernel);
  const std::size_t allowed = limit == shared_limits().end() ? kUsualSharedBytes : limit->second;
  return launch.shared_bytes <= allowed ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t submit(Launch launch, cudaStream_t stream) {
  const Called called("cudaLaunchKernelExC", stream);
  if (const cudaError_t e = check(launch); e != cudaSuccess) return result(e);
  note_launch(launch.kernel, launch.grid, launch.block, launch.shared_bytes, stream);
  return result(enqueue(stream, [launch] { run(launch); }));
}

}  // namespace hostexec

using namespace hostexec;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const Called called("cudaFuncSetAttribute");
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<std::size_t>(value) > kMaxSharedBytes)
    return result(cudaErrorInvalidValue);
  shared_limits()[kernel] = static_cast<std::size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  const Called called("cudaFuncGetAttributes");
  *attributes = {};
  attributes->maxThreadsPerBlock = kMaxThreads;
  const auto limit = shared_limits().find(kernel);
  attributes->maxDynamicSharedSizeBytes =
      static_cast<int>(limit == shared_limits().end() ? kUsualSharedBytes : limit->second);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   std::size_t, unsigned) {
  const Called called("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
  *blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads,
                                                                shared_bytes, 0);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  const Called called("cudaGraphInstantiate");
  *executable =
      new CUgraphExec_st{std::make_shared<const std::vector<Operation>>(graph->operations)};
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  const Called called("cudaGraphGetNodes");
  if (nodes != nullptr) return result(cudaErrorNotSupported);
  *count = graph->operations.size();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Called called("cudaGraphLaunch", stream);
  return result(enqueue(stream, [operations = executable->operations] {
    for (const Operation& operation : *operations) operation();
  }));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Called called("cudaGraphDestroy");
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Called called("cudaGraphExecDestroy");
  delete executable;
  return cudaSuccess;
}

}  // extern "C"
