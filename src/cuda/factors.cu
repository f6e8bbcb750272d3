// SPDX-License-Identifier: Apache-2.0
/// Bodies of singular pairs with f32 factors.
///
/// The mathematics: ATOMO's Algorithm 1. p_k = min(1, t sigma_k) with sum p_k = keep as integers of
/// 2^-32 (water_filling.hpp); pairs are drawn systematically in chunks of 256, a lane a column; a
/// kept pair's second vector is divided by its probability.
///
/// Mapping: three launches.
///   rank     a thread a pair counts the pairs before it: m^2 comparisons of values in the cache
///   choose   a warp a layer: one lane finds the water level, which is a sum in order, then all
///            lanes draw, eight neighbouring places each. 3 m steps beside a decomposition of some
///            9 m^3.
///   write    a warp for 1,024 entries of a vector; or of a tensor that is no matrix, which is
///            sent as it is
///
/// Traffic in bytes an entry of a vector: 4 read, 4 written to the staged body, which `assemble`
/// copies.
///
/// Shared memory: 256 bytes. Determinism: sums in order, the rest are integers. Alignment: tensors
/// as their entries; bodies are staged.

#include "cuda/factors.cuh"

#include <algorithm>

#include "core/philox.hpp"
#include "cuda/entries.cuh"
#include "format/atom_body.hpp"
#include "format/factors_body.hpp"
#include "format/matrix.hpp"
#include "math/selection.hpp"
#include "math/water_filling.hpp"

