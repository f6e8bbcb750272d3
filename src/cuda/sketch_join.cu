// SPDX-License-Identifier: Apache-2.0
/// The leaves of a tridiagonal matrix joined: from their eigenvectors to those of the whole.
///
/// Mathematics (Cuppen; Gu and Eisenstat). Two parts with eigenvalues d and vectors V are torn at e; the whole is
/// V (D + |e| z z^T) V^T with z the rows of V beside the tear, those of the second part by the sign of e. Its
/// eigenvalues are the zeros of 1 + |e| sum of z_i^2 / (d_i - x), one between any two poles d; each is found by
/// bisection of the bits of its distance from the nearer pole, an f32. The z for which these are the zeros to the
/// last digit is a product of distances, and the vectors z_i / (d_i - x) are orthogonal to the rounding of f64,
/// whatever the zeros' errors are. Nothing is deflated but poles whose z is below 2^-30: equal poles are moved apart by
/// 2^-34 of the largest, far below the rounding of f32. Vectors of the whole are V times those, in f32. In the end all
/// vectors W, orthogonal to some roundings of f32, become (3 - W W^T) W / 2 in f64: orthogonal to the square of that.
///
/// Mapping. Two launches of joints of two leaves and then of twice two.
///   find    a warp an eigenvalue; the poles in ascending order are in shared memory, put there by each block
///   form    a warp a vector of D + |e| z z^T; each block finds z for itself
///   join    a block a tile of 64 entries of 64 vectors; so do the two launches that straighten all
///
/// Traffic: r^2 divisions and roots of some 30 steps of r terms in f64, 2 r^3 operations in f32 and 4 r^3
/// in f64.
///
/// Shared memory: 11,280 bytes; 8,704 for tiles, 20,480 in f64. Determinism: sums go in an order of the shape and the architecture. Alignment: leaves begin at
/// multiples of four, so that 16 bytes are read at once where the rank is one.

#include "cuda/f64_product.cuh"
#include "cuda/sketch_join.cuh"
#include "cuda/tile_product.cuh"
#include "format/kind.hpp"

namespace atomo::cuda {
namespace {

constexpr unsigned kThreads = kRootsTogether * kLanes;
constexpr std::uint32_t kMost = format::kLargestRank;
static_assert(kThreads == kMost);
constexpr double kApart = 0x1p-34, kLeastWeight = 0x1p-30;
constexpr float kLeastOffset = 0x1p-110f;
/// A pole that nothing moves.
constexpr std::uint32_t kStays = ~0u;

__device__ double reduce(double value, bool multiply) {
  for (unsigned apart = kLanes / 2; apart != 0; apart /= 2) {
    const double other = __shfl_xor_sync(kAllLanes, value, static_cast<int>(apart));
    value = multiply ? value * other : value + other;
  }
  return value;
}

/// The parts that are joined: rows from `begin` and from `middle` on.
struct Parts {
  std::uint32_t begin = 0, middle = 0, end = 0, level = 0;

