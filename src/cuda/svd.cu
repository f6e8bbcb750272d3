// SPDX-License-Identifier: Apache-2.0
/// Singular pairs of matrices.
///
/// The mathematics. In f64 on the matrix A (m x n, m <= n, or its transpose) scaled by a power of
/// two to below 1: the Gram matrix A A^T, its eigenvectors W, then W^T A, whose row k is sigma_k
/// v_k^T. W is orthogonal to 1e-15 whatever the rank, so the pairs sum to W W^T A = A whatever the
/// solver made of close or tiny eigenvalues; sigma_k is the norm of its row, not the root of an
/// eigenvalue, so it is exact to 1e-15 of its row. Only vectors whose sigma is below some 1e-8 of
/// the largest may be turned among themselves, where f32 entries hold nothing but rounding: hence
/// one way for all shapes, and f64, where an f32 Gram matrix would lose everything below 3e-4 of
/// the largest. Where the solver fails, unit vectors take W's place: the pairs are then the rows,
/// another exact sum.
///
/// Mapping. The largest magnitudes of all layers in one launch, a warp 4,096 entries; then batch
/// after batch of matrices of one shape, because the f64 copies share their memory: a thread an
/// entry to scale, the libraries (cublasDgemmStridedBatched, cusolverDnXsyevBatched, or
/// cusolverDnDsyevd for a matrix alone in its batch), a warp a pair to split the result into f32
/// vectors and amplitudes.
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

__global__ void find_largest(Frame frame, SvdPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.maxima);
  if (!at) return;
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

/// A unit of work on a member of a batch, of `units` each.
struct Member {
  std::uint32_t place = 0;  ///< in the batch
  std::uint32_t job = 0;
  std::uint64_t unit = 0;
  bool there = false;
};
__device__ Member member_of(const Frame& frame, const SvdPlan& plan, const Batch& batch,
                            std::uint64_t units) {
  const std::uint64_t place = warp_in_grid() / units;
  if (place >= batch.count) return {};
  const auto number = static_cast<std::uint32_t>(place);
  return {number, frame(plan.order)[batch.first + number], warp_in_grid() % units, true};
}

/// The layers' entries, 2^-exponent times; zeros where a layer is not finite.
__global__ void scale_matrices(Frame frame, SvdPlan plan, Batch batch, std::uint64_t entries) {
  const Member at = member_of(frame, plan, batch, divide_up(entries, kLanes));
  const std::uint64_t i = at.unit * kLanes + lane();
  if (!at.there || i >= entries) return;
  const SvdJob& job = frame(plan.jobs)[at.job];
  const SvdState& state = frame(plan.states)[at.job];
  const bool finite = is_finite_job(state);
  const double scale = finite ? power_of_two(-exponent_of(state)) : 0.0;
  const double x = finite ? static_cast<double>(frame.entries(job.layer)(i)) : 0.0;
  frame(plan.matrices)[at.place * entries + i] = x * scale;
}

/// Unit vectors of m values where there are no eigenvectors.
__global__ void settle_bases(Frame frame, SvdPlan plan, Batch batch, std::uint64_t m) {
  const Member at = member_of(frame, plan, batch, divide_up(m * m, kLanes));
  if (!at.there || frame(plan.faults)[at.place] == 0) return;
  const std::uint64_t i = at.unit * kLanes + lane();
  if (i < m * m) frame(plan.bases)[at.place * m * m + i] = i / m == i % m ? 1.0 : 0.0;
}

