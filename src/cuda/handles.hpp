// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The caller's library handles (atomo/cuda.hpp). Host code.

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include <cstddef>
#include <memory>

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo {

struct Handles {
  cublasHandle_t blas = nullptr;
  cusolverDnHandle_t solver = nullptr;
  cusolverDnParams_t parameters = nullptr;
  void* room = nullptr;                    ///< device memory for the solver
  std::size_t bytes = 0;                   ///< of it
  std::unique_ptr<std::byte[]> host_room;  ///< the same on the host
  std::size_t host_bytes = 0;

  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles();

  /// Work goes to this stream from now on, and cuBLAS has the caller's memory for it.
  [[nodiscard]] bool use(cudaStream_t stream, void* blas_room, std::size_t blas_bytes) noexcept;
  /// Room for at least so many bytes on either side; what was in it is lost. Waits for the device
  /// when it grows.
  [[nodiscard]] bool reserve(std::size_t wanted, std::size_t host_wanted) noexcept;
};

}  // namespace atomo