  __device__ Parts(const Frame& frame, const SketchPlan& plan, std::uint32_t job,
                   std::uint32_t level, std::uint32_t number)
      : level(level) {
    if (sketch_rank(frame, frame(plan.jobs)[job]) <= kSharedRank) return;
    const Leaves leaves = leaves_of(frame(plan.states)[job].directions);
    if (level > join_levels(leaves.count)) return;
    const std::uint32_t first = number << level;
    begin = leaves.begin(first);
    middle = leaves.begin(first + level);
    end = leaves.begin(first + 2 * level);
  }
  [[nodiscard]] __device__ std::uint32_t size() const { return end - begin; }
};

struct Poles {
  double at[kMost], weight[kMost];  ///< in ascending order, in units of the largest; z
  std::uint32_t vector[kMost];      ///< of which each is
  double unit;
  double strength;  ///< |e| in that unit
};

/// By a whole block.
__device__ void find_poles(const Frame& frame, const SketchJob& job, const Parts& parts,
                           Poles& poles) {
  const std::uint32_t own = threadIdx.x, size = parts.size();
  const std::uint32_t rank = sketch_rank(frame, job);
  const bool torn = parts.middle > parts.begin && parts.middle < parts.end;
  const float tear = torn ? frame(job.beside)[parts.middle - 1] : 0.0f;
  const double strength = fabs(static_cast<double>(tear));
  const double* const values = frame(job.values) + (parts.level - 1) * rank + parts.begin;
  double value = 0;
  if (own < size) poles.at[own] = value = values[own];
  __syncthreads();
  double largest = strength;
  std::uint32_t place = 0;
  for (std::uint32_t j = 0; j < size; ++j) {
    const double other = poles.at[j];
    place += other < value || (other == value && j < own) ? 1 : 0;
    largest = fabs(other) > largest ? fabs(other) : largest;
  }
  const double unit = largest > 0 ? largest : 1;
  __syncthreads();
  if (own < size) {
    const std::uint32_t vector = parts.begin + own;
    const bool second = vector >= parts.middle;
    double weight = 0;
    if (torn) {
      const std::uint64_t entry = std::uint64_t{vector} * rank + parts.middle - (second ? 0 : 1);
      weight = parts.level == 1 ? frame(job.turn)[entry]
                                : static_cast<double>(joint_of(frame, job, 1).vectors[entry]);
      if (second && tear < 0) weight = -weight;
    }
    poles.at[place] = (value / unit) + (place * kApart);
    poles.weight[place] = strength > kApart * unit && fabs(weight) > kLeastWeight ? weight : 0.0;
    poles.vector[place] = own;
  }
  if (own == 0) poles.unit = unit, poles.strength = strength / unit;
  __syncthreads();
}

/// By a whole warp: 1 + |e| sum of z_i^2 / (d_i - x), x being `offset` from a pole.
__device__ double secular(const Poles& poles, std::uint32_t size, double origin, double offset) {
  double sum = 0;
#pragma unroll 1
  for (std::uint32_t i = lane(); i < size; i += kLanes) {
    const double weight = poles.weight[i];
    if (weight == 0) continue;
    const double apart = (poles.at[i] - origin) - offset;
    // The sign of the sum is what is asked for: twice the digits of f32 do.
    const auto rough = static_cast<double>(1 / static_cast<float>(apart));
    const double inverse = __fma_rn(rough, __fma_rn(-apart, rough, 1.0), rough);
    sum = __fma_rn(weight * weight, inverse, sum);
  }
  return __fma_rn(poles.strength, reduce(sum, false), 1.0);
}

struct Root {
  std::uint32_t origin;
  float offset;
};

/// By a whole warp: the eigenvalue above pole `own`.
__device__ Root find_root(const Poles& poles, std::uint32_t size, std::uint32_t own) {
  if (poles.weight[own] == 0) return {kStays, 0};
  std::uint32_t next = size;
  for (std::uint32_t first = own + 1; first < size && next == size; first += kLanes) {
    const std::uint32_t i = first + lane();
    const unsigned all = __ballot_sync(kAllLanes, i < size && poles.weight[i] != 0 ? 1 : 0);
    if (all != 0) next = first + static_cast<std::uint32_t>(__ffs(static_cast<int>(all))) - 1;
  }
  double width = 0;
  bool above = true;  // the pole below it is the nearer one
  if (next == size) {
    for (std::uint32_t i = lane(); i < size; i += kLanes)
      width = __fma_rn(poles.weight[i], poles.weight[i], width);
    width = poles.strength * reduce(width, false);
  } else {
    width = (poles.at[next] - poles.at[own]) / 2;
    above = secular(poles, size, poles.at[own], width) > 0;
  }
  const std::uint32_t origin = above ? own : next;
  std::uint32_t low = __float_as_uint(kLeastOffset),
                high = __float_as_uint(static_cast<float>(width));
  while (low + 1 < high) {
    const std::uint32_t middle = (low + high) / 2;
    const auto offset = static_cast<double>(__uint_as_float(middle));
    const bool beyond = secular(poles, size, poles.at[origin], above ? offset : -offset) > 0;
    (beyond == above ? high : low) = middle;
  }
  const float offset = __uint_as_float(low);
  return {origin, above ? offset : -offset};
}

__global__ void __launch_bounds__(kThreads)
    find_roots(Frame frame, SketchPlan plan, std::uint32_t level) {
  const UnitOf at = find_unit(frame, plan.roots, blockIdx.x);
  const auto units = kRootUnits * level, unit = static_cast<std::uint32_t>(at.index);
  const Parts parts(frame, plan, at.job, level, unit / units);
  const std::uint32_t first = unit % units * kRootsTogether, own = first + warp_in_block();
  if (first >= parts.size()) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  auto& poles = shared<Poles>();
  find_poles(frame, job, parts, poles);
  if (own >= parts.size()) return;
  const Root root = find_root(poles, parts.size(), own);
  if (lane() != 0) return;
  frame(job.offsets)[parts.begin + own] = root.offset;
  frame(job.origins)[parts.begin + own] = root.origin;
}

struct Forming {
  Poles poles;
  double root[kMost];  ///< pole from which the offset is
  double offset[kMost];
  double weight[kMost];  ///< for which the roots are exact
};

/// Fills columns of the matrix behind `gram`'s memory that parts are multiplied by.
__global__ void __launch_bounds__(kThreads)
    form_vectors(Frame frame, SketchPlan plan, std::uint32_t level) {
  const UnitOf at = find_unit(frame, plan.roots, blockIdx.x);
  const auto units = kRootUnits * level, unit = static_cast<std::uint32_t>(at.index);
  const Parts parts(frame, plan, at.job, level, unit / units);
  const std::uint32_t size = parts.size(), first = unit % units * kRootsTogether;
  const std::uint32_t own = first + warp_in_block();
  if (first >= size) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  auto& memory = shared<Forming>();
  Poles& poles = memory.poles;
  find_poles(frame, job, parts, poles);
  if (threadIdx.x < size) {
    const std::uint32_t origin = frame(job.origins)[parts.begin + threadIdx.x];
    memory.root[threadIdx.x] = poles.at[origin == kStays ? threadIdx.x : origin];
    memory.offset[threadIdx.x] = static_cast<double>(frame(job.offsets)[parts.begin + threadIdx.x]);
  }
  __syncthreads();
  for (std::uint32_t i = warp_in_block(); i < size; i += kRootsTogether) {
    const double pole = poles.at[i], weight = poles.weight[i];
    double above = 1, below = 1;
    for (std::uint32_t j = lane(); j < size && weight != 0; j += kLanes) {
      if (poles.weight[j] == 0) continue;
      above = above * ((memory.root[j] - pole) + memory.offset[j]);
      if (j != i) below = below * (poles.at[j] - pole);
    }
    const double square = reduce(above / below, true);
    if (lane() == 0) memory.weight[i] = weight == 0 ? 0.0 : copysign(sqrt(fabs(square)), weight);
  }
  __syncthreads();
  if (own >= size) return;
  const std::uint32_t rank = sketch_rank(frame, job);
  const bool stays = poles.weight[own] == 0;
  const double root = memory.root[own], offset = memory.offset[own];
  auto* const to =
      reinterpret_cast<float*>(frame(job.gram)) + parts.begin * rank + parts.begin + own;
  const auto entry = [&](std::uint32_t i) {
    if (stays) return i == own ? 1.0 : 0.0;
    return memory.weight[i] == 0 ? 0.0 : memory.weight[i] / ((poles.at[i] - root) - offset);
  };
  double square = 0;
  for (std::uint32_t i = lane(); i < size; i += kLanes)
    square = __fma_rn(entry(i), entry(i), square);
  const double scale = 1 / sqrt(reduce(square, false));
  for (std::uint32_t i = lane(); i < size; i += kLanes)
    to[poles.vector[i] * rank] = static_cast<float>(entry(i) * scale);
  if (lane() == 0)
    joint_of(frame, job, level).values[parts.begin + own] = (root + offset) * poles.unit;
}

/// A tile of entries of one part of vectors of the whole.
template <typename From>
__device__ void join_tile(const From* from, const SketchJob& job, const Frame& frame,
                          const Parts& parts, bool second, const TilePlace& place) {
  const std::uint32_t rank = sketch_rank(frame, job);
  const std::uint32_t begin = second ? parts.middle : parts.begin;
  const auto* const by =
      reinterpret_cast<const float*>(frame(job.gram)) + begin * rank + parts.begin;
  float* const to = joint_of(frame, job, parts.level).vectors + parts.begin * rank + begin;
  multiply_tile(Operand<From>{from + begin * rank + begin, rank, place.end, false},
                Operand<float>{by, rank, parts.size(), false}, place,
                [=](const auto& sums) { put_sums(to, rank, sums); });
}

__global__ void __launch_bounds__(kTileThreads, 3)
    join_vectors(Frame frame, SketchPlan plan, std::uint32_t level) {
  const UnitOf at = find_unit(frame, plan.joined, blockIdx.x);
  const std::uint32_t across = 2 * level;  // tiles of vectors; half as many of a part's entries
  const auto unit = static_cast<std::uint32_t>(at.index);
  const Parts parts(frame, plan, at.job, level, unit / (level * across * 2));
  const bool second = unit / (level * across) % 2 != 0;
  const std::uint64_t rows = second ? parts.end - parts.middle : parts.middle - parts.begin;
  const TilePlace place{unit / across % level * kTileLines, unit % across * kTileLines, 0, rows};
  if (place.first_line >= rows || place.second_line >= parts.size()) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  if (level == 1) {
    join_tile<double>(frame(job.turn), job, frame, parts, second, place);
  } else {
    join_tile<float>(joint_of(frame, job, 1).vectors, job, frame, parts, second, place);
  }
}

/// Stores vectors at `turn` less half of what the sums say that they have too much.
struct PutStraight {
  const double* turn;
  double* to;
  std::uint64_t rank;
  __device__ void operator()(std::uint64_t of, std::uint64_t line, const double (&sums)[2]) const {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      const std::uint64_t at = of * rank + line + i;
      if (of < rank && line + i < rank) to[at] = (1.5 * turn[at]) - (0.5 * sums[i]);
    }
  }
};

/// A tile of the square of `turn`, of 64 vectors with 64 others; none beyond those that are there.
struct TurnTile {
  TilePlace place;
  bool there = false;

