// SPDX-License-Identifier: Apache-2.0
/// Random-k: Floyd's algorithm (math/subset_sampling.hpp) with all draws at once, over all layers at once.
///
/// Mathematics: step d = 0 ... m - 1 draws t_d, uniform on [0, j_d], j_d = n - m + d, and marks
/// t_d, or j_d when t_d is marked already; the latter is a collision. The draws depend on no marks,
/// so only collisions are to be found. Before step d exactly these are marked:
///   (1) t_e for every e < d: step e marks t_e unless it is marked already;
///   (2) j_e for every e < d that collided.
/// For a step that does not collide marks t_e alone, one that does marks j_e alone, its t_e being
/// marked. Hence, with first(v) the least d that drew v, step d collides if and only if
///   first(t_d) < d, or t_d = j_e with e < d and step e collided.
/// The second is a chain of steps d > e > ... that ends, and soon: t_d lies among the d entries
/// j_0 ... j_(d-1) with probability d / (j_d + 1) < 1/2 (m <= n/2). In the end the marked entries
/// are all t_d and the j_d of all collisions.
///
/// first(v) is kept in a table of 2m slots of 8 bytes. v looks for its slot from
/// floor(v * slots / n) on: draws are uniform, so this spreads them as well as any hash would: at
/// most ln 2 = 0.7 draws a slot are expected anywhere. Half of the slots stay free, so a search
/// ends whatever was drawn.
///
/// Mapping, five launches each way:
///   draw     a warp 128 draws: marks t_d and notes who drew it first
///   collide  a warp 128 draws: marks j_d where d collides; a ballot gives 32 neighbouring marks
///   count    a warp a segment of 4,096 entries
///   rank     a block a job sums the segments up
///   gather or scatter, a warp a segment
///
/// Traffic an entry: 4 bytes read when encoding (an Inf or NaN anywhere in the layer must be
/// found), 4 written when decoding (`add` reads 4 and writes the sectors that change): the least
/// possible; 1/8 byte of marks written (zeros), read three times; 4 bytes of message a kept entry;
/// for each of the m draws 16 bytes of zeroed table and about four sectors at random places.
///
/// Shared memory: that of the scan. Workspace: 1/8 byte an entry, 16 a draw: at most 8 1/8 an
/// entry, at k = n/2.
///
/// Determinism: which slot a value finds depends on the order of threads, what is found for it
/// does not. Alignment: tensors as their entries, the message any.

#include "cuda/random_k.cuh"

#include "core/philox.hpp"
#include "cuda/cub.cuh"
#include "cuda/kept_entries.cuh"
#include "math/subset_sampling.hpp"

namespace atomo::cuda::random_k {
namespace {

constexpr std::uint64_t kDrawsOfUnit = 128;
/// Words of 32 marks of a segment.
constexpr std::uint64_t kSegmentMarks = kKeptSegment / 32;

/// False when there is nothing to decode, or a body that is refused.
__device__ bool takes_part(const Frame& frame, const Job& job, bool decodes) {
  const LayerState& layer = frame.layer(job.layer);
  return !decodes || (layer.decodes != 0 && layer.bytes == 4 * std::uint64_t{job.keep});
}

/// The draws of a job and its table of who drew what first.
class Draws {
 public:
  __device__ Draws(const Frame& frame, const Plan& plan, const Job& job)
      : slots_(frame(plan.slots) + job.first_slot),
        count_(job.slots),
        scale_(job.slot_scale),
        below_(job.n - job.draws),
        philox_(key_of(frame, job), Purpose::random_k) {}

  /// n - m: step d stands for entry n - m + d.
  [[nodiscard]] __device__ std::uint64_t below() const { return below_; }
  /// t_d.
  [[nodiscard]] __device__ std::uint64_t operator()(std::uint64_t d) const {
    const PhiloxWords w = philox_(d);
    return math::scale_draw(w[0] | (std::uint64_t{w[1]} << 32), w[2] | (std::uint64_t{w[3]} << 32),
                            below_ + d);
  }
  /// Notes that step d drew `value`. True when no step noted it before.
  __device__ bool note(std::uint64_t value, std::uint32_t d) const {
    const unsigned long long entry = ((value + 1) << 32) | ~d;
    for (std::uint64_t at = place(value);; at = next(at)) {
      const unsigned long long found = atomicCAS(&slots_[at], 0ull, entry);
      if (found == 0) return true;
      if (found >> 32 != value + 1) continue;
      atomicMax(&slots_[at], entry);
      return false;
    }
  }
  /// The least d with t_d = `value`, which was noted a launch before.
  [[nodiscard]] __device__ std::uint32_t first(std::uint64_t value) const {
    std::uint64_t at = place(value);
    while (slots_[at] >> 32 != value + 1) at = next(at);
    return ~static_cast<std::uint32_t>(slots_[at]);
  }
  [[nodiscard]] __device__ bool collides(std::uint32_t d) const {
    for (;;) {
      const std::uint64_t t = (*this)(d);
      if (first(t) < d) return true;
      if (t < below_ || t - below_ >= d) return false;
      d = static_cast<std::uint32_t>(t - below_);
    }
  }

