// SPDX-License-Identifier: Apache-2.0
// The device and its errors: the stand-in for the CUDA runtime.
#include <cstdio>

#include "executor.hpp"
#include "runtime.hpp"

namespace hostexec {

namespace {

thread_local cudaError_t last_error = cudaSuccess;

// Few multiprocessors, and an odd number: nothing may depend on what a GPU usually has.
constexpr int kMultiprocessors = 3;

// A program finds one device; a second can be chosen, to see that a call looks which is current.
constexpr int kDevices = 2;
thread_local int current_device = 0;

}  // namespace

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace hostexec

using namespace hostexec;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const Called called("cudaGetDeviceCount");
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  const Called called("cudaGetDevice");
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const Called called("cudaSetDevice");
  if (device < 0 || device >= kDevices) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const Called called("cudaDeviceGetAttribute");
  if (device != 0) return result(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = kMaxThreads;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2 * kMaxThreads;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 48 * 1024;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMaxSharedBytes;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const Called called("cudaGetDeviceProperties");
  if (device != 0) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "host executor");
  properties->totalGlobalMem = std::size_t{8} << 30;
  properties->multiProcessorCount = kMultiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = kMaxThreads;
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = kMaxSharedBytes;
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  const Called called("cudaRuntimeGetVersion");
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  const Called called("cudaDriverGetVersion");
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const Called called("cudaGetLastError");
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  const Called called("cudaPeekAtLastError");
  return last_error;
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[48];
  std::snprintf(text, sizeof text, "CUDA error %d (host executor)", static_cast<int>(error));
  return error == cudaSuccess ? "no error" : text;
}

}  // extern "C"
