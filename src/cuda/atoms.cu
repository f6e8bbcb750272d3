// SPDX-License-Identifier: Apache-2.0
/// Amplitudes of dithered atoms.
///
/// Mathematics: rms = sqrt(N / L), N the sum of the squares of an atom's L entries, f64. Entry i of
/// a piece of up to 1,024 entries is added to lane i mod 32 in order; lanes are folded 16, 8, 4,
/// 2, 1 apart; an atom's pieces are added as a balanced tree. Squares of f32 are exact in f64.
///
/// Mapping: eight threads a piece, of which each keeps four of the format's lanes: it reads four
/// neighbouring entries at a time, and the first three folds are shuffles, the last two are its
/// own. A warp works on four pieces side by side, and goes on for at least 2,048 entries; atoms
/// of more than 1,024 entries leave their pieces' sums, and a warp an atom adds these up. What a
/// tree lacks counts as +0, which no sum of squares feels. The amplitudes of pairs are their
/// decomposition's (svd.cu, sketch.cu): a warp gives 256 of them out to the price search.
///
/// A sketch needs the norms of the tensor's rows before, and adds those of what it leaves of some
/// rows after: both kernels run once more for these.
///
/// Traffic an entry: read once, 4 bytes or 2 (the least possible); written 8 bytes an atom, and as
/// many a piece of a long one. Of a sketch's residual, the rows that were computed.
///
/// Shared memory: none. Determinism: one fixed tree; the largest amplitude is an integer maximum.
/// Alignment: tensors as their entries; 16 bytes are read at once where the address allows it.

#include "cuda/atoms.cuh"
#include "cuda/grid_form.cuh"