 private:
  /// All workers draw the same entries.
  static __device__ Key key_of(const Frame& frame, const Job& job) {
    Key key = frame.key(job.layer);
    key.worker = 0;
    return key;
  }
  [[nodiscard]] __device__ std::uint64_t place(std::uint64_t value) const {
    return (value * scale_) >> 32;
  }
  [[nodiscard]] __device__ std::uint64_t next(std::uint64_t at) const {
    return at + 1 == count_ ? 0 : at + 1;
  }

  unsigned long long* slots_;
  std::uint64_t count_, scale_, below_;
  Philox philox_;
};

/// The draws of a unit that are this lane's: `visit(d, there)` for each, by all lanes together,
/// `there` saying whether there is such a draw.
template <typename Visit>
__device__ void for_each_draw(const Job& job, std::uint64_t unit, Visit visit) {
  for (std::uint64_t k = 0; k < kDrawsOfUnit; k += kLanes) {
    const std::uint64_t d = unit * kDrawsOfUnit + k + lane();
    visit(static_cast<std::uint32_t>(d), d < job.draws);
  }
}

__global__ void draw(Frame frame, Plan plan, bool decodes) {
  const UnitOf at = unit_of_warp(frame, plan.draws);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  if (!takes_part(frame, job, decodes)) return;
  const Draws draws(frame, plan, job);
  std::uint32_t* const words = frame(plan.words) + job.first_word;
  for_each_draw(job, at.index, [&](std::uint32_t d, bool there) {
    if (!there) return;
    const std::uint64_t t = draws(d);
    if (draws.note(t, d)) atomicOr(&words[t / 32], 1u << (t % 32));
  });
}

__global__ void collide(Frame frame, Plan plan, bool decodes) {
  const UnitOf at = unit_of_warp(frame, plan.draws);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  if (!takes_part(frame, job, decodes)) return;
  const Draws draws(frame, plan, job);
  std::uint32_t* const words = frame(plan.words) + job.first_word;
  for_each_draw(job, at.index, [&](std::uint32_t d, bool there) {
    const std::uint32_t bits = __ballot_sync(kAllLanes, there && draws.collides(d));
    const std::uint64_t j = draws.below() + d - lane();  // of lane 0
    const auto shift = static_cast<unsigned>(j % 32);
    // The marks stand in two words; those behind the last entry are zero.
    const std::uint32_t part = lane() == 0 ? bits << shift : shift == 0 ? 0 : bits >> (32 - shift);
    if (lane() < 2 && part != 0) atomicOr(&words[j / 32 + lane()], part);
  });
}

/// The marks of the entries that are kept.
struct KeptWords {
  const std::uint32_t* words;
  std::uint64_t n;
  bool complement;

