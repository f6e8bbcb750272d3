// SPDX-License-Identifier: Apache-2.0
/// Singular pairs of matrices.
///
/// The mathematics. In f64 on the matrix A (m x n, m <= n, or its transpose) scaled by a power of
/// two to below 1: the Gram matrix A A^T (cublasDsyrk), its eigenvectors W (cusolverDnDsyevd), W^T
/// A (cublasDgemm), whose row k is sigma_k v_k^T. W is orthogonal to 1e-15 whatever the rank, so
/// the pairs sum to W W^T A = A whatever the solver made of close or tiny eigenvalues; sigma_k is
/// the norm of its row, not the root of an eigenvalue, so it is exact to 1e-15 of its row. Only
/// vectors whose sigma is below some 1e-8 of the largest may be turned among themselves, where f32
/// entries hold nothing but rounding: hence one way for all shapes, and f64, where an f32 Gram
/// matrix would lose everything below 3e-4 of the largest. Where the solver fails, unit vectors
/// take W's place: the pairs are then the rows, another exact sum.
///
/// Mapping. The largest magnitudes of all layers in one launch, a warp 4,096 entries; then layer
/// after layer, because the f64 copies share their memory: a thread an entry to scale, the
/// libraries, a warp a pair to split the result into f32 vectors and amplitudes.
///
/// Traffic in bytes an entry: reads 4 + 4, writes 8 scaled, the products written and read once (8 +
/// 8), 4 bytes of vectors written; the libraries read what they multiply from the caches. The time
/// is theirs: 2 m^2 n for either product and some 9 m^3 for the eigenvectors.
///
/// Shared memory: none. Determinism: maxima are integers, norms one fixed tree; the libraries give
/// the same bits on the same GPU with the same release. Alignment: tensors as their entries.

#include "cuda/svd.cuh"

#include "cuda/entries.cuh"
#include "cuda/handles.hpp"

