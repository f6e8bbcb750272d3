// SPDX-License-Identifier: Apache-2.0
/// What makes the vectors of sketches orthonormal.
///
/// Mathematics. The Gram matrix G of rank x rank is eliminated without
/// pivoting (G = L D L^T), L^-1 growing where G vanishes; the vectors times D^-1/2 L^-1 are
/// orthonormal. A pivot below so much of its diagonal entry is refused: its row becomes zero, and with
/// it the vector. What f64 rounds off, some 2^-50, grows by the inverse of the smallest pivot: with
/// 2^-26 vectors are orthonormal to f32's own rounding after one pass, and a vector that is refused
/// was within 2^-13 of those before it (as P needs it: |t|^2 - |k|^2 is a row's residual for an
/// orthonormal basis alone). With 2^-43, what rounding to f32 leaves of a vector that depends on
/// others, they span the same and are orthonormal to 2^-7 or better (Q, of which no more is asked).
///
/// Mapping. A block of 512 threads a layer has the matrix in registers, a warp every 16th row, a
/// lane two columns. A barrier and a division a pivot: its row goes to the others through shared
/// memory, by the warp that has it, which works out that row before its other ones. Ranks above 64 take a launch for every
/// 64 pivots, a panel, and a block for every 64 rows: each block makes the panel's square for itself, from the factors of
/// the panels before, and eliminates with it either the square below, which leaves factors, or the one to the left, which
/// is of L^-1. So a panel costs a chain of 64 pivots, and products of up to 192 terms that blocks make side by side.
///
/// Traffic: r^2 values read and written, 8 bytes each, and r^3 operations, in blocks beside each
/// other: the time is that of the largest rank, not the matrices'.
///
/// Shared memory: 2,576 bytes; 19,088 for panels. Determinism: no sum is shared. Alignment: all stands in the workspace.

#include "cuda/sketch.cuh"
#include "format/kind.hpp"

namespace atomo::cuda {
namespace {

constexpr unsigned kThreads = 512, kWarps = kThreads / kLanes;

struct Elimination {
  double pivot[2][2 * kSharedRank];  ///< rows, by turns
  double inverse[2];                 ///< 1 / pivot, 0 where that is refused
  double scale[kSharedRank];         ///< pivots, 0 likewise; then what rows are multiplied by
};

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

/// Factors of the panels before, some columns at a time: lines of the panel, then of the other square.
constexpr unsigned kDepth = 16;
struct Lines {
  double at[kDepth][2 * kSharedRank + 1];
};

/// A matrix of up to kSharedRank rows in registers: a warp has every kWarps-th row, a lane two columns. Another square
/// stands below it (kBelow), of which the factors are left, or to the right (kBeside).
template <unsigned kBelow, unsigned kBeside>
class OwnRows {
 public:
  /// `entry(row, column)`, also of the other square, whose rows or columns follow. `least(row)`: what a pivot is above.
  template <typename Entry, typename Least>
  __device__ OwnRows(std::uint32_t rank, Entry entry, Least least) : rank_(rank) {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kColumns; ++c) own_[r][c] = entry(row(r), column(c));
    }
#pragma unroll
    for (unsigned r = 0; r < kPivotRows; ++r) least_[r] = row(r) < rank ? least(row(r)) : 0.0;
  }

  /// By the whole block: takes the products of lines from the entries.
  __device__ void subtract_products(const Lines& lines) {
#pragma unroll 1
    for (unsigned k = 0; k < kDepth; ++k) {
      double across[kColumns];
#pragma unroll
      for (unsigned c = 0; c < kColumns; ++c) across[c] = lines.at[k][column(c)];
#pragma unroll
      for (unsigned r = 0; r < kRows; ++r) {
        const double down = -lines.at[k][row(r)];
#pragma unroll
        for (unsigned c = 0; c < kColumns; ++c) own_[r][c] = __fma_rn(down, across[c], own_[r][c]);
      }
    }
  }