/// A warp a pair. The solver's values ascend: pair k is the k-th last of its vectors.
__global__ void split_pairs(Frame frame, SvdPlan plan, Batch batch, std::uint64_t m,
                            std::uint64_t n) {
  const Member at = member_of(frame, plan, batch, m);
  if (!at.there) return;
  const SvdJob& job = frame(plan.jobs)[at.job];
  const std::uint64_t k = at.unit, from = at.place * m + (m - 1 - k);
  const double* const vector = frame(plan.bases) + from * m;
  const double* const product = frame(plan.products) + from * n;
  float* const shorter = frame(job.shorter) + k * m;
  float* const longer = frame(job.longer) + k * n;
  for (std::uint64_t i = lane(); i < m; i += kLanes) shorter[i] = static_cast<float>(vector[i]);
  double sum = 0;
  constexpr unsigned kTogether = 8;  // loads under way, which no store may cut off
  for (std::uint64_t first = lane(); first < n; first += kTogether * kLanes) {
    double v[kTogether];
#pragma unroll
    for (unsigned r = 0; r < kTogether; ++r)
      v[r] = first + r * kLanes < n ? product[first + r * kLanes] : 0.0;
#pragma unroll
    for (unsigned r = 0; r < kTogether; ++r) {
      if (first + r * kLanes < n) longer[first + r * kLanes] = static_cast<float>(v[r]);
      sum = sum + (v[r] * v[r]);
    }
  }
  for (unsigned apart = kLanes / 2; apart != 0; apart /= 2)
    sum = sum + __shfl_xor_sync(kAllLanes, sum, static_cast<int>(apart));
  if (lane() == 0)
    frame(job.sigma)[k] =
        (sqrt(sum) * power_of_two(exponent_of(frame(plan.states)[at.job]))) * job.unit;
}

/// The operands of a batch's calls.
struct Operands {
  int m, n, count;
  bool wide;
  double *matrices, *bases, *products, *values;
  int* faults;
};

/// The Gram matrices. Row-major, a matrix is its transpose column-major.
bool multiply_by_transpose(Handles& handles, const Operands& on) {
  const double one = 1, zero = 0;
  const long long entries = static_cast<long long>(on.m) * on.n;
  const int across = on.wide ? on.n : on.m;
  return cublasDgemmStridedBatched(handles.blas, on.wide ? CUBLAS_OP_T : CUBLAS_OP_N,
                                   on.wide ? CUBLAS_OP_N : CUBLAS_OP_T, on.m, on.m, on.n, &one,
                                   on.matrices, across, entries, on.matrices, across, entries,
                                   &zero, on.bases, on.m, static_cast<long long>(on.m) * on.m,
                                   on.count) == CUBLAS_STATUS_SUCCESS;
}

/// Eigenvectors in the place of one Gram matrix.
bool find_basis(Handles& handles, const Operands& on) {
  constexpr auto kMode = CUSOLVER_EIG_MODE_VECTOR;
  constexpr auto kHalf = CUBLAS_FILL_MODE_LOWER;
  int room = 0;
  if (cusolverDnDsyevd_bufferSize(handles.solver, kMode, kHalf, on.m, on.bases, on.m, on.values,
                                  &room) != CUSOLVER_STATUS_SUCCESS ||
      !handles.reserve(static_cast<std::size_t>(room) * sizeof(double), 0))
    return false;
  return cusolverDnDsyevd(handles.solver, kMode, kHalf, on.m, on.bases, on.m, on.values,
                          static_cast<double*>(handles.room), room,
                          on.faults) == CUSOLVER_STATUS_SUCCESS;
}

