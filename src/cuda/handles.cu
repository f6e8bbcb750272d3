// SPDX-License-Identifier: Apache-2.0
/// Handles of cuBLAS and cuSOLVER, made and destroyed. No kernels.

#include "cuda/handles.hpp"

#include <new>

#include "atomo/cuda.hpp"

namespace atomo {

bool Handles::use(cudaStream_t stream, void* blas_room, std::size_t blas_bytes) noexcept {
  // A new stream takes the workspace back, so it comes second.
  return cublasSetStream(blas, stream) == CUBLAS_STATUS_SUCCESS &&
         cublasSetWorkspace(blas, blas_room, blas_bytes) == CUBLAS_STATUS_SUCCESS &&
         cusolverDnSetStream(solver, stream) == CUSOLVER_STATUS_SUCCESS;
}

bool Handles::reserve(std::size_t wanted, std::size_t host_wanted) noexcept {
  if (wanted > bytes) {
    static_cast<void>(cudaFree(room));  // waits for what still uses it
    room = nullptr;
    bytes = 0;
    if (cudaMalloc(&room, wanted) != cudaSuccess) return false;
    bytes = wanted;
  }
  if (host_wanted > host_bytes) {
    host_room.reset(new (std::nothrow) std::byte[host_wanted]);
    host_bytes = host_room != nullptr ? host_wanted : 0;
  }
  return host_wanted <= host_bytes;
}

Handles::~Handles() {
  static_cast<void>(cudaFree(room));
  if (parameters != nullptr) static_cast<void>(cusolverDnDestroyParams(parameters));
  if (solver != nullptr) static_cast<void>(cusolverDnDestroy(solver));
  if (blas != nullptr) static_cast<void>(cublasDestroy(blas));
}

void DestroyHandles::operator()(Handles* handles) const noexcept { delete handles; }

HandlesPtr make_handles() {
  HandlesPtr handles(new Handles);
  if (cublasCreate(&handles->blas) != CUBLAS_STATUS_SUCCESS)
    throw Error("CUDA: cublasCreate failed");
  if (cusolverDnCreate(&handles->solver) != CUSOLVER_STATUS_SUCCESS ||
      cusolverDnCreateParams(&handles->parameters) != CUSOLVER_STATUS_SUCCESS)
    throw Error("CUDA: cusolverDnCreate failed");
  return handles;
}

}  // namespace atomo