  /// Leaves L^-1 before the pivots.
  __device__ void eliminate(Elimination& memory) {
    if (row(0) == 0) offer(0, own_[0], least_[0], memory);
#pragma unroll
    for (unsigned first = 0; first < kPivotRows; ++first) {
      const unsigned after = first + 1 < kPivotRows ? first + 1 : first;
#pragma unroll 1
      for (std::uint32_t k = first * kWarps; k < (first + 1) * kWarps && k < rank_; ++k) {
        __syncthreads();
        const double inverse = memory.inverse[k % 2];
        double pivot[kColumns];
#pragma unroll
        for (unsigned c = 0; c < kColumns; ++c) pivot[c] = memory.pivot[k % 2][column(c)];
        if (inverse != 0 && row(first) > k) subtract(first, k, inverse, pivot);
        if (inverse != 0 && after != first) subtract(after, k, inverse, pivot);
        if (k + 1 == row(first)) offer(k + 1, own_[first], least_[first], memory);
        if (after != first && k + 1 == row(after)) offer(k + 1, own_[after], least_[after], memory);
#pragma unroll
        for (unsigned r = after + 1; r < kRows; ++r)
          if (inverse != 0) subtract(r, k, inverse, pivot);
      }
    }
  }
  /// Calls `put(row, column, entry)` for all entries.
  template <typename Put>
  __device__ void each(Put put) const {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kColumns; ++c) put(row(r), column(c), own_[r][c]);
    }
  }

 private:
  static constexpr unsigned kPivotRows = kSharedRank / kWarps, kRows = kBelow * kPivotRows,
                            kColumns = kBeside * kSharedRank / kLanes;

  __device__ static std::uint32_t row(unsigned r) { return warp_in_block() + r * kWarps; }
  __device__ static std::uint32_t column(unsigned c) { return lane() + c * kLanes; }

  /// A multiple of pivot row k from the warp's row r.
  __device__ void subtract(unsigned r, std::uint32_t k, double inverse,
                           const double (&pivot)[kColumns]) {
    const double own = k < kLanes ? own_[r][0] : own_[r][1];
    const double factor = __shfl_sync(kAllLanes, own, static_cast<int>(k % kLanes)) * inverse;
#pragma unroll
    for (unsigned c = 0; c < kColumns; ++c) {
      const bool stays = r >= kPivotRows && column(c) < k;  // a factor
      const double left = stays ? own_[r][c] : own_[r][c] - (factor * pivot[c]);
      own_[r][c] = column(c) == k ? -factor : left;
    }
  }
  /// By a whole warp: its row k is the next pivot row.
  __device__ static void offer(std::uint32_t k, const double (&own)[kColumns], double least,
                               Elimination& memory) {
#pragma unroll
    for (unsigned c = 0; c < kColumns; ++c) memory.pivot[k % 2][column(c)] = own[c];
    if (lane() != k % kLanes) return;
    const double pivot = k < kLanes ? own[0] : own[1];
    const bool there = pivot > least;
    memory.inverse[k % 2] = there ? 1 / pivot : 0.0;
    memory.scale[k] = there ? pivot : 0.0;
  }

  std::uint32_t rank_;
  double own_[kRows][kColumns];
  double least_[kPivotRows];  ///< in the lane of the row's diagonal entry
};

__global__ void __launch_bounds__(kThreads, 1)
    orthonormalise(Frame frame, SketchPlan plan, std::uint32_t iteration, double least) {
  const SketchJob& job = frame(plan.jobs)[blockIdx.x];
  if (iteration >= job.iterations) return;
  const std::uint32_t rank = sketch_rank(frame, job);
  if (rank > kSharedRank) return;
  auto& memory = shared<Elimination>();
  const double* const gram = frame(job.gram);
  double* const turn = frame(job.turn);
  OwnRows<1, 1> rows(
      rank,
      [=](std::uint32_t row, std::uint32_t column) {
        return row < rank && column < rank ? gram[row * rank + column] : 0.0;
      },
      [=](std::uint32_t row) { return least * gram[row * rank + row]; });
  rows.eliminate(memory);
  find_scales(memory, rank);
  rows.each([&](std::uint32_t row, std::uint32_t column, double left) {
    if (row < rank && column < rank)
      turn[row * rank + column] = turn_entry(memory, row, column, left);
  });
}

/// A panel, and the square of 64 rows that a block eliminates beside it.
struct Panel {
  const double* gram;  ///< factors where panels were: values of row i below the diagonal
  double* turn;
  std::uint32_t rank, first, other;
  double least;  ///< share of a diagonal entry that its pivot is above

  /// Of the square that the block has and of the other one: rows from `begin` on.
  [[nodiscard]] __device__ std::uint32_t rows_from(std::uint32_t begin) const {
    return rank - begin < kSharedRank ? rank - begin : kSharedRank;
  }
};

