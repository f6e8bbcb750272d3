// SPDX-License-Identifier: Apache-2.0
/// Random-k: k of n entries, or of blocks of 64, drawn segment by segment (math/subset_sampling.hpp),
/// over all layers at once.
///
/// Mathematics: what a segment keeps, and what those before it do, follow from one draw U by a
/// formula. Within a segment step d = 0 ... m - 1 of Floyd's algorithm draws t_d, uniform on [0,
/// j_d], j_d = L - m + d, and marks t_d, or j_d when t_d is marked already: a collision. 32 steps go
/// together. Step d of them collides if and only if
///   (1) t_d was marked before these steps,
///   (2) t_e = t_d in a step e < d of them: after step e it is marked, whatever e did, or
///   (3) t_d = j_e with e < d of them, and e collided: nothing but a collision marks j_e unless (2)
///       says so too, as draws before step e stay below j_e.
/// (3) is a chain of steps d > e > ... that ends, and soon: collisions are passed on until none is
/// new.
///
/// Mapping, one launch each way: a warp a segment of 4,096 entries or 64 blocks, which are as many. Lane l has the Philox block of
/// draws 2 l and 2 l + 1 of 64. The marks are in shared memory; lanes then take four neighbouring
/// entries each.
///
/// Traffic an entry: 4 bytes read when encoding (an Inf or NaN anywhere in the layer must be
/// found), 4 written when decoding (`add` reads 4 and writes the sectors that change), 4 bytes of
/// message a kept entry: the least possible.
///
/// Shared memory: 4 KiB. Workspace: none. Determinism: marks meet by atomicOr, no order matters.
/// Alignment: tensors as their entries, the message any.

#include "cuda/random_k.cuh"

#include "core/philox.hpp"
#include "cuda/kept_entries.cuh"
#include "cuda/row_sums.cuh"
#include "format/method_configs.hpp"
#include "math/subset_sampling.hpp"

namespace atomo::cuda::random_k {
namespace {

static_assert(kKeptSegment == kSampleSegment);
/// Words of 32 marks of a segment.
constexpr unsigned kWords = kSampleSegment / 32;

struct DrawnMarks {
  std::uint32_t word[kMaxWarps][kWords];
};

/// All workers' keys give the same.
__device__ Key shared_key(Key key) {
  key.worker = 0;
  return key;
}

/// What both ends draw for a layer.
class Sample {
 public:
  __device__ Sample(const Frame& frame, const Job& job)
      : draws_(shared_key(frame.key(job.layer)), Purpose::random_k) {
    const PhiloxWords w = draws_(0);
    const std::uint64_t units = job.units();
    shares_ = {units, job.keep, scale_offset(both(w[0], w[1]), both(w[2], w[3]), units),
               kSampleSegment >> job.unit_log};
  }

  [[nodiscard]] __device__ SampledSegment segment(std::uint64_t s) const { return shares_(s); }

  /// By a whole warp: marks what is drawn of segment s.
  __device__ void draw(std::uint64_t s, const SampledSegment& segment, std::uint32_t* words) const {
    for (unsigned w = lane(); w < kWords; w += kLanes) words[w] = 0;
    __syncwarp();
    const auto m = static_cast<std::uint32_t>(draws_of(segment.entries, segment.keep));
    const auto below = static_cast<std::uint32_t>(segment.entries) - m;
    for (std::uint32_t base = 0; base < m; base += 2 * kLanes) {
      const PhiloxWords block = draws_(first_draw_block(s) + base / 2 + lane());
      for (unsigned half = 0; half < 2; ++half) {
        const std::uint32_t first = base + half * kLanes, d = first + lane();
        const std::uint64_t word = draw_of_lane(block, half);
        const bool there = d < m;
        const auto t = static_cast<std::uint32_t>(scale_draw(word, below + d));
        mark_together(there, there ? t : ~lane(), below + first, words);
      }
    }
  }

