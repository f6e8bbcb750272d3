// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Force-included before a .cu file, this makes g++ take it for C++:
///   g++ -x c++ -include hostexec.hpp -c kernel.cu
/// Keywords vanish, intrinsics are functions, a launch goes to the executor. `__shared__` and
/// <<<>>> are not for plain C++: kernels use `shared<T>()`, `dynamic_shared<T>()` and
/// cudaLaunchKernelEx.

#ifdef __CUDACC__
#error "the host executor is for g++, not for nvcc"
#endif

#define ATOMO_HOSTEXEC 1

#include <cuda_runtime.h>  // vector types, error codes, prototypes of the runtime; keywords are empty

#undef __shared__
#define __shared__ hostexec_has_no_shared_keyword_use_shared_of_T
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

#include "arithmetic.hpp"
#include "atomics.hpp"
#include "executor.hpp"
#include "warp.hpp"

#define cudaLaunchKernelEx hostexec::launch_kernel

inline const uint3& threadIdx = hostexec::thread_idx;
inline const uint3& blockIdx = hostexec::block_idx;
inline const dim3& blockDim = hostexec::block_dim;
inline const dim3& gridDim = hostexec::grid_dim;
inline constexpr int warpSize = 32;

// The toolkit has these for nvcc only.
template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <typename... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(P...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