namespace atomo::cuda::factors {
namespace {

using coding::kPieceEntries;

constexpr std::uint32_t kChunk = kSelectionChunk;

__host__ __device__ constexpr std::uint64_t pieces_of(std::uint64_t entries) {
  return divide_up(entries, kPieceEntries);
}

// ---- rank

__global__ void rank_pairs(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.ranks);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  const double* const sigma = frame(plan.sigma) + job.first_pair;
  const std::uint64_t k = at.index * kLanes + lane();
  if (k >= job.pairs) return;
  const double own = sigma[k];
  std::uint64_t before = 0;
  for (std::uint64_t i = 0; i < job.pairs; ++i)
    before += sigma[i] > own || (sigma[i] == own && i < k) ? 1 : 0;
  frame(plan.order)[job.first_pair + before] = static_cast<std::uint32_t>(k);
}

// ---- choose

struct ChosenBits {
  std::uint32_t of[kMaxWarps][kChunk / kLanes];
};

/// One lane finds the probabilities of a job's pairs.
__device__ void fill_probabilities(const Job& job, const double* sigma, const std::uint32_t* order,
                                   std::uint64_t* probabilities) {
  std::uint64_t count = 0;
  for (std::uint64_t k = 0; k < job.pairs; ++k) {
    probabilities[k] = 0;
    count += sigma[k] > 0 ? 1 : 0;
  }
  math::fill_water(
      count, job.keep, [&](std::size_t i) { return sigma[order[i]]; },
      [&](std::size_t i) -> std::uint64_t& { return probabilities[order[i]]; });
}

/// By a whole warp: bits of the pairs of a chunk that are kept, zero before.
__device__ void draw_chunk(const std::uint64_t* probabilities, std::uint64_t count,
                           std::uint32_t start, std::uint32_t* bits) {
  constexpr std::uint32_t kOwn = kChunk / kLanes;
  std::uint64_t own[kOwn];
  std::uint32_t sum = 0, total;
  for (std::uint32_t i = 0; i < kOwn; ++i) {
    const std::uint32_t k = i * kSelectionColumns + lane();
    own[i] = k < count ? probabilities[k] : 0;
    sum += static_cast<std::uint32_t>(own[i]);
  }
  std::uint32_t before = start + warp_exclusive_sum(sum, total);
  for (std::uint32_t i = 0; i < kOwn; ++i) {
    const std::uint32_t k = i * kSelectionColumns + lane();
    const std::uint32_t next = before + static_cast<std::uint32_t>(own[i]);
    if (next < before || own[i] == format::kCertainPair)
      atomicOr(&bits[k / kLanes], 1u << k % kLanes);
    before = next;
  }
}

/// A whole warp draws the numbers of the kept pairs; returns how many.
__device__ std::uint64_t draw_kept(const Job& job, const std::uint64_t* probabilities,
                                   const Philox& draws, std::uint32_t* kept) {
  std::uint32_t* const bits = shared<ChosenBits>().of[warp_in_block()];
  std::uint64_t count = 0;
  for (std::uint64_t first = 0; first < job.pairs; first += kChunk) {
    if (lane() < kChunk / kLanes) bits[lane()] = 0;
    __syncwarp();
    draw_chunk(probabilities + first, job.pairs - first, draws(first / kChunk)[0], bits);
    __syncwarp();
    for (std::uint32_t w = 0; w < kChunk / kLanes; ++w) {
      const std::uint32_t word = bits[w];
      const auto before = static_cast<std::uint32_t>(__popc(word & ((1u << lane()) - 1)));
      if ((word >> lane() & 1u) != 0)
        kept[count + before] = static_cast<std::uint32_t>(first + w * kLanes + lane());
      count += static_cast<std::uint32_t>(__popc(word));
    }
    __syncwarp();
  }
  return count;
}

/// Lengths, and the fronts of bodies.
__global__ void choose_pairs(Frame frame, Plan plan) {
  const std::uint64_t number = warp_in_grid();
  if (number >= plan.pieces.jobs) return;
  const Job& job = frame(plan.jobs)[number];
  std::uint64_t* const probabilities = frame(plan.probabilities) + job.first_pair;
  if (lane() == 0 && job.matrix != 0) {
    fill_probabilities(job, frame(plan.sigma) + job.first_pair, frame(plan.order) + job.first_pair,
                       probabilities);
  }
  __syncwarp();
  const std::uint64_t kept =
      draw_kept(job, probabilities, Philox(frame.key(job.layer), Purpose::select_pair),
                frame(plan.kept) + job.first_pair);
  if (lane() != 0) return;
  std::uint64_t bytes = sizeof(float) * frame.info(job.layer).n;
  if (job.matrix != 0) {
    const MatrixShape shape = frame(plan.svd.jobs)[job.svd].shape();
    bytes =
        kept == 0 ? 0 : format::kFactorsHeadBytes + 4 * kept * (shape.shorter() + shape.longer());
    std::uint32_t* const body = frame(job.body);
    body[0] = static_cast<std::uint32_t>(kept);
    body[1] = static_cast<std::uint32_t>(exponent_of(frame(plan.svd.states)[job.svd]));
  }
  frame(plan.states)[number].kept = kept;
  StagedBody& staged = frame(frame.plan.staged)[job.layer];
  staged = {};
  staged.prefix = job.body.at;
  staged.prefix_bytes = bytes;
  frame.layer(job.layer).bytes = bytes;
}

// ---- write

/// A tensor that is no matrix.
__device__ void write_raw(const Frame& frame, const Job& job, std::uint64_t piece) {
  const Entries x = frame.entries(job.layer);
  const std::uint64_t n = frame.info(job.layer).n, first = piece * kPieceEntries;
  const std::uint64_t end = n - first < kPieceEntries ? n : first + kPieceEntries;
  bool finite = true;
  for (std::uint64_t i = first + lane(); i < end; i += kLanes) {
    const float v = x(i);
    finite = finite && is_finite(v);
    frame(job.body)[i] = __float_as_uint(v);
  }
  if (!finite) frame.mark_non_finite(job.layer);
}

/// A piece of one vector of a kept pair.
__device__ void write_vector(const Frame& frame, const Plan& plan, const Job& job,
                             std::uint64_t kept, std::uint64_t piece) {
  const SvdJob& svd = frame(plan.svd.jobs)[job.svd];
  const std::uint64_t m = svd.shape().shorter(), n = svd.shape().longer();
  const std::uint64_t of_pair = pieces_of(m) + pieces_of(n), rank = piece / of_pair;
  if (rank >= kept) return;
  const std::uint64_t k = frame(plan.kept)[job.first_pair + rank], part = piece % of_pair;
  const bool second = part >= pieces_of(m);
  const std::uint64_t entries = second ? n : m;
  const std::uint64_t first = kPieceEntries * (second ? part - pieces_of(m) : part);
  const std::uint64_t end = entries - first < kPieceEntries ? entries : first + kPieceEntries;
  const double weight =
      second ? format::pair_scale(frame(plan.probabilities)[job.first_pair + k]) : 1.0;
  const float* const from = frame(second ? svd.longer : svd.shorter) + k * entries;
  std::uint32_t* const to =
      frame(job.body) + format::kFactorsHeadBytes / 4 + (second ? kept * m + rank * n : rank * m);
  for (std::uint64_t i = first + lane(); i < end; i += kLanes)
    to[i] = __float_as_uint(static_cast<float>(static_cast<double>(from[i]) * weight));
}

__global__ void write_factors(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.pieces);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  if (job.matrix == 0) {
    write_raw(frame, job, at.index);
  } else {
    write_vector(frame, plan, job, frame(plan.states)[at.job].kept, at.index);
  }
}