  __device__ KeptWords(const Frame& frame, const Plan& plan, const Job& job)
      : words(frame(plan.words) + job.first_word), n(job.n), complement(job.complement != 0) {}
  /// The kept ones of entries 64 w to 64 w + 63.
  __device__ std::uint64_t operator()(std::uint64_t w) const {
    const std::uint64_t drawn = words[2 * w] | (std::uint64_t{words[2 * w + 1]} << 32);
    if (!complement) return drawn;
    const std::uint64_t left = n - 64 * w;
    return left >= 64 ? ~drawn : ~drawn & ((std::uint64_t{1} << left) - 1);
  }
};

__global__ void count(Frame frame, Plan plan, bool decodes) {
  const UnitOf at = unit_of_warp(frame, plan.segments);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  if (!takes_part(frame, job, decodes)) return;
  const KeptWords word(frame, plan, job);
  const SegmentRange range(job.n, at.index);
  std::uint32_t kept = 0;
  for (std::uint64_t i = range.begin + 64 * lane(); i < range.end; i += 64 * kLanes)
    kept += static_cast<std::uint32_t>(__popcll(word(i / 64)));
  kept = warp_sum(kept);
  if (lane() == 0) frame(plan.ranks)[at.number] = kept;
}

/// Sums the segments up. Refuses bodies of the wrong length.
__global__ void __launch_bounds__(kScanThreads) rank(Frame frame, Plan plan, bool decodes) {
  const Job& job = frame(plan.jobs)[blockIdx.x];
  if (!takes_part(frame, job, decodes)) {
    const LayerState& layer = frame.layer(job.layer);
    const bool is_short = layer.bytes < 4 * std::uint64_t{job.keep};
    if (threadIdx.x == 0 && layer.decodes != 0)
      frame.refuse(job.layer, is_short ? Status::truncated : Status::corrupt);
    return;
  }
  std::uint32_t* const ranks = frame(plan.ranks) + job.first_segment;
  scan_blockwide<std::uint32_t>(
      divide_up(job.n, kKeptSegment), [&](std::uint64_t i) { return ranks[i]; },
      [&](std::uint64_t i, std::uint32_t before) { ranks[i] = before; });
}

__global__ void gather(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.segments);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  const SegmentRange range(job.n, at.index);
  const Entries x = frame.entries(job.layer);
  std::byte* const values = frame.message + frame.layer(job.layer).body_at +
                            4 * std::uint64_t{frame(plan.ranks)[at.number]};
  bool finite = true;
  visit_kept(range, KeptWords(frame, plan, job),
             [&](std::uint64_t i, unsigned bits, std::uint32_t rank) {
               float v[4];
               x.four(i, range.end, v);
               for (unsigned k = 0; k < 4; ++k) {
                 finite = finite && is_finite(v[k]);
                 if (((bits >> k) & 1u) != 0)
                   store_word(values + 4 * std::uint64_t{rank++}, __float_as_uint(v[k]));
               }
             });
  note_finite(frame, job.layer, finite);
}

__global__ void scatter(Frame frame, Plan plan, DecodeInto into) {
  const UnitOf at = unit_of_warp(frame, plan.segments);
  if (!at) return;
  const Job& job = frame(plan.jobs)[at.job];
  if (!takes_part(frame, job, true)) return;
  const LayerState& layer = frame.layer(job.layer);
  const std::byte* const values =
      frame.message + layer.body_at + 4 * std::uint64_t{frame(plan.ranks)[at.number]};
  const float scale = job.scale;
  bool good = true, overflows = false;
  const auto value = [&](std::uint32_t rank) {
    const float v = __uint_as_float(load_word(values + 4 * std::uint64_t{rank}));
    good = good && is_finite(v);
    overflows = overflows || !is_finite(v * scale);
    return v * scale;
  };
  scatter_kept(SegmentRange(job.n, at.index), KeptWords(frame, plan, job), value, layer.y, into);
  if (!good) {
    frame.refuse(job.layer, Status::corrupt);
  } else if (overflows) {
    frame.notice(Status::overflow);
  }
}

void draw_kept(const Frame& frame, const Plan& plan, bool decodes, Queue& queue) {
  queue.launch_warps(draw, plan.draws.units, frame, plan, decodes);
  queue.launch_warps(collide, plan.draws.units, frame, plan, decodes);
  queue.launch_warps(count, plan.segments.units, frame, plan, decodes);
  queue.launch_blocks(rank, plan.count, kScanThreads, 0, frame, plan, decodes);
}

Job make_job(const LayerPlan& layer, std::uint32_t index) {
  Job job;
  const std::uint64_t n = layer.n, keep = layer.kind.params;
  job.n = n;
  job.layer = index;
  job.keep = static_cast<std::uint32_t>(keep);
  job.complement = keep > n / 2 ? 1 : 0;
  job.draws = static_cast<std::uint32_t>(job.complement != 0 ? n - keep : keep);
  job.slots = 2 * std::uint64_t{job.draws};
  job.slot_scale = (job.slots << 32) / n;
  job.scale = static_cast<float>(static_cast<double>(n) / static_cast<double>(keep));
  return job;
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::random_k>(layers);
  plan = {};
  if (count == 0) return;
  TableMaker<Job> jobs(layout, count);
  SplitMaker draws(layout, count), segments(layout, count);
  std::uint64_t slots = 0, count_segments = 0;
  for_each_of_method<MethodId::random_k>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    Job job = make_job(layer, number);
    job.first_slot = slots;
    job.first_word = count_segments * kSegmentMarks;
    job.first_segment = count_segments;
    jobs.add(job);
    draws.add(divide_up(job.draws, kDrawsOfUnit));
    segments.add(divide_up(job.n, kKeptSegment));
    slots += job.slots;
    count_segments += divide_up(job.n, kKeptSegment);
  });
  plan.count = jobs.count();
  plan.jobs = jobs.table();
  plan.draws = draws.split();
  plan.segments = segments.split();
  plan.slots = layout.zeroed<unsigned long long>(slots);
  plan.words = layout.zeroed<std::uint32_t>(count_segments * kSegmentMarks);
  plan.ranks = layout.scratch<std::uint32_t>(count_segments);
}

void write(const Frame& frame, const Plan& plan, Queue& queue) {
  draw_kept(frame, plan, false, queue);
  queue.launch_warps(gather, plan.segments.units, frame, plan);
}

void decode(const Frame& frame, const Plan& plan, DecodeInto into, Queue& queue) {
  draw_kept(frame, plan, true, queue);
  queue.launch_warps(scatter, plan.segments.units, frame, plan, into);
}

}  // namespace atomo::cuda::random_k
