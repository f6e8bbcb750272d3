// SPDX-License-Identifier: Apache-2.0
/// The small matrices of sketches: what makes vectors orthonormal, and eigenvectors.
///
/// Mathematics. Orthonormal vectors: the Gram matrix G of rank x rank is eliminated without
/// pivoting (G = L D L^T), L^-1 growing where G vanishes; the vectors times D^-1/2 L^-1 are
/// orthonormal. A pivot below 1e-13 of its diagonal entry is what rounding to f32 leaves of a
/// vector that depends on those before: its row becomes zero, and with it the vector. Done twice,
/// since the first time loses as many digits as the vectors are close to dependent.
///
/// Eigenvectors: cyclic Jacobi rotations in f32. A sweep annihilates every pair of a tournament's
/// rounds, whose pairs are disjoint. The last sweep is one that met no entry above 2^-16 of the largest
/// eigenvalue, and leaves entries of about the square of that, or the twelfth. Whatever has been
/// reached is orthogonal to the rounding of f32, and what the pairs lack for that the residual has.
///
/// Mapping. A block of 512 threads a layer. Elimination: a warp a row, a barrier and a division a
/// pivot. Rotations: a thread a pair's angle and its own entries; then a thread four entries where two
/// pairs meet, which are its own, and a warp the entries of eigenvectors; two barriers a round.
///
/// Traffic: r^2 values read and written, 8 bytes each. r^3 operations of an elimination, some 50
/// r^3 of the eigenvectors, in blocks beside each other: the time is that of the largest rank, not
/// the matrices'.
///
/// Shared memory: 35,328 bytes to eliminate, 36,352 for eigenvectors. Ranks above 64 work in the
/// workspace, through the caches. Determinism: no sum is shared. Alignment: all stands in the
/// workspace.

#include "cuda/cub.cuh"
#include "cuda/sketch.cuh"
#include "cuda/sketch_cuts.hpp"
#include "format/kind.hpp"

