// SPDX-License-Identifier: Apache-2.0
// Stand-in for cuBLAS: the calls that the library makes, as naive loops in stream order. Scalars
// are the host's; matrices are column-major.
#include <cublas_v2.h>

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

cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                              int m, int n, int k, const double* alpha, const double* a, int lda,
                              const double* b, int ldb, const double* beta, double* c, int ldc) {
  const hostexec::Called called("cublasDgemm", handle->stream);
  return put(handle, [=, alpha = *alpha, beta = *beta] {
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < m; ++i) {
        double sum = 0;
        for (int l = 0; l < k; ++l) sum += entry(a, lda, op_a, i, l) * entry(b, ldb, op_b, l, j);
        double& to = c[static_cast<std::size_t>(j) * static_cast<std::size_t>(ldc) +
                       static_cast<std::size_t>(i)];
        to = alpha * sum + (beta == 0 ? 0 : beta * to);
      }
    }
  });
}

cublasStatus_t cublasDsyrk_v2(cublasHandle_t handle, cublasFillMode_t fill, cublasOperation_t op,
                              int n, int k, const double* alpha, const double* a, int lda,
                              const double* beta, double* c, int ldc) {
  const hostexec::Called called("cublasDsyrk", handle->stream);
  return put(handle, [=, alpha = *alpha, beta = *beta] {
    for (int j = 0; j < n; ++j) {
      for (int i = fill == CUBLAS_FILL_MODE_LOWER ? j : 0;
           i < (fill == CUBLAS_FILL_MODE_LOWER ? n : j + 1); ++i) {
        double sum = 0;
        for (int l = 0; l < k; ++l) sum += entry(a, lda, op, i, l) * entry(a, lda, op, j, l);
        double& to = c[static_cast<std::size_t>(j) * static_cast<std::size_t>(ldc) +
                       static_cast<std::size_t>(i)];
        to = alpha * sum + (beta == 0 ? 0 : beta * to);
      }
    }
  });
}

}  // extern "C"
