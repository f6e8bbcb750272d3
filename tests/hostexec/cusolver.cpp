// SPDX-License-Identifier: Apache-2.0
// Stand-in for cuSOLVER: the eigenvectors of symmetric matrices by cyclic Jacobi rotations, in
// stream order.
#include "cusolver.hpp"

#include <cusolverDn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "runtime.hpp"

struct cusolverDnContext {
  cudaStream_t stream = nullptr;
};
struct cusolverDnParams {};

namespace {

/// A symmetric matrix and the rotations that make it diagonal.
class Jacobi {
 public:
  Jacobi(const double* lower, std::size_t n) : n_(n), a_(n * n), v_(n * n) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t i = j; i < n; ++i) a_[i * n + j] = a_[j * n + i] = lower[j * n + i];
      v_[j * n + j] = 1;
    }
    for (int sweep = 0; sweep < 60 && sweep_once(); ++sweep) continue;
  }
  [[nodiscard]] double value(std::size_t k) const { return a_[k * n_ + k]; }
  /// Of vector k.
  [[nodiscard]] const double* vector(std::size_t k) const { return v_.data() + k * n_; }

 private:
  bool sweep_once() {
    bool turned = false;
    for (std::size_t p = 0; p < n_; ++p) {
      for (std::size_t q = p + 1; q < n_; ++q) turned = turn(p, q) || turned;
    }
    return turned;
  }
  bool turn(std::size_t p, std::size_t q) {
    const double off = a_[p * n_ + q];
    double scale = 0;
    for (std::size_t k = 0; k < n_; ++k) scale = std::max(scale, std::fabs(a_[k * n_ + k]));
    if (std::fabs(off) <= 1e-17 * scale) return false;
    const double theta = (a_[q * n_ + q] - a_[p * n_ + p]) / (2 * off);
    const double t = std::copysign(1.0, theta) / (std::fabs(theta) + std::hypot(1.0, theta));
    const double c = 1 / std::hypot(1.0, t), s = t * c;
    for (std::size_t k = 0; k < n_; ++k) rotate(a_[p * n_ + k], a_[q * n_ + k], c, s);
    for (std::size_t k = 0; k < n_; ++k) rotate(a_[k * n_ + p], a_[k * n_ + q], c, s);
    for (std::size_t k = 0; k < n_; ++k) rotate(v_[p * n_ + k], v_[q * n_ + k], c, s);
    return true;
  }
  static void rotate(double& x, double& y, double c, double s) {
    const double old = x;
    x = c * old - s * y;
    y = s * old + c * y;
  }

  std::size_t n_;
  std::vector<double> a_, v_;
};

/// Matrices of n x n one behind another, of which the lower half counts, and where the results go:
/// the eigenvectors in the matrices' place, in ascending order of the values.
struct Batch {
  double *matrices, *values;
  int* faults;
  int n, count;
};

void solve_one(double* matrix, double* values, std::size_t n) {
  const Jacobi found(matrix, n);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return found.value(i) < found.value(j); });
  for (std::size_t k = 0; k < n; ++k) {
    values[k] = found.value(order[k]);
    std::copy_n(found.vector(order[k]), n, matrix + k * n);
  }
}

/// In stream order. The memory that a solver works in is written over, as it may be.
cusolverStatus_t solve(cusolverDnHandle_t handle, const Batch& batch, void* room, std::size_t bytes,
                       void* host_room, std::size_t host_bytes) {
  if (host_bytes > 0) std::memset(host_room, 0xC5, host_bytes);
  const auto run = [=, fails = hostexec::solver_fails] {
    std::memset(room, 0xC5, bytes);
    const auto n = static_cast<std::size_t>(batch.n);
    for (std::size_t k = 0; k < static_cast<std::size_t>(batch.count); ++k) {
      batch.faults[k] = fails ? 1 : 0;
      if (fails)
        std::fill_n(batch.matrices + k * n * n, n * n, 7e77);
      else
        solve_one(batch.matrices + k * n * n, batch.values + k * n, n);
    }
  };
  return hostexec::enqueue(handle->stream, run) == cudaSuccess ? CUSOLVER_STATUS_SUCCESS
                                                               : CUSOLVER_STATUS_EXECUTION_FAILED;
}

}  // namespace

extern "C" {

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
  const hostexec::Called called("cusolverDnCreate");
  *handle = new cusolverDnContext;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  const hostexec::Called called("cusolverDnDestroy");
  delete handle;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* parameters) {
  *parameters = new cusolverDnParams;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t parameters) {
  delete parameters;
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDsyevd_bufferSize(cusolverDnHandle_t, cusolverEigMode_t,
                                             cublasFillMode_t, int n, const double*, int,
                                             const double*, int* room) {
  *room = 2 * n + 1;
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDsyevd(cusolverDnHandle_t handle, cusolverEigMode_t mode,
                                  cublasFillMode_t fill, int n, double* a, int lda, double* values,
                                  double* room, int room_values, int* fault) {
  const hostexec::Called called("cusolverDnDsyevd", handle->stream);
  if (mode != CUSOLVER_EIG_MODE_VECTOR || fill != CUBLAS_FILL_MODE_LOWER || n < 1 || lda != n ||
      room_values < 2 * n + 1)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, {a, values, fault, n, 1}, room,
               static_cast<std::size_t>(room_values) * sizeof(double), nullptr, 0);
}

cusolverStatus_t cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                                   cusolverEigMode_t, cublasFillMode_t,
                                                   std::int64_t n, cudaDataType, const void*,
                                                   std::int64_t, cudaDataType, const void*,
                                                   cudaDataType, std::size_t* bytes,
                                                   std::size_t* host_bytes, std::int64_t count) {
  *bytes = 16 * static_cast<std::size_t>(n * count) + 8;
  *host_bytes = 24 * static_cast<std::size_t>(count);
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnXsyevBatched(cusolverDnHandle_t handle, cusolverDnParams_t parameters,
                                        cusolverEigMode_t mode, cublasFillMode_t fill,
                                        std::int64_t n, cudaDataType type, void* a,
                                        std::int64_t lda, cudaDataType values_type, void* values,
                                        cudaDataType computed, void* room, std::size_t bytes,
                                        void* host_room, std::size_t host_bytes, int* faults,
                                        std::int64_t count) {
  const hostexec::Called called("cusolverDnXsyevBatched", handle->stream);
  if (parameters == nullptr || mode != CUSOLVER_EIG_MODE_VECTOR || fill != CUBLAS_FILL_MODE_LOWER ||
      n < 1 || lda != n || type != CUDA_R_64F || values_type != CUDA_R_64F ||
      computed != CUDA_R_64F || bytes < 16 * static_cast<std::size_t>(n * count) + 8 ||
      host_bytes < 24 * static_cast<std::size_t>(count))
    return CUSOLVER_STATUS_INVALID_VALUE;
  const Batch batch{static_cast<double*>(a), static_cast<double*>(values), faults,
                    static_cast<int>(n), static_cast<int>(count)};
  return solve(handle, batch, room, bytes, host_room, host_bytes);
}

}  // extern "C"
