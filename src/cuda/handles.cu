// SPDX-License-Identifier: Apache-2.0
/// Handles of cuBLAS and cuSOLVER, made and destroyed. No kernels.

#include "cuda/handles.hpp"

#include "atomo/cuda.hpp"

namespace atomo {

bool Handles::use(cudaStream_t stream) noexcept {
  return cublasSetStream(blas, stream) == CUBLAS_STATUS_SUCCESS &&
         cusolverDnSetStream(solver, stream) == CUSOLVER_STATUS_SUCCESS;
}

bool Handles::reserve(std::size_t wanted) noexcept {
  if (wanted <= values) return true;
  static_cast<void>(cudaFree(room));  // waits for what still uses it
  values = 0;
  void* memory = nullptr;
  const bool found = cudaMalloc(&memory, wanted * sizeof(double)) == cudaSuccess;
  room = found ? static_cast<double*>(memory) : nullptr;
  if (found) values = wanted;
  return found;
}

void DestroyHandles::operator()(Handles* handles) const noexcept {
  if (handles == nullptr) return;
  static_cast<void>(cudaFree(handles->room));
  if (handles->solver != nullptr) static_cast<void>(cusolverDnDestroy(handles->solver));
  if (handles->blas != nullptr) static_cast<void>(cublasDestroy(handles->blas));
  delete handles;
}

HandlesPtr make_handles() {
  HandlesPtr handles(new Handles);
  if (cublasCreate(&handles->blas) != CUBLAS_STATUS_SUCCESS)
    throw Error("CUDA: cublasCreate failed");
  if (cusolverDnCreate(&handles->solver) != CUSOLVER_STATUS_SUCCESS)
    throw Error("CUDA: cusolverDnCreate failed");
  return handles;
}

}  // namespace atomo