namespace atomo::cuda {
namespace {

constexpr unsigned kThreads = 512, kWarps = kThreads / kLanes;
constexpr double kLeastPivot = 1e-13;
constexpr float kNegligible = 0x1p-26f, kSmall = 0x1p-16f;
constexpr int kMostSweeps = 12;

// A block a layer: one on a multiprocessor is enough, which leaves registers for all that is at hand.

// ---- orthonormal vectors

/// A pivot a row, then what the row is multiplied by: 0 where it was refused.
struct Elimination {
  double matrix[kSharedRank * (kSharedRank + 1)];
  double scale[format::kLargestRank];
};

/// The rows of a matrix.
template <typename Real>
struct Rows {
  Real* at;
  std::uint32_t stride;
  __device__ Real* operator[](std::uint32_t i) const { return at + std::uint64_t{i} * stride; }
};

constexpr unsigned kRowsTogether = 4, kColumnsTogether = 2;

/// By a whole warp: takes the pivot's row from rows `first`, `first` + kWarps, ..., whose loads are under way
/// together.
__device__ __forceinline__ void eliminate_rows(const Rows<double>& rows, const double* pivot,
                                               double inverse, std::uint32_t k, std::uint32_t first,
                                               std::uint32_t rank) {
  const auto row_at = [=](unsigned r) { return first + r * kWarps; };
  double factor[kRowsTogether] = {};
#pragma unroll
  for (unsigned r = 0; r < kRowsTogether; ++r)
    if (row_at(r) < rank) factor[r] = rows[row_at(r)][k] * inverse;
  __syncwarp();  // the factors' places are written to
  for (std::uint32_t j = lane(); j < rank; j += kColumnsTogether * kLanes) {
    double own[kColumnsTogether] = {}, value[kRowsTogether][kColumnsTogether] = {};
#pragma unroll
    for (unsigned c = 0; c < kColumnsTogether; ++c) {
      const std::uint32_t column = j + c * kLanes;
      if (column >= rank) continue;
      own[c] = pivot[column];
#pragma unroll
      for (unsigned r = 0; r < kRowsTogether; ++r)
        if (row_at(r) < rank) value[r][c] = rows[row_at(r)][column];
    }
#pragma unroll
    for (unsigned c = 0; c < kColumnsTogether; ++c) {
      const std::uint32_t column = j + c * kLanes;
      if (column >= rank) continue;
#pragma unroll
      for (unsigned r = 0; r < kRowsTogether; ++r) {
        if (row_at(r) >= rank) continue;
        rows[row_at(r)][column] = column == k ? -factor[r] : value[r][c] - (factor[r] * own[c]);
      }
    }
  }
}

/// Leaves L^-1 before the pivots.
__device__ void eliminate(const Rows<double>& rows, const double* gram, std::uint32_t rank) {
  for (std::uint32_t k = 0; k < rank; ++k) {
    const double* const pivot = rows[k];
    __syncthreads();
    if (pivot[k] > kLeastPivot * gram[std::uint64_t{k} * rank + k]) {
      const double inverse = 1 / pivot[k];
      for (std::uint32_t i = k + 1 + warp_in_block(); i < rank; i += kRowsTogether * kWarps)
        eliminate_rows(rows, pivot, inverse, k, i, rank);
    }
  }
  __syncthreads();
}

/// From `gram` to `turn`.
__device__ void find_turn(const Rows<double>& rows, const double* gram, std::uint32_t rank,
                          double* scales, double* turn) {
  for (std::uint32_t row = warp_in_block(); row < rank; row += kWarps) {
    for (std::uint32_t column = lane(); column < rank; column += kLanes)
      rows[row][column] = gram[row * rank + column];
  }
  eliminate(rows, gram, rank);
  for (std::uint32_t k = threadIdx.x; k < rank; k += kThreads) {
    const double pivot = rows[k][k];
    scales[k] = pivot > kLeastPivot * gram[k * rank + k] ? 1 / sqrt(pivot) : 0.0;
  }
  __syncthreads();
  for (std::uint32_t row = warp_in_block(); row < rank; row += kWarps) {
    const double scale = scales[row];
    for (std::uint32_t column = lane(); column < rank; column += kLanes) {
      double value = 0;
      if (row == column) {
        value = scale;
      } else if (column < row && scales[column] != 0) {
        value = scale * rows[row][column];
      }
      turn[row * rank + column] = value;
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
  const Rows<double> rows =
      rank <= kSharedRank ? Rows<double>{memory.matrix, rank + 1} : Rows<double>{turn, rank};
  find_turn(rows, gram, rank, memory.scale, turn);
}

// ---- eigenvectors

struct Rotation {
  float cosine, sine;
  std::uint32_t low, high;
};
struct Eigen {
  float matrix[kSharedRank * (kSharedRank + 1)], vectors[kSharedRank * (kSharedRank + 1)];
  Rotation pairs[format::kLargestRank / 2];
  std::uint32_t place[format::kLargestRank];  ///< of an eigenvalue in descending order
};

/// Pair `number` of a round among `players`, an even number: each meets each once in the
/// players - 1 rounds.
__device__ void draw_pair(std::uint32_t players, std::uint32_t round, std::uint32_t number,
                          Rotation& pair) {
  const std::uint32_t others = players - 1;
  const auto around = [=](std::uint32_t i) { return i < others ? i : i - others; };
  const std::uint32_t a = number == 0 ? others : around(round + number);
  const std::uint32_t b = around(round + others - number);
  pair.low = a < b ? a : b;
  pair.high = a < b ? b : a;
}

/// Finds the rotation that annihilates the pair's entry, none where that is negligible, and leaves what it
/// makes of the pair's own entries; whether the entry was not small. `unit`: one over the largest.
__device__ __forceinline__ bool begin_rotation(const Rows<float>& matrix, float unit,
                                               Rotation& pair) {
  const float off = matrix[pair.low][pair.high] * unit;
  pair.cosine = 1;
  pair.sine = 0;
  if (!(fabsf(off) > kNegligible)) return false;
  const float low = matrix[pair.low][pair.low], high = matrix[pair.high][pair.high];
  const float apart = (high - low) * unit, twice = apart < 0 ? -2 * off : 2 * off;
  const float wide = fabsf(apart) + sqrtf((apart * apart) + (twice * twice));
  const float inverse = 1 / sqrtf((wide * wide) + (twice * twice));
  pair.cosine = wide * inverse;
  pair.sine = twice * inverse;
  const float moved = (twice / wide) * matrix[pair.low][pair.high];
  matrix[pair.low][pair.low] = low - moved;
  matrix[pair.high][pair.high] = high + moved;
  matrix[pair.low][pair.high] = matrix[pair.high][pair.low] = 0;
  return fabsf(off) > kSmall;
}

__device__ void rotate(const Rotation& by, float& low, float& high) {
  const float x = low, y = high;
  low = (by.cosine * x) - (by.sine * y);
  high = (by.sine * x) + (by.cosine * y);
}

/// The four entries where two pairs meet, and their mirror images.
__device__ __forceinline__ void rotate_block(const Rows<float>& matrix, const Rotation& a,
                                             const Rotation& b) {
  float ll = matrix[a.low][b.low], lh = matrix[a.low][b.high];
  float hl = matrix[a.high][b.low], hh = matrix[a.high][b.high];
  rotate(a, ll, hl);
  rotate(a, lh, hh);
  rotate(b, ll, lh);
  rotate(b, hl, hh);
  matrix[a.low][b.low] = matrix[b.low][a.low] = ll;
  matrix[a.low][b.high] = matrix[b.high][a.low] = lh;
  matrix[a.high][b.low] = matrix[b.low][a.high] = hl;
  matrix[a.high][b.high] = matrix[b.high][a.high] = hh;
}

/// By a whole block: rotates the eigenvectors. A thread has four places of two at once, whose loads are under
/// way together.
__device__ __forceinline__ void rotate_vectors(const Rows<float>& vectors, const Rotation* pairs,
                                               std::uint32_t count) {
  const std::uint32_t players = 2 * count;
  for (std::uint32_t p = warp_in_block(); p < count; p += 2 * kWarps) {
    for (std::uint32_t j = lane(); j < players; j += 2 * kLanes) {
      float low[4] = {}, high[4] = {};
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        const std::uint32_t pair = p + k / 2 * kWarps, at = j + k % 2 * kLanes;
        if (pair >= count || at >= players) continue;
        low[k] = vectors[pairs[pair].low][at];
        high[k] = vectors[pairs[pair].high][at];
      }
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        const std::uint32_t pair = p + k / 2 * kWarps, at = j + k % 2 * kLanes;
        if (pair >= count || at >= players) continue;
        const Rotation own = pairs[pair];
        rotate(own, low[k], high[k]);
        vectors[own.low][at] = low[k];
        vectors[own.high][at] = high[k];
      }
    }
  }
}

/// What a thread rotates in every round: two pairs a < b that meet, then those kThreads further on.
struct Meetings {
  std::uint32_t row, at, rows, columns;  ///< places in the triangle folded to a rectangle
  std::uint32_t step_rows, step_columns;