namespace atomo::cuda {
namespace {

__global__ void find_largest(SvdPlan plan, Frame frame) {
  const std::uint64_t unit = warp_in_grid();
  if (unit >= plan.maxima.units) return;
  const UnitOf at = find_unit(frame, plan.maxima, unit);
  const SvdJob& job = frame(plan.jobs)[at.job];
  const Entries x = frame.entries(job.layer);
  const std::uint64_t n = frame.info(job.layer).n, first = at.index * kMaximaUnit;
  const std::uint64_t end = n - first < kMaximaUnit ? n : first + kMaximaUnit;
  std::uint32_t largest = 0;
  for (std::uint64_t i = first + 4 * lane(); i < end; i += 4 * kLanes) {
    float v[4];
    x.four(i, end, v);
    for (const float each : v) {
      const std::uint32_t bits = __float_as_uint(each) & 0x7FFFFFFFu;
      largest = bits > largest ? bits : largest;
    }
  }
  largest = warp_max(largest);
  if (lane() != 0) return;
  atomicMax(&frame(plan.states)[at.job].largest, largest);
  if (largest >= 0x7F800000u) frame.mark_non_finite(job.layer);
}

__device__ bool is_finite_job(const SvdState& state) { return state.largest < 0x7F800000u; }

/// The layer's entries, 2^-exponent times; zeros when it is not finite.
__global__ void scale_matrix(SvdPlan plan, Frame frame, std::uint32_t number) {
  const SvdJob& job = frame(plan.jobs)[number];
  const SvdState& state = frame(plan.states)[number];
  const std::uint64_t n = frame.info(job.layer).n;
  const std::uint64_t i = warp_in_grid() * kLanes + lane();
  if (i >= n) return;
  const bool finite = is_finite_job(state);
  const double scale = finite ? power_of_two(-exponent_of(state)) : 0.0;
  const double x = finite ? static_cast<double>(frame.entries(job.layer)(i)) : 0.0;
  frame(plan.matrix)[i] = x * scale;
}

/// Unit vectors where there are no eigenvectors.
__global__ void settle_basis(SvdPlan plan, Frame frame, std::uint32_t number) {
  if (frame(plan.states)[number].fault == 0) return;
  const std::uint64_t m = frame(plan.jobs)[number].shape().shorter();
  const std::uint64_t i = warp_in_grid() * kLanes + lane();
  if (i < m * m) frame(plan.basis)[i] = i / m == i % m ? 1.0 : 0.0;
}

/// A warp a pair. The solver's values ascend: pair k is the k-th last of its vectors.
__global__ void split_pairs(SvdPlan plan, Frame frame, std::uint32_t number) {
  const SvdJob& job = frame(plan.jobs)[number];
  const std::uint64_t k = warp_in_grid(), m = job.shape().shorter(), n = job.shape().longer();
  if (k >= m) return;
  const double* const vector = frame(plan.basis) + (m - 1 - k) * m;
  const double* const product = frame(plan.products) + (m - 1 - k) * n;
  float* const shorter = frame(job.shorter) + k * m;
  float* const longer = frame(job.longer) + k * n;
  for (std::uint64_t i = lane(); i < m; i += kLanes) shorter[i] = static_cast<float>(vector[i]);
  double sum = 0;
  for (std::uint64_t j = lane(); j < n; j += kLanes) {
    const double v = product[j];
    longer[j] = static_cast<float>(v);
    sum = sum + (v * v);
  }
  for (unsigned apart = kLanes / 2; apart != 0; apart /= 2)
    sum = sum + __shfl_xor_sync(kAllLanes, sum, static_cast<int>(apart));
  if (lane() == 0)
    frame(job.sigma)[k] =
        (sqrt(sum) * power_of_two(exponent_of(frame(plan.states)[number]))) * job.unit;
}

/// Where a job's calls find their operands.
struct Operands {
  int m, n;
  bool wide;
  double *matrix, *basis, *products, *values;
  int* fault;
};

/// The Gram matrix and its eigenvectors. Row-major, the matrix is its transpose column-major.
bool find_basis(Handles& handles, const Operands& on) {
  const double one = 1, zero = 0;
  const int across = on.wide ? on.n : on.m;
  if (cublasDsyrk(handles.blas, CUBLAS_FILL_MODE_LOWER, on.wide ? CUBLAS_OP_T : CUBLAS_OP_N, on.m,
                  on.n, &one, on.matrix, across, &zero, on.basis, on.m) != CUBLAS_STATUS_SUCCESS)
    return false;
  int room = 0;
  if (cusolverDnDsyevd_bufferSize(handles.solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER,
                                  on.m, on.basis, on.m, on.values,
                                  &room) != CUSOLVER_STATUS_SUCCESS ||
      !handles.reserve(static_cast<std::size_t>(room)))
    return false;
  return cusolverDnDsyevd(handles.solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, on.m,
                          on.basis, on.m, on.values, handles.room, room,
                          on.fault) == CUSOLVER_STATUS_SUCCESS;
}

/// products: vector by vector, the matrix applied to the basis.
bool rotate(Handles& handles, const Operands& on) {
  const double one = 1, zero = 0;
  const int across = on.wide ? on.n : on.m;
  return cublasDgemm(handles.blas, on.wide ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, on.n, on.m,
                     on.m, &one, on.matrix, across, on.basis, on.m, &zero, on.products,
                     on.n) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace

void factorise(const SvdPlan& plan, const Frame& frame, Queue& queue) {
  if (plan.empty() || queue.handles() == nullptr) return;
  Handles& handles = *queue.handles();
  if (!handles.use(queue.stream())) return queue.note(cudaErrorUnknown);
  queue.launch_warps(find_largest, plan.maxima.units, plan, frame);
  const SvdJob* const jobs = queue.on_host(plan.jobs);
  for (std::uint32_t j = 0; j < plan.maxima.jobs; ++j) {
    const std::uint64_t m = jobs[j].shape().shorter(), n = jobs[j].shape().longer();
    const Operands on{
        static_cast<int>(m), static_cast<int>(n),         jobs[j].rows <= jobs[j].columns,
        frame(plan.matrix),  frame(plan.basis),           frame(plan.products),
        frame(plan.values),  &frame(plan.states)[j].fault};
    queue.launch_warps(scale_matrix, divide_up(m * n, kLanes), plan, frame, j);
    if (!find_basis(handles, on)) return queue.note(cudaErrorUnknown);
    queue.launch_warps(settle_basis, divide_up(m * m, kLanes), plan, frame, j);
    if (!rotate(handles, on)) return queue.note(cudaErrorUnknown);
    queue.launch_warps(split_pairs, m, plan, frame, j);
  }
}

}  // namespace atomo::cuda
