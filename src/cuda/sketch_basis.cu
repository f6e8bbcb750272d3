// SPDX-License-Identifier: Apache-2.0
/// The small matrices of sketches: what makes vectors orthonormal, and eigenvectors.
///
/// Mathematics. Orthonormal vectors: the Gram matrix G of rank x rank is eliminated without
/// pivoting (G = L D L^T), L^-1 growing where G vanishes; the vectors times D^-1/2 L^-1 are
/// orthonormal. A pivot below 1e-13 of its diagonal entry is what rounding to f32 leaves of a
/// vector that depends on those before: its row becomes zero, and with it the vector. Done twice,
/// since the first time loses as many digits as the vectors are close to dependent.
///
/// Eigenvectors: cyclic Jacobi rotations in f64. A sweep annihilates every pair of a tournament's
/// rounds, whose pairs are disjoint; it ends after a sweep without a rotation, which leaves
/// off-diagonal entries below 1e-15 of the largest eigenvalue, or after 30. Whatever has been
/// reached is orthogonal to f64's rounding, so the pairs sum to the same matrix.
///
/// Mapping. A block of 256 threads a layer. Elimination: a warp a row, a barrier a pivot.
/// Rotations: a thread a pair's angle; then a thread four entries where two pairs meet, which are
/// its own, and two entries of two eigenvectors; two barriers a round.
///
/// Traffic: r^2 values read and written, 8 bytes each. r^3 operations of an elimination, some 50
/// r^3 of the eigenvectors, in blocks beside each other: the time is that of the largest rank, not
/// the matrices'.
///
/// Shared memory: 35,328 bytes to eliminate; 16 r^2 dynamic and 7,168 for eigenvectors. Ranks above
/// 64 work in the workspace, through the caches. Determinism: no sum is shared. Alignment: all
/// stands in the workspace.

#include <algorithm>

#include "cuda/cub.cuh"
#include "cuda/sketch.cuh"
#include "cuda/sketch_cuts.hpp"
#include "format/kind.hpp"

