// SPDX-License-Identifier: Apache-2.0
// Stand-in for cuBLAS: the calls that the library makes, as naive loops in stream order. Scalars
// are the host's; matrices are column-major.
#include <cublas_v2.h>

#include <cstdint>
#include <cstring>

#include "runtime.hpp"

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace {

/// op(A)(i, j)
double entry(const double* a, int rows, cublasOperation_t op, int i, int j) {
  const auto at = [rows](int r, int c) {
    return static_cast<std::size_t>(c) * static_cast<std::size_t>(rows) +
           static_cast<std::size_t>(r);
  };
  return op == CUBLAS_OP_N ? a[at(i, j)] : a[at(j, i)];
}

cublasStatus_t put(cublasHandle_t handle, hostexec::Operation operation) {
  return hostexec::enqueue(handle->stream, std::move(operation)) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  const hostexec::Called called("cublasCreate");
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  const hostexec::Called called("cublasDestroy");
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

/// Writes over the memory it was given, as it may.
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* room, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(room) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  return put(handle, [=] { std::memset(room, 0xC5, bytes); });
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a,
                                         cublasOperation_t op_b, int m, int n, int k,
                                         const double* alpha, const double* a, int lda,
                                         long long stride_a, const double* b, int ldb,
                                         long long stride_b, const double* beta, double* c, int ldc,
                                         long long stride_c, int count) {
  const hostexec::Called called("cublasDgemmStridedBatched", handle->stream);
  return put(handle, [=, alpha = *alpha, beta = *beta] {
    for (int member = 0; member < count; ++member) {
      const double* const from_a = a + member * stride_a;
      const double* const from_b = b + member * stride_b;
      double* const to = c + member * stride_c;
      for (int j = 0; j < n; ++j) {
        for (int i = 0; i < m; ++i) {
          double sum = 0;
          for (int l = 0; l < k; ++l)
            sum += entry(from_a, lda, op_a, i, l) * entry(from_b, ldb, op_b, l, j);
          double& value = to[static_cast<std::ptrdiff_t>(j) * ldc + i];
          value = alpha * sum + (beta == 0 ? 0 : beta * value);
        }
      }
    }
  });
}

}  // extern "C"