#if CUSOLVER_VERSION < 11703
/// The same for several, one by one: libraries before CUDA 12.8 have no batched solver, or one that
/// reads memory it did not write.
bool find_bases(Handles& handles, const Operands& on) {
  for (int k = 0; k < on.count; ++k) {
    Operands one = on;
    one.bases += static_cast<std::size_t>(k) * on.m * on.m;
    one.values += static_cast<std::size_t>(k) * on.m;
    one.faults += k;
    if (!find_basis(handles, one)) return false;
  }
  return true;
}
#else
/// The same for several.
bool find_bases(Handles& handles, const Operands& on) {
  constexpr auto kMode = CUSOLVER_EIG_MODE_VECTOR;
  constexpr auto kHalf = CUBLAS_FILL_MODE_LOWER;
  std::size_t bytes = 0, host_bytes = 0;
  if (cusolverDnXsyevBatched_bufferSize(handles.solver, handles.parameters, kMode, kHalf, on.m,
                                        CUDA_R_64F, on.bases, on.m, CUDA_R_64F, on.values,
                                        CUDA_R_64F, &bytes, &host_bytes,
                                        on.count) != CUSOLVER_STATUS_SUCCESS ||
      !handles.reserve(bytes, host_bytes))
    return false;
  return cusolverDnXsyevBatched(handles.solver, handles.parameters, kMode, kHalf, on.m, CUDA_R_64F,
                                on.bases, on.m, CUDA_R_64F, on.values, CUDA_R_64F, handles.room,
                                bytes, handles.host_room.get(), host_bytes, on.faults,
                                on.count) == CUSOLVER_STATUS_SUCCESS;
}
#endif

/// products: vector by vector, the matrices applied to the bases.
bool rotate(Handles& handles, const Operands& on) {
  const double one = 1, zero = 0;
  const long long entries = static_cast<long long>(on.m) * on.n;
  const int across = on.wide ? on.n : on.m;
  return cublasDgemmStridedBatched(handles.blas, on.wide ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N,
                                   on.n, on.m, on.m, &one, on.matrices, across, entries, on.bases,
                                   on.m, static_cast<long long>(on.m) * on.m, &zero, on.products,
                                   on.n, entries, on.count) == CUBLAS_STATUS_SUCCESS;
}

bool factorise_batch(const Frame& frame, const SvdPlan& plan, const MatrixShape& shape,
                     const Batch& batch, Queue& queue) {
  Handles& handles = *queue.handles();
  const std::uint64_t m = shape.shorter(), n = shape.longer(), count = batch.count;
  const Operands on{static_cast<int>(m),         static_cast<int>(n),  static_cast<int>(count),
                    shape.rows <= shape.columns, frame(plan.matrices), frame(plan.bases),
                    frame(plan.products),        frame(plan.values),   frame(plan.faults)};
  queue.launch_warps(scale_matrices, count * divide_up(m * n, kLanes), frame, plan, batch, m * n);
  if (!multiply_by_transpose(handles, on)) return false;
  if (!(count == 1 ? find_basis(handles, on) : find_bases(handles, on))) return false;
  queue.launch_warps(settle_bases, count * divide_up(m * m, kLanes), frame, plan, batch, m);
  if (!rotate(handles, on)) return false;
  queue.launch_warps(split_pairs, count * m, frame, plan, batch, m, n);
  return true;
}

}  // namespace

void factorise(const Frame& frame, const SvdPlan& plan, Queue& queue) {
  if (plan.empty() || queue.handles() == nullptr) return;
  std::byte* const room = frame(plan.blas_room);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(room) % kBlasAlignment;
  if (!queue.handles()->use(queue.stream(), room + (kBlasAlignment - past), kBlasBytes))
    return queue.note(cudaErrorUnknown);
  queue.launch_warps(find_largest, plan.maxima.units, frame, plan);
  const SvdJob* const jobs = queue.on_host(plan.jobs);
  const std::uint32_t* const order = queue.on_host(plan.order);
  Batch batch;
  for (; batch.first < plan.maxima.jobs; batch.first += batch.count) {
    const MatrixShape shape = jobs[order[batch.first]].shape();
    const std::uint64_t most =
        std::min(kBatchEntries / (shape.rows * shape.columns), kBatchMatrices);
    const auto is_next = [&](std::uint32_t place) {
      if (place >= plan.maxima.jobs) return false;
      const SvdJob& job = jobs[order[place]];
      return job.rows == shape.rows && job.columns == shape.columns;
    };
    batch.count = 1;
    while (batch.count < most && is_next(batch.first + batch.count)) ++batch.count;
    if (!factorise_batch(frame, plan, shape, batch, queue)) return queue.note(cudaErrorUnknown);
  }
}

}  // namespace atomo::cuda