  __device__ explicit Meetings(std::uint32_t pairs)
      : row(threadIdx.x / pairs),
        at(threadIdx.x % pairs),
        rows(pairs - 1),
        columns(pairs),
        step_rows(kThreads / pairs),
        step_columns(kThreads % pairs) {}

  /// Calls visit(a, b) for each. Rows a and pairs - 2 - a of the triangle are together as long as any
  /// other two.
  template <typename Visit>
  __device__ void each(Visit visit) const {
    const std::uint32_t folded = (rows + 1) / 2;
    for (std::uint32_t r = row, c = at; r < folded;) {
      const std::uint32_t own = rows - r, last = rows - 1 - r;
      if (c < own) {
        visit(r, r + 1 + c);
      } else if (last != r) {
        visit(last, last + 1 + (c - own));
      }
      r += step_rows;
      c += step_columns;
      if (c >= columns) {
        c -= columns;
        ++r;
      }
    }
  }
};

/// `matrix` becomes diagonal, `vectors`, unit vectors at first, its eigenvectors.
__device__ __forceinline__ void diagonalise(const Rows<float>& matrix, const Rows<float>& vectors,
                                            Rotation* pairs, std::uint32_t players) {
  float largest = 0;
  for (std::uint32_t k = 0; k < players; ++k)
    largest = matrix[k][k] > largest ? matrix[k][k] : largest;
  const float unit = largest > 0 ? 1 / largest : 0;
  const std::uint32_t count = players / 2;
  const Meetings meetings(count);
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    bool goes_on = false;
    for (std::uint32_t r = 0; r + 1 < players; ++r) {
      __syncthreads();
      if (threadIdx.x < count) {
        Rotation& pair = pairs[threadIdx.x];
        draw_pair(players, r, threadIdx.x, pair);
        goes_on = begin_rotation(matrix, unit, pair) || goes_on;
      }
      __syncthreads();
      meetings.each(
          [&](std::uint32_t a, std::uint32_t b) { rotate_block(matrix, pairs[a], pairs[b]); });
      rotate_vectors(vectors, pairs, count);
    }
    if (__syncthreads_or(goes_on ? 1 : 0) == 0) return;
  }
}

/// An even number: the one too many is a zero row and column that nothing rotates.
__device__ constexpr std::uint32_t players_of(std::uint32_t rank) { return (rank + 1) / 2 * 2; }

/// From `gram` to the rows of `turn`. Inlined twice, so that what is in shared memory is read as such.
__device__ __forceinline__ void solve(const Rows<float>& matrix, const Rows<float>& vectors,
                                      const double* gram, std::uint32_t rank, Eigen& memory,
                                      double* turn) {
  const std::uint32_t players = players_of(rank);
  for (std::uint32_t row = warp_in_block(); row < players; row += kWarps) {
    for (std::uint32_t column = lane(); column < players; column += kLanes) {
      matrix[row][column] =
          row < rank && column < rank ? static_cast<float>(gram[row * rank + column]) : 0.0f;
      vectors[row][column] = row == column ? 1.0f : 0.0f;
    }
  }
  __syncthreads();
  diagonalise(matrix, vectors, memory.pairs, players);
  for (std::uint32_t k = threadIdx.x; k < rank; k += kThreads) {
    const float value = matrix[k][k];
    std::uint32_t place = 0;
    for (std::uint32_t j = 0; j < rank; ++j) {
      const float other = matrix[j][j];
      place += other > value || (other == value && j < k) ? 1 : 0;
    }
    memory.place[k] = place;
  }
  __syncthreads();
  for (std::uint32_t row = warp_in_block(); row < rank; row += kWarps) {
    for (std::uint32_t column = lane(); column < rank; column += kLanes)
      turn[memory.place[row] * rank + column] = static_cast<double>(vectors[row][column]);
  }
}

__global__ void __launch_bounds__(kThreads, 1) find_eigen(Frame frame, SketchPlan plan) {
  const SketchJob& job = frame(plan.jobs)[blockIdx.x];
  const std::uint32_t rank = sketch_rank(frame, job), stride = players_of(rank) + 1;
  if (rank == 0) return;
  auto& memory = shared<Eigen>();
  const double* const gram = frame(job.gram);
  double* const turn = frame(job.turn);
  if (rank <= kSharedRank) {
    solve({memory.matrix, stride}, {memory.vectors, stride}, gram, rank, memory, turn);
  } else {
    auto* const room = reinterpret_cast<float*>(frame(job.partials));
    const Rows<float> matrix{room, stride};
    solve(matrix, {matrix[players_of(rank)], stride}, gram, rank, memory, turn);
  }
}

}  // namespace

void find_orthonormal(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                      Queue& queue) {
  queue.launch_blocks(orthonormalise, plan.drawn.jobs, kThreads, 0, frame, plan, iteration);
}

void find_eigenvectors(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_blocks(find_eigen, plan.drawn.jobs, kThreads, 0, frame, plan);
}

}  // namespace atomo::cuda
