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
/// pairs meet, which are its own; two barriers a round. They are written down, and a second launch makes the
/// eigenvectors of them: what they do to one entry of all vectors depends on no other, so a warp takes one
/// through all rounds, a thread a pair, while its block of 8 fetches those that follow.
///
/// Traffic: r^2 values read and written, 8 bytes each. r^3 operations of an elimination, some 50
/// r^3 of the eigenvectors, in blocks beside each other: the time is that of the largest rank, not
/// the matrices'.
///
/// Shared memory: 35,328 bytes to eliminate, 18,688 for rotations, 24,576 for eigenvectors. Ranks above 64
/// work in the workspace, through the caches. Determinism: no sum is shared. Alignment: all stands in the
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

/// Leaves L^-1 before the pivots.
__device__ void eliminate(const Rows<double>& rows, const double* gram, std::uint32_t rank) {
  for (std::uint32_t k = 0; k < rank; ++k) {
    const double* const pivot = rows[k];
    __syncthreads();
    if (pivot[k] > kLeastPivot * gram[std::uint64_t{k} * rank + k]) {
      const double inverse = 1 / pivot[k];
      for (std::uint32_t i = k + 1 + warp_in_block(); i < rank; i += kWarps) {
        double* const row = rows[i];
        const double factor = row[k] * inverse;
        __syncwarp();  // the factor's place is written to
        for (std::uint32_t j = lane(); j < rank; j += kLanes)
          row[j] = j == k ? -factor : row[j] - (factor * pivot[j]);
      }
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

struct Pair {
  std::uint32_t low, high;
};
struct Rotation {
  SketchTurn by;
  Pair pair;
};
struct Eigen {
  float matrix[kSharedRank * (kSharedRank + 1)];
  Rotation pairs[format::kLargestRank / 2];
};

/// Pair `number` of a round among `players`, an even number: each meets each once in the
/// players - 1 rounds.
__device__ Pair draw_pair(std::uint32_t players, std::uint32_t round, std::uint32_t number) {
  const std::uint32_t others = players - 1;
  const auto around = [=](std::uint32_t i) { return i < others ? i : i - others; };
  const std::uint32_t a = number == 0 ? others : around(round + number);
  const std::uint32_t b = around(round + others - number);
  return a < b ? Pair{a, b} : Pair{b, a};
}

/// Finds the rotation that annihilates the pair's entry, none where that is negligible, and leaves what it
/// makes of the pair's own entries; whether the entry was not small. `unit`: one over the largest.
__device__ __forceinline__ bool begin_rotation(const Rows<float>& matrix, float unit, Pair pair,
                                               SketchTurn& by) {
  const float off = matrix[pair.low][pair.high] * unit;
  by = {1, 0};
  if (!(fabsf(off) > kNegligible)) return false;
  const float low = matrix[pair.low][pair.low], high = matrix[pair.high][pair.high];
  const float apart = (high - low) * unit, twice = apart < 0 ? -2 * off : 2 * off;
  const float wide = fabsf(apart) + sqrtf((apart * apart) + (twice * twice));
  const float inverse = 1 / sqrtf((wide * wide) + (twice * twice));
  by = {wide * inverse, twice * inverse};
  const float moved = (twice / wide) * matrix[pair.low][pair.high];
  matrix[pair.low][pair.low] = low - moved;
  matrix[pair.high][pair.high] = high + moved;
  matrix[pair.low][pair.high] = matrix[pair.high][pair.low] = 0;
  return fabsf(off) > kSmall;
}

__device__ void rotate(SketchTurn by, float& low, float& high) {
  const float x = low, y = high;
  low = (by.cosine * x) - (by.sine * y);
  high = (by.sine * x) + (by.cosine * y);
}

/// The four entries where two pairs meet, and their mirror images.
__device__ __forceinline__ void rotate_block(const Rows<float>& matrix, const Rotation& first,
                                             const Rotation& second) {
  const Pair a = first.pair, b = second.pair;
  float ll = matrix[a.low][b.low], lh = matrix[a.low][b.high];
  float hl = matrix[a.high][b.low], hh = matrix[a.high][b.high];
  rotate(first.by, ll, hl);
  rotate(first.by, lh, hh);
  rotate(second.by, ll, lh);
  rotate(second.by, hl, hh);
  matrix[a.low][b.low] = matrix[b.low][a.low] = ll;
  matrix[a.low][b.high] = matrix[b.high][a.low] = lh;
  matrix[a.high][b.low] = matrix[b.low][a.high] = hl;
  matrix[a.high][b.high] = matrix[b.high][a.high] = hh;
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

/// An even number: the one too many is a zero row and column that nothing rotates.
__device__ constexpr std::uint32_t players_of(std::uint32_t rank) { return (rank + 1) / 2 * 2; }

/// `matrix` becomes diagonal. Returns the sweeps, whose rotations `turns` has, round by round.
__device__ __forceinline__ std::uint32_t diagonalise(const Rows<float>& matrix, Rotation* pairs,
                                                     std::uint32_t players, SketchTurn* turns) {
  float largest = 0;
  for (std::uint32_t k = 0; k < players; ++k)
    largest = matrix[k][k] > largest ? matrix[k][k] : largest;
  const float unit = largest > 0 ? 1 / largest : 0;
  const std::uint32_t count = players / 2;
  const Meetings meetings(count);
  for (std::uint32_t sweep = 0; sweep < kMostSweeps; ++sweep) {
    bool goes_on = false;
    for (std::uint32_t r = 0; r + 1 < players; ++r, turns += count) {
      __syncthreads();
      if (threadIdx.x < count) {
        Rotation own{{}, draw_pair(players, r, threadIdx.x)};
        goes_on = begin_rotation(matrix, unit, own.pair, own.by) || goes_on;
        pairs[threadIdx.x] = own;
        turns[threadIdx.x] = own.by;
      }
      __syncthreads();
      meetings.each(
          [&](std::uint32_t a, std::uint32_t b) { rotate_block(matrix, pairs[a], pairs[b]); });
    }
    if (__syncthreads_or(goes_on ? 1 : 0) == 0) return sweep + 1;
  }
  return kMostSweeps;
}

/// From `gram` to its rotations and the places of its eigenvalues. Inlined twice, so that what is in shared
/// memory is read as such.
__device__ __forceinline__ void solve(const Frame& frame, const SketchJob& job, SketchState& state,
                                      const Rows<float>& matrix, Rotation* pairs,
                                      std::uint32_t rank) {
  const std::uint32_t players = players_of(rank);
  const double* const gram = frame(job.gram);
  for (std::uint32_t row = warp_in_block(); row < players; row += kWarps) {
    for (std::uint32_t column = lane(); column < players; column += kLanes) {
      matrix[row][column] =
          row < rank && column < rank ? static_cast<float>(gram[row * rank + column]) : 0.0f;
    }
  }
  __syncthreads();
  const std::uint32_t sweeps = diagonalise(matrix, pairs, players, frame(job.turns));
  if (threadIdx.x == 0) state.sweeps = sweeps;
  for (std::uint32_t k = threadIdx.x; k < rank; k += kThreads) {
    const float value = matrix[k][k];
    std::uint32_t place = 0;
    for (std::uint32_t j = 0; j < rank; ++j) {
      const float other = matrix[j][j];
      place += other > value || (other == value && j < k) ? 1 : 0;
    }
    frame(job.order)[k] = place;
  }
}

__global__ void __launch_bounds__(kThreads, 1) find_eigen(Frame frame, SketchPlan plan) {
  const SketchJob& job = frame(plan.jobs)[blockIdx.x];
  SketchState& state = frame(plan.states)[blockIdx.x];
  const std::uint32_t rank = sketch_rank(frame, job), stride = players_of(rank) + 1;
  if (rank == 0) return;
  auto& memory = shared<Eigen>();
  if (rank <= kSharedRank) {
    solve(frame, job, state, {memory.matrix, stride}, memory.pairs, rank);
  } else {
    auto* const room = reinterpret_cast<float*>(frame(job.partials));
    solve(frame, job, state, {room, stride}, memory.pairs, rank);
  }
}

/// Rotations on their way to the warps of a block, and the entries of a warp.
constexpr unsigned kVectorThreads = kEigenEntries * kLanes, kTurnsTogether = 2048;
struct Turned {
  SketchTurn turns[kTurnsTogether];
  float entry[kEigenEntries][format::kLargestRank];
};

/// A warp an entry of all vectors, unit vectors at first, through all rounds.
__global__ void __launch_bounds__(kVectorThreads) turn_eigenvectors(Frame frame, SketchPlan plan) {
  const UnitOf at = find_unit(frame, plan.eigen, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  const std::uint32_t rank = sketch_rank(frame, job), players = players_of(rank);
  const auto first = static_cast<std::uint32_t>(at.index) * kEigenEntries;
  if (first >= rank) return;
  auto& memory = shared<Turned>();
  float* const entry = memory.entry[warp_in_block()];
  const std::uint32_t own = first + warp_in_block(), count = players / 2;
  for (std::uint32_t k = lane(); k < players; k += kLanes) entry[k] = k == own ? 1.0f : 0.0f;
  const std::uint32_t rounds = frame(plan.states)[at.job].sweeps * (players - 1);
  const std::uint32_t together = kTurnsTogether / count;
  const SketchTurn* const turns = frame(job.turns);
  for (std::uint32_t begin = 0, r = 0; begin < rounds; begin += together) {
    const std::uint32_t end = begin + together < rounds ? begin + together : rounds;
    __syncthreads();
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < (end - begin) * count; i += kVectorThreads)
      memory.turns[i] = turns[begin * count + i];
    __syncthreads();
#pragma unroll 1
    for (std::uint32_t i = 0; i < end - begin; ++i) {
#pragma unroll 1
      for (std::uint32_t p = lane(); p < count; p += kLanes) {
        const Pair pair = draw_pair(players, r, p);
        rotate(memory.turns[i * count + p], entry[pair.low], entry[pair.high]);
      }
      __syncwarp();
      r = r + 2 < players ? r + 1 : 0;
    }
  }
  if (own >= rank) return;
  double* const turn = frame(job.turn);
  for (std::uint32_t k = lane(); k < rank; k += kLanes)
    turn[frame(job.order)[k] * rank + own] = static_cast<double>(entry[k]);
}

}  // namespace

void find_orthonormal(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                      Queue& queue) {
  queue.launch_blocks(orthonormalise, plan.drawn.jobs, kThreads, 0, frame, plan, iteration);
}

void find_eigenvectors(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  queue.launch_blocks(find_eigen, plan.drawn.jobs, kThreads, 0, frame, plan);
  queue.launch_blocks(turn_eigenvectors, plan.eigen.units, kVectorThreads, 0, frame, plan);
}

}  // namespace atomo::cuda
