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
/// draws 2 l and 2 l + 1 of 64. The marks are in shared memory, and how many are kept before each
/// word of them; lanes then take four neighbouring entries each, of four rows of 128 at a time.
///
/// Traffic an entry: 4 bytes read when encoding (an Inf or NaN anywhere in the layer must be
/// found), 4 written when decoding (`add` reads 4 and writes the sectors that change), 4 bytes of
/// message a kept entry: the least possible.
///
/// Shared memory: 6 KiB. Workspace: none. Determinism: marks meet by atomicOr, no order matters.
/// Alignment: tensors as their entries, the message any.

#include "cuda/random_k.cuh"

#include "core/philox.hpp"
#include "cuda/cub.cuh"
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
  std::uint16_t before[kMaxWarps][kWords];
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

/// The marks of the entries that a segment keeps, and how many are kept before each word of them, in
/// shared memory.
class KeptWords {
 public:
  /// By a whole warp.
  __device__ KeptWords(const Sample& sample, const Job& job, std::uint64_t s,
                       const SampledSegment& segment)
      : words_(shared<DrawnMarks>().word[warp_in_block()]),
        before_(shared<DrawnMarks>().before[warp_in_block()]) {
    sample.draw(s, segment, words_);
    const bool inverts = draws_of(segment.entries, segment.keep) != segment.keep;
    const std::uint64_t left = job.n - s * kSampleSegment;
    const auto entries = static_cast<std::uint32_t>(left < kSampleSegment ? left : kSampleSegment);
    constexpr unsigned kOwn = kWords / kLanes;
    const std::uint32_t units = job.unit_log != 0 ? words_[lane() / (kLanes / 2)] : 0;
    std::uint32_t own[kOwn], count = 0, total;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      const unsigned w = kOwn * lane() + k;
      std::uint32_t drawn = words_[w];
      if (job.unit_log != 0) drawn = (units >> (w / 2 % 32) & 1u) != 0 ? ~0u : 0u;
      own[k] = (inverts ? ~drawn : drawn) & there(entries, w);
      count += static_cast<std::uint32_t>(__popc(own[k]));
    }
    std::uint32_t before = warp_exclusive_sum(count, total);
    __syncwarp();  // all have read the units
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      words_[kOwn * lane() + k] = own[k];
      before_[kOwn * lane() + k] = static_cast<std::uint16_t>(before);
      before += static_cast<std::uint32_t>(__popc(own[k]));
    }
    __syncwarp();
  }
  /// Of the entries 128 `row` + 4 l to + 3 of the segment, lane l's: which are kept, and how many of
  /// the segment before them.
  struct Four {
    unsigned bits;
    std::uint32_t rank;
  };
  [[nodiscard]] __device__ Four four(unsigned row) const {
    const unsigned w = kSumRow / 32 * row + lane() / 8, shift = 4 * (lane() % 8);
    const std::uint32_t word = words_[w];
    return {word >> shift & 15u,
            before_[w] + static_cast<std::uint32_t>(__popc(word & ((1u << shift) - 1)))};
  }
  /// Whether an entry of the segment is kept.
  [[nodiscard]] __device__ bool keeps(std::uint64_t entry) const {
    const auto at = static_cast<unsigned>(entry % kSampleSegment);
    return (words_[at / 32] >> (at % 32) & 1u) != 0;
  }

 private:
  /// The bits of word w that are entries.
  static __device__ std::uint32_t there(std::uint32_t entries, unsigned w) {
    if (entries >= 32 * (w + 1)) return ~0u;
    return entries <= 32 * w ? 0u : (1u << (entries - 32 * w)) - 1;
  }

  std::uint32_t* words_;
  std::uint16_t* before_;
};

/// Values of entries that a layer's last block does not have, where this segment sends them.
__device__ unsigned padding_of(const Job& job, const SegmentRange& range, const KeptWords& kept) {
  const auto left = static_cast<unsigned>(job.n % RandomKConfig::kBlock);
  if (job.unit_log == 0 || range.end != job.n || left == 0) return 0;
  return kept.keeps(job.n - 1) ? static_cast<unsigned>(RandomKConfig::kBlock) - left : 0;
}