  __device__ TurnTile(const Frame& frame, const SketchPlan& plan, const SketchJob*& job) {
    const UnitOf at = find_unit(frame, plan.joined, blockIdx.x);
    job = &frame(plan.jobs)[at.job];
    const std::uint64_t rank = sketch_rank(frame, *job), strips = strips_of(rank);
    there = rank > kSharedRank && at.index < strips * strips;
    if (there) place = {at.index / strips * kTileLines, at.index % strips * kTileLines, 0, rank};
  }
};

/// gram = inner products of the vectors in `turn`.
__global__ void __launch_bounds__(kTileThreads) multiply_turn(Frame frame, SketchPlan plan) {
  const SketchJob* job = nullptr;
  const TurnTile tile(frame, plan, job);
  if (!tile.there) return;
  const std::uint64_t rank = sketch_rank(frame, *job);
  const Operand<double> vectors{frame(job->turn), rank, rank, true};
  multiply_tile_f64<true>(vectors, vectors, tile.place,
                          PutLines<double>{frame(job->gram), rank, rank});
}

/// What is left of the vectors times (3 - gram) / 2.
__global__ void __launch_bounds__(kTileThreads) straighten(Frame frame, SketchPlan plan) {
  const SketchJob* job = nullptr;
  const TurnTile tile(frame, plan, job);
  if (!tile.there) return;
  const std::uint64_t rank = sketch_rank(frame, *job);
  const double* const turn = frame(job->turn);
  multiply_tile_f64<false>(Operand<double>{turn, rank, rank, false},
                           Operand<double>{frame(job->gram), rank, rank, true}, tile.place,
                           PutStraight{turn, straight_turn(frame, *job), rank});
}

}  // namespace

void join_leaves(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  for (std::uint32_t level = 1; level <= join_levels(plan.leaves); ++level) {
    queue.launch_blocks(find_roots, plan.roots.units, kThreads, 0, frame, plan, level);
    queue.launch_blocks(form_vectors, plan.roots.units, kThreads, 0, frame, plan, level);
    queue.launch_blocks(join_vectors, plan.joined.units, kTileThreads, 0, frame, plan, level);
  }
  turn_from_tridiagonal(frame, plan, queue);
  queue.launch_blocks(multiply_turn, plan.joined.units, kTileThreads, 0, frame, plan);
  queue.launch_blocks(straighten, plan.joined.units, kTileThreads, 0, frame, plan);
}

}  // namespace atomo::cuda