 private:
  static __device__ std::uint64_t both(std::uint32_t low, std::uint32_t high) {
    return low | (std::uint64_t{high} << 32);
  }
  /// Draw 32 `half` + l of 64 for lane l.
  static __device__ std::uint64_t draw_of_lane(const PhiloxWords& block, unsigned half) {
    const int from = static_cast<int>((half * kLanes + lane()) / 2);
    std::uint32_t word[4];
    for (unsigned w = 0; w < 4; ++w) word[w] = __shfl_sync(kAllLanes, block[w], from);
    return lane() % 2 == 0 ? both(word[0], word[1]) : both(word[2], word[3]);
  }
  /// By a whole warp: the steps `first` + l of lanes l; `t` is what they drew, a number of its own
  /// where a lane is not `there`.
  static __device__ void mark_together(bool there, std::uint32_t t, std::uint32_t first,
                                       std::uint32_t* words) {
    const std::uint32_t same = __match_any_sync(kAllLanes, t) & ((1u << lane()) - 1);
    const bool marked = there && ((words[t / 32] >> (t % 32)) & 1u) != 0;
    __syncwarp();                             // all have read
    const std::uint32_t earlier = t - first;  // the lane whose j it is, where there is one
    const bool chained = there && earlier < lane();
    std::uint32_t collided = __ballot_sync(kAllLanes, there && (marked || same != 0)), before;
    do {
      before = collided;
      collided |= __ballot_sync(kAllLanes, chained && ((before >> earlier) & 1u) != 0);
    } while (collided != before);
    if (there) {
      const std::uint32_t mark = ((collided >> lane()) & 1u) != 0 ? first + lane() : t;
      atomicOr(&words[mark / 32], 1u << (mark % 32));
    }
    __syncwarp();
  }

  Philox draws_;
  SampleShares<std::uint64_t> shares_{};
};

/// The marks of the entries that a segment keeps.
class KeptWords {
 public:
  /// By a whole warp.
  __device__ KeptWords(const Sample& sample, const Job& job, std::uint64_t s,
                       const SampledSegment& segment)
      : words_(shared<DrawnMarks>().word[warp_in_block()]),
        first_(s * (kSampleSegment / 64)),
        n_(job.n),
        blocks_(job.unit_log != 0),
        entries_(static_cast<std::uint32_t>(segment.entries)),
        inverts_(draws_of(segment.entries, segment.keep) != segment.keep) {
    sample.draw(s, segment, words_);
  }
  /// The kept ones of entries 64 w to 64 w + 63 of the layer.
  __device__ std::uint64_t operator()(std::uint64_t w) const {
    const auto own = static_cast<std::uint32_t>(w - first_), left = entries_ - 64 * own;
    if (blocks_) {
      const bool drawn = ((words_[own / 32] >> (own % 32)) & 1u) != 0;
      if (drawn == inverts_) return 0;
      const std::uint64_t behind = n_ - 64 * w;
      return behind >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << behind) - 1;
    }
    const std::uint64_t drawn = words_[2 * own] | (std::uint64_t{words_[2 * own + 1]} << 32);
    if (!inverts_) return drawn;
    return left >= 64 ? ~drawn : ~drawn & ((std::uint64_t{1} << left) - 1);
  }