namespace atomo::cuda {
namespace {

constexpr unsigned kThreads = kScanThreads;
constexpr double kLeastPivot = 1e-13;
constexpr double kNegligible = 1e-15;
constexpr int kMostSweeps = 30;

// ---- orthonormal vectors

/// A pivot a row, then what the row is multiplied by: 0 where it was refused.
struct Elimination {
  double matrix[kSharedRank * (kSharedRank + 1)];
  double scale[format::kLargestRank];
};

/// LayerRecord i of the matrix: L^-1 before the pivots that are done, G from there on.
struct Rows {
  double* at;
  std::uint32_t stride;
  __device__ double* operator[](std::uint32_t i) const { return at + std::uint64_t{i} * stride; }
};

__device__ void eliminate(const Rows& rows, const double* gram, std::uint32_t rank) {
  constexpr unsigned kWarps = kThreads / kLanes;
  for (std::uint32_t k = 0; k < rank; ++k) {
    const double* const pivot = rows[k];
    __syncthreads();
    if (pivot[k] > kLeastPivot * gram[std::uint64_t{k} * rank + k]) {
      for (std::uint32_t i = k + 1 + warp_in_block(); i < rank; i += kWarps) {
        double* const row = rows[i];
        const double factor = row[k] / pivot[k];
        __syncwarp();  // the factor's place is written to
        for (std::uint32_t j = lane(); j < rank; j += kLanes)
          row[j] = j == k ? -factor : row[j] - (factor * pivot[j]);
      }
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    orthonormalise(Frame frame, SketchPlan plan, std::uint32_t iteration) {
  const SketchJob& job = frame(plan.jobs)[blockIdx.x];
  if (iteration >= job.iterations) return;
  const std::uint32_t rank = sketch_rank(frame, job), entries = rank * rank;
  auto& memory = shared<Elimination>();
  const double* const gram = frame(job.gram);
  double* const turn = frame(job.turn);
  const Rows rows = rank <= kSharedRank ? Rows{memory.matrix, rank + 1} : Rows{turn, rank};
  for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads)
    rows[i / rank][i % rank] = gram[i];
  eliminate(rows, gram, rank);
  for (std::uint32_t k = threadIdx.x; k < rank; k += kThreads) {
    const double pivot = rows[k][k];
    memory.scale[k] = pivot > kLeastPivot * gram[k * rank + k] ? 1 / sqrt(pivot) : 0.0;
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
    const std::uint32_t row = i / rank, column = i % rank;
    const double scale = memory.scale[row];
    double value = 0;
    if (row == column) {
      value = scale;
    } else if (column < row && memory.scale[column] != 0) {
      value = scale * rows[row][column];
    }
    turn[i] = value;
  }
}

// ---- eigenvectors

struct Rotation {
  double cosine, sine;
  std::uint32_t low, high;
};
struct Tournament {
  Rotation pairs[format::kLargestRank / 2];
  std::uint32_t place[format::kLargestRank];  ///< of an eigenvalue in descending order
};

/// Pair `number` of a round among `players`, an even number: each meets each once in the
/// players - 1 rounds.
__device__ void draw_pair(std::uint32_t players, std::uint32_t round, std::uint32_t number,
                          Rotation& pair) {
  const std::uint32_t others = players - 1;
  const std::uint32_t a = number == 0 ? others : (round + number) % others;
  const std::uint32_t b = (round + others - number) % others;
  pair.low = a < b ? a : b;
  pair.high = a < b ? b : a;
}

/// The rotation that annihilates the pair's entry; none where that is negligible.
__device__ bool find_rotation(const Rows& matrix, double negligible, Rotation& pair) {
  const double off = matrix[pair.low][pair.high];
  pair.cosine = 1;
  pair.sine = 0;
  if (!(fabs(off) > negligible)) return false;
  const double ratio = (matrix[pair.high][pair.high] - matrix[pair.low][pair.low]) / (2 * off);
  const double size = 1 / (fabs(ratio) + sqrt((ratio * ratio) + 1));
  const double tangent = ratio < 0 ? -size : size;
  pair.cosine = 1 / sqrt((tangent * tangent) + 1);
  pair.sine = tangent * pair.cosine;
  return true;
}

__device__ void rotate(const Rotation& by, double& low, double& high) {
  const double x = low, y = high;
  low = (by.cosine * x) - (by.sine * y);
  high = (by.sine * x) + (by.cosine * y);
}

/// The four entries where pairs a and b meet, and their mirror images.
__device__ void rotate_block(const Rows& matrix, const Rotation& a, const Rotation& b, bool same) {
  if (a.sine == 0 && b.sine == 0) return;
  double ll = matrix[a.low][b.low], lh = matrix[a.low][b.high];
  double hl = same ? lh : matrix[a.high][b.low], hh = matrix[a.high][b.high];
  rotate(a, ll, hl);
  rotate(a, lh, hh);
  rotate(b, ll, lh);
  rotate(b, hl, hh);
  if (same) lh = hl = 0;
  matrix[a.low][b.low] = ll;
  matrix[a.low][b.high] = lh;
  matrix[a.high][b.low] = hl;
  matrix[a.high][b.high] = hh;
  if (same) return;
  matrix[b.low][a.low] = ll;
  matrix[b.high][a.low] = lh;
  matrix[b.low][a.high] = hl;
  matrix[b.high][a.high] = hh;
}

/// All rotations of a round.
__device__ void rotate_all(const Rows& matrix, const Rows& vectors, const Tournament& round,
                           std::uint32_t players) {
  const std::uint32_t pairs = players / 2;
  for (std::uint32_t i = threadIdx.x; i < pairs * (pairs + 1) / 2; i += kThreads) {
    // Rows a and pairs - 1 - a of the triangle a <= b are together as long as any other two.
    const std::uint32_t row = i / (pairs + 1), at = i % (pairs + 1), own = pairs - row;
    const std::uint32_t a = at < own ? row : own - 1, b = at < own ? row + at : a + (at - own);
    rotate_block(matrix, round.pairs[a], round.pairs[b], a == b);
  }
  for (std::uint32_t i = threadIdx.x; i < pairs * players; i += kThreads) {
    const Rotation& pair = round.pairs[i / players];
    if (pair.sine == 0) continue;
    rotate(pair, vectors[pair.low][i % players], vectors[pair.high][i % players]);
  }
}

/// `matrix` becomes diagonal, `vectors`, unit vectors at first, its eigenvectors.
__device__ void diagonalise(const Rows& matrix, const Rows& vectors, Tournament& round,
                            std::uint32_t players) {
  double negligible = 0;
  for (std::uint32_t k = 0; k < players; ++k)
    negligible = matrix[k][k] > negligible ? matrix[k][k] : negligible;
  negligible = negligible * kNegligible;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    bool rotated = false;
    for (std::uint32_t r = 0; r + 1 < players; ++r) {
      __syncthreads();
      if (threadIdx.x < players / 2) {
        Rotation& pair = round.pairs[threadIdx.x];
        draw_pair(players, r, threadIdx.x, pair);
        rotated = find_rotation(matrix, negligible, pair) || rotated;
      }
      __syncthreads();
      rotate_all(matrix, vectors, round, players);
    }
    if (__syncthreads_or(rotated ? 1 : 0) == 0) return;
  }
}

/// An even number: the one too many is a zero row and column that nothing rotates.
__host__ __device__ constexpr std::uint32_t players_of(std::uint32_t rank) {
  return (rank + 1) / 2 * 2;
}

__global__ void __launch_bounds__(kThreads) find_eigen(Frame frame, SketchPlan plan) {
  const SketchJob& job = frame(plan.jobs)[blockIdx.x];
  const std::uint32_t rank = sketch_rank(frame, job), players = players_of(rank);
  if (rank == 0) return;
  const std::uint32_t stride = players + 1;
  double* const room = rank <= kSharedRank ? dynamic_shared<double>() : frame(job.partials);
  const Rows matrix{room, stride}, vectors{room + std::uint64_t{players} * stride, stride};
  auto& round = shared<Tournament>();
  const double* const gram = frame(job.gram);
  for (std::uint32_t i = threadIdx.x; i < players * players; i += kThreads) {
    const std::uint32_t row = i / players, column = i % players;
    matrix[row][column] = row < rank && column < rank ? gram[row * rank + column] : 0.0;
    vectors[row][column] = row == column ? 1.0 : 0.0;
  }
  __syncthreads();
  diagonalise(matrix, vectors, round, players);
  for (std::uint32_t k = threadIdx.x; k < rank; k += kThreads) {
    const double value = matrix[k][k];
    std::uint32_t place = 0;
    for (std::uint32_t j = 0; j < rank; ++j) {
      const double other = matrix[j][j];
      place += other > value || (other == value && j < k) ? 1 : 0;
    }
    round.place[k] = place;
  }
  __syncthreads();
  double* const turn = frame(job.turn);
  for (std::uint32_t i = threadIdx.x; i < rank * rank; i += kThreads)
    turn[round.place[i / rank] * rank + i % rank] = vectors[i / rank][i % rank];
}

}  // namespace

unsigned eigenvector_bytes(std::uint32_t rank) noexcept {
  if (rank > kSharedRank) return 0;
  const std::uint32_t players = players_of(rank);
  return static_cast<unsigned>(2 * players * (players + 1) * sizeof(double));
}

void find_orthonormal(const Frame& frame, const SketchPlan& plan, std::uint32_t iteration,
                      Queue& queue) {
  queue.launch_blocks(orthonormalise, plan.drawn.jobs, kThreads, 0, frame, plan, iteration);
}

void find_eigenvectors(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  constexpr unsigned kUnasked = 40 * 1024;  // that any kernel may have beside its static memory
  if (plan.shared_bytes > kUnasked)
    queue.note(cudaFuncSetAttribute(find_eigen, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(eigenvector_bytes(kSharedRank))));
  queue.launch_blocks(find_eigen, plan.drawn.jobs, kThreads, plan.shared_bytes, frame, plan);
}

}  // namespace atomo::cuda
