// SPDX-License-Identifier: Apache-2.0
/// What makes the vectors of sketches orthonormal.
///
/// Mathematics. The Gram matrix G of rank x rank is eliminated without
/// pivoting (G = L D L^T), L^-1 growing where G vanishes; the vectors times D^-1/2 L^-1 are
/// orthonormal. A pivot below 1e-13 of its diagonal entry is what rounding to f32 leaves of a
/// vector that depends on those before: its row becomes zero, and with it the vector. Done twice,
/// since the first time loses as many digits as the vectors are close to dependent.
///
/// Mapping. A block of 512 threads a layer has the matrix in registers, a warp every 16th row, a
/// lane two columns. A barrier and a division a pivot: its row goes to the others through shared
/// memory, by the warp that has it, which works out that row before its other ones.
///
/// Traffic: r^2 values read and written, 8 bytes each, and r^3 operations, in blocks beside each
/// other: the time is that of the largest rank, not the matrices'.
///
/// Shared memory: 3,088 bytes. Ranks above 64 work in the workspace, through the caches.
/// Determinism: no sum is shared. Alignment: all stands in the workspace.

#include "cuda/sketch.cuh"
#include "format/kind.hpp"

namespace atomo::cuda {
namespace {

constexpr unsigned kThreads = 512, kWarps = kThreads / kLanes;
constexpr double kLeastPivot = 1e-13;

struct Elimination {
  double pivot[2][kSharedRank];        ///< rows, by turns
  double inverse[2];                   ///< 1 / pivot, 0 where that is refused
  double scale[format::kLargestRank];  ///< pivots, 0 likewise; then what rows are multiplied by
};

/// Whether what is left of a diagonal entry is more than rounding.
__device__ bool is_pivot(double left, double entry) { return left > kLeastPivot * entry; }

/// Of the pivots that are there.
__device__ void find_scales(Elimination& memory, std::uint32_t rank) {
  __syncthreads();
  for (std::uint32_t k = threadIdx.x; k < rank; k += kThreads)
    memory.scale[k] = memory.scale[k] != 0 ? 1 / sqrt(memory.scale[k]) : 0.0;
  __syncthreads();
}

/// An entry of `turn`; `left` is what L^-1 has there.
__device__ double turn_entry(const Elimination& memory, std::uint32_t row, std::uint32_t column,
                             double left) {
  if (row == column) return memory.scale[row];
  return column < row && memory.scale[column] != 0 ? memory.scale[row] * left : 0.0;
}

/// A matrix of up to kSharedRank rows in registers: a warp has every kWarps-th row, a lane two columns.
class OwnRows {
 public:
  __device__ OwnRows(const double* gram, std::uint32_t rank) : rank_(rank) {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kColumns; ++c)
        own_[r][c] = has(r, c) ? gram[row(r) * rank + column(c)] : 0.0;
      diagonal_[r] = own_[r][r * kWarps / kLanes];
    }
  }