/// By the whole block: lines of the columns from `from` on.
template <unsigned kBeside, bool kOther>
__device__ void load_lines(const Panel& panel, std::uint32_t from, Lines& lines) {
  constexpr unsigned kAll = (kOther ? 2 : 1) * kSharedRank * kDepth;
#pragma unroll
  for (unsigned i = threadIdx.x; i < kAll; i += kThreads) {
    const bool own = i < kSharedRank * kDepth;
    const unsigned number = i % (kSharedRank * kDepth);
    // Factors lie along the columns, L^-1 along its own.
    const bool turned = kBeside == 2 && !own;
    const unsigned line = turned ? number % kSharedRank : number / kDepth;
    const unsigned k = turned ? number / kSharedRank : number % kDepth;
    const std::uint32_t row = (own ? panel.first : panel.other) + line;
    double value = 0;
    if (turned) {
      if (from + k >= panel.other) value = panel.turn[(from + k) * panel.rank + row];
    } else if (row < panel.rank) {
      value = panel.gram[row * panel.rank + from + k];
    }
    lines.at[k][(own ? 0 : kSharedRank) + line] = value;
  }
}

struct PanelMemory {
  Elimination elimination;
  Lines lines;
};

/// By a whole block: the panel's square, eliminated, with another one below or to the left of it.
template <unsigned kBelow, unsigned kBeside>
__device__ OwnRows<kBelow, kBeside> eliminate_square(const Panel& panel, PanelMemory& memory) {
  const std::uint32_t rank = panel.rank, first = panel.first, other = panel.other;
  const double* const gram = panel.gram;
  const double least = panel.least;
  OwnRows<kBelow, kBeside> rows(
      panel.rows_from(first),
      [=](std::uint32_t row, std::uint32_t column) {
        const std::uint32_t i = row < kSharedRank ? first + row : other + row - kSharedRank;
        const bool there = i < rank && column < kSharedRank && first + column < rank;
        return there ? gram[i * rank + first + column] : 0.0;
      },
      [=](std::uint32_t row) { return least * gram[(first + row) * rank + first + row]; });
  for (std::uint32_t from = 0; from < first; from += kDepth) {
    __syncthreads();
    load_lines<kBeside, (kBelow * kBeside > 1)>(panel, from, memory.lines);
    __syncthreads();
    rows.subtract_products(memory.lines);
  }
  rows.eliminate(memory.elimination);
  find_scales(memory.elimination, panel.rows_from(first));
  return rows;
}

/// A panel's factors of 64 rows below it, its own part of `turn`, or that of 64 columns before it.
__global__ void __launch_bounds__(kThreads, 1)
    eliminate_panel(Frame frame, SketchPlan plan, std::uint32_t iteration, double least,
                    std::uint32_t number) {
  const SketchJob& job = frame(plan.jobs)[blockIdx.x / plan.leaves];
  if (iteration >= job.iterations) return;
  const std::uint32_t rank = sketch_rank(frame, job);
  const std::uint32_t own = blockIdx.x % plan.leaves;
  const Panel panel{frame(job.gram),      frame(job.turn),   rank,
                    number * kSharedRank, own * kSharedRank, least};
  if (rank <= kSharedRank || panel.first >= rank || panel.other >= rank) return;
  auto& memory = shared<PanelMemory>();
  if (own > number) {
    const auto rows = eliminate_square<2, 1>(panel, memory);
    double* const factors = frame(job.gram) + panel.other * rank + panel.first;
    rows.each([&](std::uint32_t row, std::uint32_t column, double left) {
      if (row < kSharedRank || panel.other + row - kSharedRank >= rank) return;
      const double scale = memory.elimination.scale[column];
      factors[(row - kSharedRank) * rank + column] = scale != 0 ? -left / scale : 0.0;
    });
  } else if (own < number) {
    const auto rows = eliminate_square<1, 2>(panel, memory);
    double* const turn = panel.turn + panel.first * rank + panel.other;
    rows.each([&](std::uint32_t row, std::uint32_t column, double left) {
      if (column >= kSharedRank && panel.first + row < rank)
        turn[row * rank + column - kSharedRank] = memory.elimination.scale[row] * left;
    });
  } else {
    const auto rows = eliminate_square<1, 1>(panel, memory);
    double* const turn = panel.turn + panel.first * (rank + 1);
    rows.each([&](std::uint32_t row, std::uint32_t column, double left) {
      if (panel.first + row < rank && panel.first + column < rank)
        turn[row * rank + column] = turn_entry(memory.elimination, row, column, left);
    });
  }
}

}  // namespace

void find_orthonormal(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                      double least_pivot, Queue& queue) {
  queue.launch_blocks(orthonormalise, plan.drawn.jobs, kThreads, 0, frame, plan, iteration,
                      least_pivot);
  if (plan.leaves == 1) return;
  for (std::uint32_t panel = 0; panel < plan.leaves; ++panel)
    queue.launch_blocks(eliminate_panel, plan.drawn.jobs * plan.leaves, kThreads, 0, frame, plan,
                        iteration, least_pivot, panel);
}

}  // namespace atomo::cuda