namespace atomo::cuda::atoms {
namespace {

using coding::kPieceEntries;

constexpr unsigned kThreads = kLanes / kSquaredTogether;  // of a piece

struct SummedPiece {
  std::uint64_t atom = 0, from = 0, entries = 0;  ///< first entry and entries, within the atom
};

__device__ SummedPiece piece_of(const Job& job, std::uint64_t i) {
  SummedPiece s{i, 0, 0};
  if (job.pieces > 1) {
    s.atom = i / job.pieces;
    s.from = i % job.pieces * kPieceEntries;
  }
  if (s.atom >= job.layout.count) return s;
  const std::uint64_t left = job.layout.length_of(s.atom) - s.from;
  s.entries = left < kPieceEntries ? left : kPieceEntries;
  return s;
}

/// A whole warp sums squares, eight threads a piece; the first of the eight has the sum.
__device__ double sum_squares(const Entries& x, std::uint64_t first, std::uint64_t entries) {
  double sum[4] = {};
  const auto add = [&](const float(&v)[4]) {
    for (unsigned k = 0; k < 4; ++k) sum[k] += static_cast<double>(v[k]) * v[k];
  };
  constexpr unsigned kLoads = 4;  // under way together
  const float* const at = static_cast<const float*>(x.x) + first;
  const bool whole = x.dtype == DType::f32 && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  std::uint64_t i = 4 * (lane() % kThreads);
  for (; whole && i + 32 * (kLoads - 1) + 4 <= entries; i += 32 * kLoads) {
    float4 v[kLoads];
#pragma unroll
    for (unsigned load = 0; load < kLoads; ++load)
      v[load] = *reinterpret_cast<const float4*>(at + i + 32 * load);
#pragma unroll
    for (unsigned load = 0; load < kLoads; ++load)
      add({v[load].x, v[load].y, v[load].z, v[load].w});
  }
  for (; i < entries; i += 32) {
    float v[4];
    x.four(first + i, first + entries, v);
    add(v);
  }
  for (unsigned apart = kThreads / 2; apart != 0; apart /= 2) {
    for (double& s : sum) s += __shfl_down_sync(kAllLanes, s, apart, kThreads);
  }
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

__device__ double larger(double a, double b) {  // a NaN is larger than anything
  return b > a || b != b ? b : a;
}

__device__ double warp_largest(double value) {
  for (unsigned step = kLanes / 2; step != 0; step /= 2)
    value = larger(value, __shfl_xor_sync(kAllLanes, value, static_cast<int>(step)));
  return value;
}

/// What an atom has, or what a row of the rest has beside what is there.
__device__ double put_amplitude(const Frame& frame, const Plan& plan, const Job& job,
                                std::uint64_t atom, double sum, std::uint64_t entries, bool rest) {
  double& to = frame(plan.amplitudes)[job.first_atom + atom];
  const double rms = sqrt(sum / static_cast<double>(entries));
  to = rest ? to + rms : rms;
  return to;
}

__device__ bool was_measured(const Frame& frame, const Plan& plan, const Job& job,
                             std::uint64_t row) {
  return frame(frame(plan.sketches.jobs)[job.sketch].measured)[row] != 0;
}

/// By a whole warp that has written one of `units` parts of a job's amplitudes, the largest of
/// which is `largest`, in every lane. A sketch's rows are not final before the `rest`.
__device__ void offer(const Frame& frame, const Plan& plan, std::uint32_t number,
                      std::uint64_t units, double largest, bool rest) {
  const Job& job = frame(plan.jobs)[number];
  const bool is_rest = job.part == BodyPart::rows;
  if (!rest && job.sketch != Job::kNoSketch && lane() == 0) {
    if (is_finite(largest)) note_row_rms(frame, plan.sketches, job.sketch, largest);
    if (is_rest && !is_finite(largest)) frame.mark_non_finite(job.layer);
  }
  if (rest == is_rest) offer_amplitudes(frame, plan.price, number, units, largest);
}

/// `rest`: of the rows that sketches leave, those that were computed.
__global__ void sum_pieces(Frame frame, Plan plan, bool rest) {
  const UnitOf at = unit_of_warp(frame, rest ? plan.rest_sums : plan.sums);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  const Entries x = rest ? entries_of(frame, job, 0) : frame.entries(job.layer);
  const std::uint64_t count = pieces_of_unit(job.layout.length);
  double largest = 0;
  for (std::uint64_t i = at.index * count; i < (at.index + 1) * count; i += kSquaredTogether) {
    const std::uint64_t number = i + lane() / kThreads;
    const SummedPiece s = piece_of(job, number);
    const bool skips = s.entries == 0 || (rest && !was_measured(frame, plan, job, s.atom));
    const double sum = sum_squares(x, s.atom * job.layout.length + s.from, skips ? 0 : s.entries);
    if (lane() % kThreads != 0 || s.entries == 0) continue;
    if (job.pieces > 1) {
      frame(plan.piece_sums)[job.first_sum + number] = sum;
    } else {
      largest = larger(largest, put_amplitude(frame, plan, job, number, sum, s.entries, rest));
    }
  }
  if (job.pieces == 1) {
    const std::uint64_t units = divide_up(job.layout.count, count);
    offer(frame, plan, at.job, units, warp_largest(largest), rest);
  }
}

/// A warp an atom: sums of 32 neighbours become one, in place, until one is left.
__global__ void sum_trees(Frame frame, Plan plan, bool rest) {
  const UnitOf at = unit_of_warp(frame, rest ? plan.rest_trees : plan.trees);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  double* const sums = frame(plan.piece_sums) + job.first_sum + at.index * job.pieces;
  for (std::uint32_t left = job.pieces; left > 1; left = (left + kLanes - 1) / kLanes) {
    for (std::uint32_t i = 0; i < left; i += kLanes) {
      double sum = i + lane() < left ? sums[i + lane()] : 0.0;
      for (unsigned apart = 1; apart < kLanes; apart *= 2)
        sum += __shfl_down_sync(kAllLanes, sum, apart);
      __syncwarp();
      if (lane() == 0) sums[i / kLanes] = sum;
      __syncwarp();
    }
  }
  double rms = 0;
  if (lane() == 0)
    rms = put_amplitude(frame, plan, job, at.index, sums[0], job.layout.length, rest);
  rms = __shfl_sync(kAllLanes, rms, 0);
  offer(frame, plan, at.job, job.layout.count, rms, rest);
}

/// A sketch that looks for nothing in this message.
__device__ bool is_absent(const Frame& frame, const Plan& plan, const Job& job) {
  return sketch_rank(frame, frame(plan.sketches.jobs)[job.source]) == 0;
}

/// Every warp offers the largest amplitude of its pairs.
__global__ void offer_largest(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.offers);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  const double* const amplitudes = frame(plan.amplitudes) + job.first_atom;
  if (job.part == BodyPart::pairs && lane() == 0 && is_absent(frame, plan, job))
    frame(plan.price.demands)[at.job].absent = 1;
  double largest = 0;
  for (std::uint64_t k = at.index * kOfferedPairs + lane();
       k < (at.index + 1) * kOfferedPairs && k < job.layout.count; k += kLanes)
    largest = amplitudes[k] > largest ? amplitudes[k] : largest;
  const std::uint64_t units = divide_up(job.layout.count, kOfferedPairs);
  offer_amplitudes(frame, plan.price, at.job, units, warp_max(largest));
}

}  // namespace

void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  factorise(frame, plan.svd, queue);
  queue.launch_warps(sum_pieces, plan.sums.units, frame, plan, false);
  queue.launch_warps(sum_trees, plan.trees.units, frame, plan, false);
  decompose(frame, plan.sketches, queue);
  queue.launch_warps(sum_pieces, plan.rest_sums.units, frame, plan, true);
  queue.launch_warps(sum_trees, plan.rest_trees.units, frame, plan, true);
  queue.launch_warps(offer_largest, plan.offers.units, frame, plan);
  offer_grids(frame, plan.grids, plan.price, queue);
}

void search_prices(const Frame& frame, const Plan& plan, Queue& queue) {
  search_price(frame, plan.price, plan.grids, queue);
}

void find_price(const Frame& frame, const Plan& plan, Queue& queue) {
  search_prices(frame, plan, queue);
  price_grids(frame, plan.grids, plan.price, queue);
  choose_forms(frame, plan.price, queue);
  settle_grids(frame, plan.grids, plan.price, queue);
}

}  // namespace atomo::cuda::atoms