 private:
  std::uint32_t* words_;
  std::uint64_t first_, n_;
  bool blocks_;
  std::uint32_t entries_;
  bool inverts_;
};

/// Values of entries that a layer's last block does not have, where this segment sends them.
__device__ unsigned padding_of(const Job& job, const SegmentRange& range, const KeptWords& word) {
  const auto left = static_cast<unsigned>(job.n % RandomKConfig::kBlock);
  if (job.unit_log == 0 || range.end != job.n || left == 0) return 0;
  return word((job.n - 1) / 64) != 0 ? static_cast<unsigned>(RandomKConfig::kBlock) - left : 0;
}

__global__ void gather(Frame frame, Plan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  const Sample sample(frame, job);
  const SampledSegment segment = sample.segment(at.index);
  const KeptWords word(sample, job, at.index, segment);
  const SegmentRange range(job.n, at.index);
  const Entries x = frame.entries(job.layer);
  std::byte* const body = frame.message + frame.layer(job.layer).body_at;
  std::byte* const values = body + 4 * (segment.rank << job.unit_log);
  for (unsigned k = lane(); k < padding_of(job, range, word); k += kLanes)
    store_word(body + job.body_bytes() - 4 * (k + 1), 0);
  bool finite = true;
  visit_kept(range, word, [&](std::uint64_t i, unsigned bits, std::uint32_t rank) {
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

/// Adds the values of a segment that messages of one draw have; `of` has a bit for each of them.
__device__ void scatter_drawn(const Frames& frames, const Job& job, std::uint64_t index,
                              std::uint32_t of, DecodeInto into) {
  const Frame one = frames[static_cast<std::uint32_t>(__ffs(static_cast<int>(of)) - 1)];
  const Sample sample(one, job);
  const SampledSegment segment = sample.segment(index);
  const KeptWords word(sample, job, index, segment);
  const SegmentRange range(job.n, index);
  float* const y = frames.first.layer(job.layer).y;
  std::uint32_t broken = 0, overflows = 0;  // messages
  visit_kept(range, word, [&](std::uint64_t i, unsigned bits, std::uint32_t rank) {
    float sum[4];
    load_four(y, i, range.end, into, sum);
    const float old[4] = {sum[0], sum[1], sum[2], sum[3]};
    for (std::uint32_t left = of; left != 0;) {
      const std::uint32_t m = take_message(left);
      const Frame frame = frames[m];
      const std::byte* values = frame.message + frame.layer(job.layer).body_at +
                                4 * ((segment.rank << job.unit_log) + rank);
      for (unsigned k = 0; k < 4; ++k) {
        float v = 0;
        if (((bits >> k) & 1u) != 0) {
          v = __uint_as_float(load_word(values));
          values += 4;
          broken |= is_finite(v) ? 0 : 1u << m;
          v *= job.scale;
          overflows |= is_finite(v) ? 0 : 1u << m;
        }
        put(&sum[k], v, into);
      }
    }
    if (!into.add || differ(sum, old)) put_four(y, i, range.end, sum, {});
  });
  const unsigned padding = padding_of(job, range, word);
  for (std::uint32_t left = padding != 0 ? of : 0; left != 0;) {
    const std::uint32_t m = take_message(left);
    const std::byte* const end =
        frames[m].message + frames[m].layer(job.layer).body_at + job.body_bytes();
    for (unsigned k = lane(); k < padding; k += kLanes)
      broken |= load_word(end - 4 * (k + 1)) == 0 ? 0 : 1u << m;
  }
  for (std::uint32_t m = 0; m < frames.count; ++m) {
    if ((broken >> m & 1u) != 0) {
      frames[m].refuse(job.layer, Status::corrupt);
    } else if ((overflows >> m & 1u) != 0) {
      frames[m].notice(Status::overflow);
    }
  }
}

__global__ void scatter(Frames frames, Plan plan, DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  std::uint32_t sound = open_fixed_bodies(frames, job.layer, job.body_bytes(), Status::truncated);
  // Neighbours that draw alike go together: all of one step.
  while (sound != 0) {
    auto m = static_cast<std::uint32_t>(__ffs(static_cast<int>(sound)) - 1);
    const Key key = shared_key(frames[m].key(job.layer));
    std::uint32_t of = 0;
    for (; m < frames.count; ++m) {
      if ((sound >> m & 1u) == 0) continue;
      if (!(shared_key(frames[m].key(job.layer)) == key)) break;
      of |= 1u << m;
    }
    scatter_drawn(frames, job, at.index, of, into);
    sound &= ~of;
    __syncwarp();  // the marks were read
  }
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::random_k>(layers) +
                            count_of_method<MethodId::random_blocks>(layers);
  plan = {};
  if (count == 0) return;
  JobMaker<Job> jobs(layout, count);
  const auto add = [&](std::uint32_t number, const LayerPlan& layer, std::uint32_t unit_log) {
    Job job{.n = layer.n, .layer = number, .keep = layer.kind.params, .unit_log = unit_log};
    job.scale =
        static_cast<float>(static_cast<double>(job.units()) / static_cast<double>(job.keep));
    jobs.add(job, divide_up(layer.n, kSampleSegment));
  };
  for_each_of_method<MethodId::random_k>(
      layers, [&](std::uint32_t number, const LayerPlan& layer) { add(number, layer, 0); });
  for_each_of_method<MethodId::random_blocks>(
      layers, [&](std::uint32_t number, const LayerPlan& layer) { add(number, layer, 6); });
  plan.jobs = jobs.jobs();
}

ATOMO_LAUNCH_UNITS(Plan, gather, scatter)

}  // namespace atomo::cuda::random_k
