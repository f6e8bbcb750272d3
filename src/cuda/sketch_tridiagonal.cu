// SPDX-License-Identifier: Apache-2.0
/// The tridiagonal form of the Gram matrices of sketches of rank above 64, and the way back from its eigenvectors.
///
/// Mathematics. Householder's reflections in f32: reflection k takes column k below the diagonal to its norm, A becomes
/// H A H = A - v w^T - w v^T with p = b A v and w = p - (b p^T v / 2) v. Rows of the Gram matrix that are zero come
/// last and are left alone: their eigenvectors are unit vectors, so that zero vectors stay zero. The form is torn into
/// leaves (Cuppen): at a tear e the diagonal on both sides loses |e|, which a joint gives back (sketch_join.cu). Vectors
/// of the form go through the reflections backwards.
///
/// Mapping. A block of 512 threads a layer: a warp a row. A reflection changes the rows that are left and multiplies
/// them by the next one's vector in the same pass, two barriers a reflection. The way back: a warp a vector.
///
/// Traffic: a third of 8 r^3 bytes through the caches, 4 r^3 / 3 operations; the way back 2 r^3 of either, by as many
/// warps as there are vectors.
///
/// Shared memory: 7,264 bytes. Determinism: sums go in an order of the shape. Alignment: all stands in the workspace.

#include "cuda/sketch_join.cuh"
#include "format/kind.hpp"

namespace atomo::cuda {
namespace {

constexpr unsigned kThreads = 512, kWarps = kThreads / kLanes;
constexpr std::uint32_t kMost = format::kLargestRank, kColumns = kMost / kLanes;

struct Reflecting {
  float column[2][kMost];  ///< of the matrix from the diagonal on, by turns
  float v[kMost], w[kMost], p[kMost];
  std::uint32_t support[kMost];
  std::uint32_t rows;
};

__device__ float sum_over_warp(float sum) {
  for (unsigned apart = kLanes / 2; apart != 0; apart /= 2)
    sum = sum + __shfl_xor_sync(kAllLanes, sum, static_cast<int>(apart));
  return sum;
}

/// By the first warp: numbers of rows that are not zero, then of the others.
__device__ void find_support(const double* gram, std::uint32_t rank, Reflecting& memory) {
  std::uint32_t found = 0;
  for (const bool zero : {false, true}) {
    for (std::uint32_t first = 0; first < rank; first += kLanes) {
      const std::uint32_t k = first + lane();
      const bool own = k < rank && (gram[k * rank + k] > 0) != zero;
      const unsigned all = __ballot_sync(kAllLanes, own ? 1 : 0);
      if (own)
        memory.support[found + static_cast<std::uint32_t>(__popc(all & ((1u << lane()) - 1)))] = k;
      found += static_cast<std::uint32_t>(__popc(all));
    }
    if (!zero && lane() == 0) memory.rows = found;
  }
}

/// A reflection I - scale v v^T: v is the column behind row k, but for its first value.
struct Reflection {
  float scale = 0, first = 0, norm = 0;