// ---- plan

/// Pairs of a layer, 0 when it is no matrix.
std::uint64_t pairs_of(const LayerPlan& layer) {
  const Shape& shape = layer.kind.shape;
  return format::is_matrix(shape) ? format::matrix_view(shape).shorter() : 0;
}

/// Adds layers one by one, in both runs of a plan.
class FactorsPlanner {
 public:
  FactorsPlanner(Layout& layout, std::size_t jobs, std::size_t matrices, std::uint64_t pairs,
                 Plan& plan)
      : layout_(layout),
        plan_(plan),
        jobs_(layout, jobs),
        svd_(layout, matrices),
        ranks_(layout, jobs),
        pieces_(layout, jobs) {
    plan.sigma = layout.scratch<double>(pairs);
    plan.order = layout.scratch<std::uint32_t>(pairs);
    plan.probabilities = layout.scratch<std::uint64_t>(pairs);
    plan.kept = layout.scratch<std::uint32_t>(pairs);
  }

  void add(const LayerPlan& layer, std::uint32_t number) {
    Job job;
    job.body = layout_.scratch<std::uint32_t>(divide_up(layer.max_body_bytes, 4));
    job.layer = number;
    job.pairs = pairs_of(layer);
    job.first_pair = pairs_;
    job.keep = layer.price_rule.keep;
    if (job.pairs > 0) {
      const MatrixShape shape = format::matrix_view(layer.kind.shape);
      job.matrix = 1;
      job.svd = matrices_++;
      svd_.add(shape, number, {plan_.sigma.at + pairs_ * sizeof(double)}, 1.0);
      pieces_.add(format::max_kept_pairs(shape, job.keep) *
                  (pieces_of(shape.shorter()) + pieces_of(shape.longer())));
    } else {
      pieces_.add(pieces_of(layer.n));
    }
    ranks_.add(divide_up(job.pairs, kLanes));
    pairs_ += job.pairs;
    jobs_.add(job);
  }

  void finish() {
    plan_.jobs = jobs_.table();
    plan_.svd = svd_.finish();
    plan_.ranks = ranks_.split();
    plan_.pieces = pieces_.split();
    plan_.states = layout_.zeroed<State>(jobs_.count());
  }

 private:
  Layout& layout_;
  Plan& plan_;
  TableMaker<Job> jobs_;
  SvdPlanner svd_;
  SplitMaker ranks_, pieces_;
  std::uint32_t matrices_ = 0;
  std::uint64_t pairs_ = 0;
};

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  plan = {};
  constexpr MethodId kId = MethodId::factors;
  const std::size_t jobs = count_of_method<kId>(layers);
  if (jobs == 0) return;
  std::size_t matrices = 0;
  std::uint64_t pairs = 0;
  for_each_of_method<kId>(layers, [&](std::uint32_t, const LayerPlan& layer) {
    matrices += pairs_of(layer) > 0 ? 1 : 0;
    pairs += pairs_of(layer);
  });
  FactorsPlanner planner(layout, jobs, matrices, pairs, plan);
  for_each_of_method<kId>(
      layers, [&](std::uint32_t number, const LayerPlan& layer) { planner.add(layer, number); });
  planner.finish();
}

void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  factorise(frame, plan.svd, queue);
}

void size(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_warps(rank_pairs, plan.ranks.units, frame, plan);
  queue.launch_warps(choose_pairs, plan.pieces.jobs, frame, plan);
  queue.launch_warps(write_factors, plan.pieces.units, frame, plan);
}

}  // namespace atomo::cuda::factors