  /// Leaves L^-1 before the pivots.
  __device__ void eliminate(Elimination& memory) {
    if (row(0) == 0) offer(0, own_[0], diagonal_[0], memory);
#pragma unroll
    for (unsigned first = 0; first < kRows; ++first) {
      const unsigned after = first + 1 < kRows ? first + 1 : first;
#pragma unroll 1
      for (std::uint32_t k = first * kWarps; k < (first + 1) * kWarps && k < rank_; ++k) {
        __syncthreads();
        const double inverse = memory.inverse[k % 2];
        const double pivot[kColumns] = {memory.pivot[k % 2][column(0)],
                                        memory.pivot[k % 2][column(1)]};
        if (inverse != 0 && row(first) > k) subtract(first, k, inverse, pivot);
        if (inverse != 0 && after != first) subtract(after, k, inverse, pivot);
        if (k + 1 == row(first)) offer(k + 1, own_[first], diagonal_[first], memory);
        if (after != first && k + 1 == row(after))
          offer(k + 1, own_[after], diagonal_[after], memory);
#pragma unroll
        for (unsigned r = first + 2; r < kRows; ++r)
          if (inverse != 0) subtract(r, k, inverse, pivot);
      }
    }
  }
  __device__ void put(const Elimination& memory, double* turn) const {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kColumns; ++c) {
        if (has(r, c))
          turn[row(r) * rank_ + column(c)] = turn_entry(memory, row(r), column(c), own_[r][c]);
      }
    }
  }

 private:
  static constexpr unsigned kRows = kSharedRank / kWarps, kColumns = kSharedRank / kLanes;

  __device__ static std::uint32_t row(unsigned r) { return warp_in_block() + r * kWarps; }
  __device__ static std::uint32_t column(unsigned c) { return lane() + c * kLanes; }
  [[nodiscard]] __device__ bool has(unsigned r, unsigned c) const {
    return row(r) < rank_ && column(c) < rank_;
  }

  /// A multiple of pivot row k from the warp's row r.
  __device__ void subtract(unsigned r, std::uint32_t k, double inverse,
                           const double (&pivot)[kColumns]) {
    const double own = k < kLanes ? own_[r][0] : own_[r][1];
    const double factor = __shfl_sync(kAllLanes, own, static_cast<int>(k % kLanes)) * inverse;
#pragma unroll
    for (unsigned c = 0; c < kColumns; ++c)
      own_[r][c] = column(c) == k ? -factor : own_[r][c] - (factor * pivot[c]);
  }
  /// By a whole warp: its row k is the next pivot row.
  __device__ static void offer(std::uint32_t k, const double (&own)[kColumns], double diagonal,
                               Elimination& memory) {
#pragma unroll
    for (unsigned c = 0; c < kColumns; ++c) memory.pivot[k % 2][column(c)] = own[c];
    if (lane() != k % kLanes) return;
    const double pivot = k < kLanes ? own[0] : own[1];
    const bool there = is_pivot(pivot, diagonal);
    memory.inverse[k % 2] = there ? 1 / pivot : 0.0;
    memory.scale[k] = there ? pivot : 0.0;
  }

  std::uint32_t rank_;
  double own_[kRows][kColumns];
  double diagonal_[kRows];  ///< in the lane of the row's diagonal entry, what that was
};

/// The same in `turn`, for any rank.
__device__ void eliminate_in(double* turn, const double* gram, std::uint32_t rank,
                             Elimination& memory) {
  for (std::uint32_t row = warp_in_block(); row < rank; row += kWarps) {
    for (std::uint32_t column = lane(); column < rank; column += kLanes)
      turn[row * rank + column] = gram[row * rank + column];
  }
  for (std::uint32_t k = 0; k < rank; ++k) {
    const double* const pivot = turn + k * rank;
    __syncthreads();
    const bool there = is_pivot(pivot[k], gram[k * rank + k]);
    if (threadIdx.x == 0) memory.scale[k] = there ? pivot[k] : 0.0;
    if (!there) continue;
    const double inverse = 1 / pivot[k];
    for (std::uint32_t i = k + 1 + warp_in_block(); i < rank; i += kWarps) {
      double* const row = turn + i * rank;
      const double factor = row[k] * inverse;
      __syncwarp();  // the factor's place is written to
      for (std::uint32_t j = lane(); j < rank; j += kLanes)
        row[j] = j == k ? -factor : row[j] - (factor * pivot[j]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    orthonormalise(Frame frame, SketchPlan plan, std::uint32_t iteration) {
  const SketchJob& job = frame(plan.jobs)[blockIdx.x];
  if (iteration >= job.iterations) return;
  const std::uint32_t rank = sketch_rank(frame, job);
  auto& memory = shared<Elimination>();
  const double* const gram = frame(job.gram);
  double* const turn = frame(job.turn);
  if (rank <= kSharedRank) {
    OwnRows rows(gram, rank);
    rows.eliminate(memory);
    find_scales(memory, rank);
    rows.put(memory, turn);
    return;
  }
  eliminate_in(turn, gram, rank, memory);
  find_scales(memory, rank);
  for (std::uint32_t row = warp_in_block(); row < rank; row += kWarps) {
    for (std::uint32_t column = lane(); column < rank; column += kLanes)
      turn[row * rank + column] = turn_entry(memory, row, column, turn[row * rank + column]);
  }
}

}  // namespace

void find_orthonormal(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                      Queue& queue) {
  queue.launch_blocks(orthonormalise, plan.drawn.jobs, kThreads, 0, frame, plan, iteration);
}

}  // namespace atomo::cuda