  /// By a whole warp.
  __device__ Reflection(const float* column, std::uint32_t k, std::uint32_t rows) {
    if (k + 1 >= rows) return;
    float square = 0;
    for (std::uint32_t i = k + 2 + lane(); i < rows; i += kLanes)
      square = __fmaf_rn(column[i], column[i], square);
    square = sum_over_warp(square);
    const float own = column[k + 1];
    norm = own;
    if (!(square > 0)) return;
    norm = sqrtf(__fmaf_rn(own, own, square));
    first = own > 0 ? -square / (own + norm) : own - norm;
    scale = 2 / __fmaf_rn(first, first, square);
  }
  __device__ float value(const float* column, std::uint32_t k, std::uint32_t i) const {
    return i <= k ? 0.0f : i == k + 1 ? first : column[i];
  }
};

/// By all warps: changes the rows behind row k by the reflection before and multiplies them by `own`. A lane has kChunks
/// columns from `first` on.
template <unsigned kChunks>
__device__ void pass_rows(float* matrix, std::uint32_t rank, std::uint32_t k, std::uint32_t first,
                          const Reflection& own, const float* column, Reflecting& memory) {
  const std::uint32_t rows = memory.rows;
  float v[kChunks], w[kChunks], next[kChunks];
#pragma unroll
  for (unsigned c = 0; c < kChunks; ++c) {
    const std::uint32_t j = first + lane() + c * kLanes;
    const bool there = j > k && j < rows;
    v[c] = there ? memory.v[j] : 0.0f;
    w[c] = there ? memory.w[j] : 0.0f;
    next[c] = there ? own.value(column, k, j) : 0.0f;
  }
#pragma unroll 1
  for (std::uint32_t i = k + 1 + warp_in_block(); i < rows; i += kWarps) {
    float* const row = matrix + i * rank + first + lane();
    const float of_v = memory.v[i], of_w = memory.w[i];
    float value[kChunks], sum = 0;
#pragma unroll
    for (unsigned c = 0; c < kChunks; ++c)
      value[c] = first + lane() + c * kLanes < rows ? row[c * kLanes] : 0.0f;
#pragma unroll
    for (unsigned c = 0; c < kChunks; ++c) {
      value[c] = __fmaf_rn(-of_w, v[c], __fmaf_rn(-of_v, w[c], value[c]));
      if (first + lane() + c * kLanes < rows) row[c * kLanes] = value[c];
      sum = __fmaf_rn(value[c], next[c], sum);
    }
    sum = sum_over_warp(sum);
    if (lane() == 0) memory.p[i] = sum;
  }
}
/// With as many columns as are left.
__device__ void pass_rows(float* matrix, std::uint32_t rank, std::uint32_t k, const Reflection& own,
                          const float* column, Reflecting& memory) {
  const std::uint32_t first = (k + 1) / kLanes * kLanes,
                      chunks = (memory.rows - first + 31) / kLanes;
  if (k + 1 >= memory.rows) return;
  if (chunks > 6) {
    pass_rows<kColumns>(matrix, rank, k, first, own, column, memory);
  } else if (chunks > 4) {
    pass_rows<6>(matrix, rank, k, first, own, column, memory);
  } else if (chunks > 2) {
    pass_rows<4>(matrix, rank, k, first, own, column, memory);
  } else {
    pass_rows<2>(matrix, rank, k, first, own, column, memory);
  }
}

__global__ void __launch_bounds__(kThreads, 1) tridiagonalise(Frame frame, SketchPlan plan) {
  const SketchJob& job = frame(plan.jobs)[blockIdx.x];
  const std::uint32_t rank = sketch_rank(frame, job);
  if (rank <= kSharedRank) return;
  auto& memory = shared<Reflecting>();
  const double* const gram = frame(job.gram);
  auto* const matrix = reinterpret_cast<float*>(frame(job.partials));
  float* const diagonal = frame(job.diagonal);
  float* const beside = frame(job.beside);
  if (warp_in_block() == 0) find_support(gram, rank, memory);
  __syncthreads();
  const std::uint32_t rows = memory.rows, own = threadIdx.x;
  for (std::uint32_t i = warp_in_block(); i < rows; i += kWarps) {
    const double* const from = gram + memory.support[i] * rank;
    for (std::uint32_t j = lane(); j < rows; j += kLanes)
      matrix[i * rank + j] = static_cast<float>(from[memory.support[j]]);
  }
  if (own < rank) frame(job.support)[own] = memory.support[own];
  if (own < rows) {
    memory.v[own] = memory.w[own] = memory.p[own] = 0;
    memory.column[0][own] =
        static_cast<float>(gram[memory.support[own] * rank + memory.support[0]]);
  }
  __syncthreads();
  for (std::uint32_t k = 0; k < rows; ++k) {
    const float* const column = memory.column[k % 2];
    const Reflection reflection(column, k, rows);
    pass_rows(matrix, rank, k, reflection, column, memory);
    const float v = own < rows ? reflection.value(column, k, own) : 0.0f;
    if (own > k && own < rows) matrix[k * rank + own] = v;
    if (own == 0) {
      diagonal[k] = column[k];
      beside[k] = reflection.norm;
      frame(job.reflected)[k] = reflection.scale;
    }
    __syncthreads();
    if (k + 1 == rows) break;
    float along = 0;
    for (std::uint32_t i = k + 1 + lane(); i < rows; i += kLanes)
      along = __fmaf_rn(memory.p[i], reflection.value(column, k, i), along);
    along = sum_over_warp(along) * reflection.scale * reflection.scale / 2;
    if (own > k && own < rows) {
      const std::uint32_t next = k + 1;
      const float w = __fmaf_rn(-along, v, reflection.scale * memory.p[own]);
      const float first = __fmaf_rn(-along, reflection.first, reflection.scale * memory.p[next]);
      memory.v[own] = v, memory.w[own] = w;
      const float left = matrix[next * rank + own];
      memory.column[next % 2][own] = __fmaf_rn(-w, reflection.first, __fmaf_rn(-v, first, left));
    }
    __syncthreads();
  }
  if (own != 0) return;
  frame(plan.states)[blockIdx.x].directions = rows;
  const Leaves leaves = leaves_of(rows);
  for (std::uint32_t leaf = 1; leaf < leaves.count; ++leaf) {
    const std::uint32_t tear = leaves.begin(leaf);
    if (tear == 0 || tear >= rows) continue;
    const float by = fabsf(beside[tear - 1]);
    diagonal[tear - 1] = diagonal[tear - 1] - by;
    diagonal[tear] = diagonal[tear] - by;
  }
}

/// Reflections that a lane has the values of its entries of.
__device__ void read_vector(const float* row, std::uint32_t k, std::uint32_t rows,
                            float (&to)[kColumns]) {
#pragma unroll
  for (std::uint32_t c = 0; c < kColumns; ++c) {
    const std::uint32_t i = lane() + c * kLanes;
    to[c] = i > k && i < rows ? row[i] : 0.0f;
  }
}

/// A warp a vector: from the tridiagonal form's to the Gram matrix', into `turn` in descending order.
__global__ void turn_back(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.pairs);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint32_t rank = sketch_rank(frame, job), own = static_cast<std::uint32_t>(at.index);
  if (rank <= kSharedRank || own >= rank) return;
  const std::uint32_t rows = frame(plan.states)[at.job].directions;
  const std::uint32_t* const support = frame(job.support);
  double* const turn = frame(job.turn);
  if (own >= rows) {  // of a zero row
    for (std::uint32_t i = lane(); i < rank; i += kLanes)
      turn[own * rank + support[i]] = i == own ? 1.0 : 0.0;
    return;
  }
  const Joint joint = last_joint(frame, job, rows);
  const auto* const matrix = reinterpret_cast<const float*>(frame(job.partials));
  float entry[kColumns], next[kColumns];
#pragma unroll
  for (std::uint32_t c = 0; c < kColumns; ++c) {
    const std::uint32_t i = lane() + c * kLanes;
    entry[c] = i < rows ? joint.vectors[own * rank + i] : 0.0f;
  }
  if (rows > 1) read_vector(matrix + (rows - 2) * rank, rows - 2, rows, next);
#pragma unroll 1
  for (std::uint32_t k = rows - 1; k-- > 0;) {
    float v[kColumns], along = 0;
#pragma unroll
    for (std::uint32_t c = 0; c < kColumns; ++c) v[c] = next[c];
    if (k > 0) read_vector(matrix + (k - 1) * rank, k - 1, rows, next);
#pragma unroll
    for (std::uint32_t c = 0; c < kColumns; ++c) along = __fmaf_rn(v[c], entry[c], along);
    along = sum_over_warp(along) * frame(job.reflected)[k];
#pragma unroll
    for (std::uint32_t c = 0; c < kColumns; ++c) entry[c] = __fmaf_rn(-along, v[c], entry[c]);
  }
  const double value = joint.values[own];
  std::uint32_t place = 0;
  for (std::uint32_t first = 0; first < rows; first += kLanes) {
    const std::uint32_t j = first + lane();
    const bool before =
        j < rows && (joint.values[j] > value || (joint.values[j] == value && j < own));
    place += static_cast<std::uint32_t>(__popc(__ballot_sync(kAllLanes, before ? 1 : 0)));
  }
#pragma unroll
  for (std::uint32_t c = 0; c < kColumns; ++c) {
    const std::uint32_t i = lane() + c * kLanes;
    if (i < rank) turn[place * rank + support[i]] = static_cast<double>(i < rows ? entry[c] : 0.0f);
  }
}

}  // namespace

void find_tridiagonal(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_blocks(tridiagonalise, plan.drawn.jobs, kThreads, 0, frame, plan);
}

void turn_from_tridiagonal(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_warps(turn_back, plan.pairs.units, frame, plan);
}

}  // namespace atomo::cuda
