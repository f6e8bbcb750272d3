// SPDX-License-Identifier: Apache-2.0
/// Sums of |x| or x^2 and maxima of |x| over spans of a layer, or sums of |x| on both sides of 0, one
/// launch for all of them.
///
/// Order of a sum (f64, where |x| and x^2 are exact): segments of 1,024 entries, entry i added to
/// lane i mod 32 in ascending i, the lanes folded 32 -> 16 -> ... -> 1; then a binary tree over the
/// segments, neighbours first, an odd last one carried up.
///
/// Mapping: a warp a leaf, four segments, lane = lane. Of 32 neighbouring leaves the last to finish
/// (a ticket) joins their sums, a lane a leaf, in five levels of the tree, and of 32 such the last
/// again, up to the span's root: one launch whatever the length, a warp more than its leaf for one
/// leaf in 32. Which warp joins does not change what is joined.
///
/// Traffic an element: 4 bytes read (2 for halves), the least; 24 bytes written and read again a
/// leaf. No shared memory. Tensors are read at the alignment of their entries, 32 neighbours at
/// once.

#include "cuda/reduce.cuh"

#include "cuda/entries.cuh"
#include "math/stochastic_level.hpp"

namespace atomo::cuda {
namespace {

constexpr unsigned kSegment = 1024, kLeafSegments = 4, kJoin = 32;
constexpr unsigned kLeaf = kLeafSegments * kSegment;
constexpr unsigned kBatch = 16;  ///< loads of a lane under way at once

enum class Term { none, magnitude, square, sides };

/// Lane 0's answer: the lanes' sums folded.
__device__ double fold_lanes(double sum) {
  for (unsigned half = kLanes / 2; half != 0; half /= 2)
    sum += __shfl_down_sync(kAllLanes, sum, half);
  return sum;
}

/// Lane 0's answer: the sums of the first `count` lanes in the order of the tree.
__device__ double join_lanes(double sum, unsigned count) {
  for (unsigned step = 1; step < kJoin; step *= 2) {
    const double right = __shfl_down_sync(kAllLanes, sum, step);
    if (lane() + step < count) sum += right;
  }
  return sum;
}

/// Lane 0's answer: the sum of whole numbers.
__device__ std::uint64_t add_lanes(std::uint64_t number) {
  for (unsigned half = kLanes / 2; half != 0; half /= 2)
    number += __shfl_down_sync(kAllLanes, number, half);
  return number;
}

struct Leaf {
  ReducePart part;  ///< lane 0's sum; the maximum of all lanes in each
  bool finite;      ///< what this lane read
};

/// Sums of four segments, those of two neighbours first.
struct PairSums {
  double left = 0, right = 0;
  __device__ void add(unsigned segment, double sum) {
    if (segment < kLeafSegments / 2) {
      left += sum;
    } else {
      right += sum;
    }
  }
  [[nodiscard]] __device__ double total() const { return left + right; }
};

template <Term kTerm>
__device__ Leaf read_leaf(const Entries& entries, std::uint64_t first, std::uint64_t end) {
  PairSums sums, sums_below;
  std::uint32_t largest = 0;  // of sides: the entries below 0
  bool finite = true;
  for (unsigned s = 0; s < kLeafSegments; ++s) {
    const std::uint64_t begin = first + std::uint64_t{s} * kSegment;
    if (begin >= end) break;
    double sum = 0, below = 0;
    for (unsigned row = 0; row < kSegment / kLanes; row += kBatch) {
      float x[kBatch];
      finite &= load_entries(entries, begin + row * kLanes + lane(), kLanes, end, x);
#pragma unroll
      for (unsigned k = 0; k < kBatch; ++k) {
        const double v = x[k];
        if constexpr (kTerm == Term::sides) {
          sum += x[k] < 0 ? 0.0 : v;
          below += x[k] < 0 ? -v : 0.0;
          largest += x[k] < 0 ? 1 : 0;
          continue;
        }
        const std::uint32_t magnitude = __float_as_uint(x[k]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
        if constexpr (kTerm == Term::magnitude) sum += std::fabs(v);
        if constexpr (kTerm == Term::square) sum += v * v;
      }
    }
    if constexpr (kTerm != Term::none) sum = fold_lanes(sum);
    if constexpr (kTerm == Term::sides) below = fold_lanes(below);
    sums.add(s, sum);
    if constexpr (kTerm == Term::sides) sums_below.add(s, below);
  }
  const std::uint32_t of_lanes = kTerm == Term::sides ? __reduce_add_sync(kAllLanes, largest)
                                                      : __reduce_max_sync(kAllLanes, largest);
  return {{sums.total(), sums_below.total(), of_lanes}, finite};
}

__device__ Leaf read_leaf(ReduceRule rule, const Entries& entries, std::uint64_t first,
                          std::uint64_t end) {
  if (rule == ReduceRule::max_abs) return read_leaf<Term::none>(entries, first, end);
  if (rule == ReduceRule::mean_abs) return read_leaf<Term::magnitude>(entries, first, end);
  if (rule == ReduceRule::side_means) return read_leaf<Term::sides>(entries, first, end);
  return read_leaf<Term::square>(entries, first, end);
}

__device__ float result_of(const ReduceJob& job, const ReducePart& part) {
  const float largest = __uint_as_float(static_cast<std::uint32_t>(part.largest));
  switch (job.rule) {
    case ReduceRule::max_abs:
      return largest;
    case ReduceRule::norm:
      return math::norm_from_squares(part.sum);
    case ReduceRule::clipped_max:
      return math::clipped_norm(largest, part.sum, job.n, job.clip);
    case ReduceRule::mean_abs:
      return math::mean_magnitude(part.sum, job.n);
    case ReduceRule::side_means:  // two results
      break;
  }
  return 0;
}

/// Leaves `part`, number `index` of `group`'s `count`, for the group's last warp; true for that
/// warp, in whose lane 0 `part` is then the group's.
__device__ bool join_group(ReduceRule rule, ReducePart* group, unsigned index, unsigned count,
                           std::uint32_t* ticket, ReducePart& part) {
  std::uint32_t before = 0;
  if (lane() == 0) {
    group[index] = part;
    before = take_ticket(ticket);
  }
  before = __shfl_sync(kAllLanes, before, 0);
  if (before + 1 != count) return false;
  __syncwarp();  // a shuffle orders no memory
  ReducePart mine{0, 0, 0};
  if (lane() < count) {  // past this SM's L1, which may hold them as they were
    mine.sum = __ldcg(&group[lane()].sum);
    mine.below = __ldcg(&group[lane()].below);
    mine.largest = __ldcg(&group[lane()].largest);
  }
  part.sum = join_lanes(mine.sum, count);
  if (rule == ReduceRule::side_means) {
    part.below = join_lanes(mine.below, count);
    part.largest = add_lanes(mine.largest);
  } else {
    part.largest = __reduce_max_sync(kAllLanes, static_cast<std::uint32_t>(mine.largest));
  }
  return true;
}

__global__ void reduce_kernel(const Frame frame, const ReducePlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.jobs.units);
  if (!at) return;
  const ReduceJob& job = frame(plan.jobs.table)[at.job];
  const std::uint64_t span = at.index / job.leaves, begin = span * job.span;
  const std::uint64_t end = job.n - begin < job.span ? job.n : begin + job.span;
  std::uint64_t index = at.index % job.leaves;

  const Leaf leaf = read_leaf(job.rule, frame.entries(job.layer), begin + index * kLeaf, end);
  note_finite(frame, job.layer, leaf.finite);

  ReducePart part = leaf.part;
  std::uint64_t count = divide_up(end - begin, kLeaf), stride = job.leaves;
  ReducePart* parts = frame(plan.parts) + job.first_part + span * job.parts;
  std::uint32_t* tickets = frame(plan.tickets) + job.first_ticket + span * job.tickets;
  while (count > 1) {
    const std::uint64_t group = index / kJoin, left = count - group * kJoin;
    const auto size = static_cast<unsigned>(left < kJoin ? left : kJoin);
    if (!join_group(job.rule, parts + group * kJoin, static_cast<unsigned>(index % kJoin), size,
                    tickets + group, part))
      return;
    parts += stride;
    stride = divide_up(stride, kJoin);
    tickets += stride;
    index = group;
    count = divide_up(count, kJoin);
  }
  if (lane() != 0) return;
  float* const results = frame(plan.results) + job.first_result;
  if (job.rule == ReduceRule::side_means) {
    results[2 * span] = math::mean_magnitude(part.sum, end - begin - part.largest);
    results[2 * span + 1] = math::mean_magnitude(part.below, part.largest);
  } else {
    results[span] = result_of(job, part);
  }
}

}  // namespace

std::uint64_t ReducePlanner::add(ReduceJob job) noexcept {
  const std::uint64_t spans = divide_up(job.n, job.span), first_result = results_;
  job.leaves = divide_up(job.span < job.n ? job.span : job.n, kLeaf);
  for (std::uint64_t count = job.leaves; count > 1; count = divide_up(count, kJoin)) {
    job.parts += count;
    job.tickets += divide_up(count, kJoin);
  }
  job.first_part = parts_;
  job.first_ticket = tickets_;
  job.first_result = results_;
  parts_ += spans * job.parts;
  tickets_ += spans * job.tickets;
  results_ += job.rule == ReduceRule::side_means ? 2 * spans : spans;
  jobs_.add(job, (spans - 1) * job.leaves + divide_up(job.n - (spans - 1) * job.span, kLeaf));
  return first_result;
}

ReducePlan ReducePlanner::finish() noexcept {
  ReducePlan plan;
  plan.jobs = jobs_.jobs();
  plan.parts = layout_.scratch<ReducePart>(parts_);
  plan.tickets = layout_.zeroed<std::uint32_t>(tickets_);
  plan.results = layout_.scratch<float>(results_);
  return plan;
}

void reduce(const Frame& frame, const ReducePlan& plan, Queue& queue) {
  queue.launch_warps(reduce_kernel, plan.jobs.units.units, frame, plan);
}

}  // namespace atomo::cuda