__global__ void gather(Frame frame, Plan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  const Sample sample(frame, job);
  const SampledSegment segment = sample.segment(at.index);
  const KeptWords kept(sample, job, at.index, segment);
  const SegmentRange range(job.n, at.index);
  const Entries x = frame.entries(job.layer);
  std::byte* const body = frame.message + frame.layer(job.layer).body_at;
  std::byte* const values = body + 4 * (segment.rank << job.unit_log);
  for (unsigned k = lane(); k < padding_of(job, range, kept); k += kLanes)
    store_word(body + job.body_bytes() - 4 * (k + 1), 0);
  constexpr unsigned kTogether = 4;  // rows whose loads are under way at once
  bool finite = true;
#pragma unroll 1
  for (unsigned row = 0; range.begin + row * kSumRow < range.end; row += kTogether) {
    float v[kTogether][4];
#pragma unroll
    for (unsigned r = 0; r < kTogether; ++r)
      x.four(range.begin + (row + r) * kSumRow + 4 * lane(), range.end, v[r]);
#pragma unroll
    for (unsigned r = 0; r < kTogether; ++r) {
      finite &= drop_non_finite(v[r]);
      const KeptWords::Four four = kept.four(row + r);
      if (four.bits == 0) continue;
      std::byte* to = values + 4 * std::uint64_t{four.rank};
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        if ((four.bits >> k & 1u) == 0) continue;
        store_word(to, __float_as_uint(v[r][k]));
        to += 4;
      }
    }
  }
  note_finite(frame, job.layer, finite);
}

/// Of what is added to lane's entries of the rows of one turn.
struct Findings {
  std::uint32_t broken = 0, overflows = 0;  ///< a bit a message
};

/// Adds the values that a message has for the rows from `row` on.
template <bool kAdd>
__device__ void add_rows(RowSums<kSumRows, kAdd>& sums, const KeptWords& kept, unsigned row,
                         const std::byte* values, float scale, std::uint32_t message,
                         Findings& found) {
#pragma unroll
  for (unsigned r = 0; r < kSumRows; ++r) {
    const KeptWords::Four four = kept.four(row + r);
    float v[4] = {0, 0, 0, 0};
    if (four.bits != 0) {
      const std::byte* from = values + 4 * std::uint64_t{four.rank};
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        if ((four.bits >> k & 1u) == 0) continue;
        const float sent = __uint_as_float(load_word(from));
        from += 4;
        v[k] = sent * scale;
        if (is_finite(v[k])) continue;
        if (is_finite(sent)) {
          found.overflows |= message;
        } else {
          found.broken |= message;
          v[k] = 0;  // the other messages' sum stays what it is
        }
      }
    }
    sums.put(r, v);
  }
}

/// The values of a segment that messages of one draw have, into the output; `of` has a bit for each
/// of them. Sums that change nothing are not stored: most are, where few entries are kept.
template <bool kAdd>
__device__ Findings put_rows(const Frames& frames, const Job& job, const KeptWords& kept,
                             const SegmentRange& range, std::uint64_t rank, std::uint32_t of,
                             DecodeInto into) {
  float* const y = frames.first.layer(job.layer).y;
  Findings found;
#pragma unroll 1
  for (unsigned row = 0; range.begin + row * kSumRow < range.end; row += kSumRows) {
    RowSums<kSumRows, kAdd> sums(y, range.begin + row * kSumRow, range.end, into);
    const auto add_messages = [&] {
#pragma unroll 1
      for (std::uint32_t left = of; left != 0;) {
        const std::uint32_t m = take_message(left);
        const Frame frame = frames[m];
        add_rows(sums, kept, row,
                 frame.message + frame.layer(job.layer).body_at + 4 * (rank << job.unit_log),
                 job.scale, 1u << m, found);
      }
    };
    if constexpr (kAdd) {
      const RowSums<kSumRows, kAdd> old = sums;
      add_messages();
      sums.store_changed(old);
    } else {
      add_messages();
      sums.store();
    }
  }
  return found;
}

/// A segment of messages of one draw.
__device__ void scatter_drawn(const Frames& frames, const Job& job, std::uint64_t index,
                              std::uint32_t of, DecodeInto into) {
  const Frame one = frames[static_cast<std::uint32_t>(__ffs(static_cast<int>(of)) - 1)];
  const Sample sample(one, job);
  const SampledSegment segment = sample.segment(index);
  const KeptWords kept(sample, job, index, segment);
  const SegmentRange range(job.n, index);
  Findings found;
  with_add(into, [&](auto adds) {
    found = put_rows<decltype(adds)::value>(frames, job, kept, range, segment.rank, of, into);
  });
  const unsigned padding = padding_of(job, range, kept);
  for (std::uint32_t left = padding != 0 ? of : 0; left != 0;) {
    const std::uint32_t m = take_message(left);
    const std::byte* const end =
        frames[m].message + frames[m].layer(job.layer).body_at + job.body_bytes();
    for (unsigned k = lane(); k < padding; k += kLanes)
      found.broken |= load_word(end - 4 * (k + 1)) == 0 ? 0 : 1u << m;
  }
  for (std::uint32_t m = 0; m < frames.count; ++m) {
    if ((found.broken >> m & 1u) != 0) {
      frames[m].refuse(job.layer, Status::corrupt);
    } else if ((found.overflows >> m & 1u) != 0) {
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
