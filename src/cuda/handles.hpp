// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The caller's library handles (atomo/cuda.hpp). Host code.

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include <cstddef>

#include "atomo/types.hpp"

namespace atomo {

struct Handles {
  cublasHandle_t blas = nullptr;
  cusolverDnHandle_t solver = nullptr;
  double* room = nullptr;  ///< device memory for the solver
  std::size_t values = 0;  ///< that it holds

  /// Work goes to this stream from now on.
  [[nodiscard]] bool use(cudaStream_t stream) noexcept;
  /// Room for at least so many values; what was in it is lost. Waits for the device when it grows.
  [[nodiscard]] bool reserve(std::size_t wanted) noexcept;
};

}  // namespace atomo
