// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Which atoms of a layer are kept, on the device (marks.hpp has the section's layout): the device
/// functions from which the operations that have marks (atoms, pairs, top-k) make their kernels.
///
/// Mapping: a warp handles a segment of 4,096 atoms, each lane the marks of 128 of them; gaps are
/// read 1,024 bits at a time, 32 a lane. A block sums a job's segments up.
///
/// Encoding: the operation sets the bits of `words` (zero at first) and calls `measure_segment` for
/// each segment once its bits are there; then, a launch later, a scanning block a job calls
/// `layout_marks`, after which `states[job]` and the segments' `rank` and `bit` are final; then, a
/// launch later, `write_segment` for each segment. Decoding: `count_segment` for each segment;
/// then, a launch later, `open_marks` by a scanning block a job; then, a launch later,
/// `load_segment` for each segment.

#include "coding/marks.hpp"
#include "cuda/bit_stream.cuh"
#include "cuda/cub.cuh"
#include "cuda/frame.cuh"

namespace atomo::cuda {

/// Words of a segment.
inline constexpr std::uint64_t kSegmentWords = coding::kMarksSegment / 64;

struct MarksJob {
  std::uint32_t layer = 0;
  std::uint64_t atoms = 0;
  std::uint64_t first_word = 0;  ///< of the job's words, kSegmentWords a segment
  std::uint64_t first_segment = 0;
};

/// One a job; zeroed.
struct MarksState {
  unsigned long long gap_bits[coding::kMaxRiceBits + 1] = {};  ///< at every parameter
  unsigned long long kept = 0;
  std::uint64_t bytes = 0;  ///< of the section
  std::uint32_t mode = 0;
};

/// Numbers of a segment each stand side by side, so that a block that sums them up reads whole lines of memory.
struct MarksPlan {
  Table<MarksJob> jobs;
  Split segments;                ///< a unit a segment
  Scratch<std::uint64_t> words;  ///< zeroed; bit i % 64 of word i / 64: atom i is kept
  Scratch<MarksState> states;
  Scratch<std::uint32_t> kept;   ///< of a unit
  Scratch<std::uint64_t> ranks;  ///< of a unit: kept atoms of the job before it
  Scratch<std::uint64_t> bits;   ///< of a unit: where its gaps begin in the stream of gaps
  /// Of a unit: bits of its gaps, as stated where a section is read. Where one is written there are so many for each
  /// parameter, one parameter behind the other.
  Scratch<std::uint32_t> gap_bits;
};

/// Plans marks for jobs added in order.
class MarksPlanner {
 public:
  MarksPlanner(Layout& layout, std::size_t jobs) noexcept
      : layout_(layout), jobs_(layout, jobs), segments_(layout, jobs) {}

  void add(std::uint32_t layer, std::uint64_t atoms) noexcept {
    const std::uint64_t segments = coding::marks_segments(atoms);
    jobs_.add({layer, atoms, count_segments_ * kSegmentWords, count_segments_});
    segments_.add(segments);
    count_segments_ += segments;
  }

  /// Of sections that are written.
  [[nodiscard]] MarksPlan finish_written() noexcept {
    return finish(true, coding::kMaxRiceBits + 1);
  }
  /// Of sections that are read. `words`: whether there is room for what is read.
  [[nodiscard]] MarksPlan finish_read(bool words = true) noexcept { return finish(words, 1); }

 private:
  MarksPlan finish(bool words, unsigned parameters) noexcept {
    return {jobs_.table(),
            segments_.split(),
            layout_.zeroed<std::uint64_t>(words ? count_segments_ * kSegmentWords : 0),
            layout_.zeroed<MarksState>(jobs_.count()),
            layout_.scratch<std::uint32_t>(count_segments_),
            layout_.scratch<std::uint64_t>(count_segments_),
            layout_.scratch<std::uint64_t>(count_segments_),
            layout_.scratch<std::uint32_t>(count_segments_ * parameters)};
  }

  Layout& layout_;
  TableMaker<MarksJob> jobs_;
  SplitMaker segments_;
  std::uint64_t count_segments_ = 0;
};

/// Where the words of segment `at.index` of job `at.job` are.
__device__ inline std::uint64_t* segment_words(const Frame& frame, const MarksPlan& plan,
                                               const UnitOf& at) {
  return frame(plan.words) + frame(plan.jobs)[at.job].first_word + at.index * kSegmentWords;
}

/// The bits of segments' gaps under parameter k, of a section that is written.
__device__ inline std::uint32_t* gap_bits_of(const Frame& frame, const MarksPlan& plan,
                                             unsigned k) {
  return frame(plan.gap_bits) + k * plan.segments.units;
}

namespace marks {

/// The marks of a lane: 128 atoms of a segment.
struct LaneMarks {
  std::uint64_t word[2];
  std::uint32_t next;  ///< the atom of the segment behind the last one kept before these

  [[nodiscard]] __device__ std::uint32_t count() const {
    return static_cast<std::uint32_t>(__popcll(word[0]) + __popcll(word[1]));
  }
};

/// A whole warp calls it: every lane takes its own of the segment's words.
__device__ inline LaneMarks load_lane(const std::uint64_t* words) {
  const std::uint64_t low = words[2 * lane()], high = words[2 * lane() + 1];
  std::uint32_t behind = 0;
  if (high != 0) {
    behind = 128 * lane() + 128 - static_cast<std::uint32_t>(__clzll(static_cast<long long>(high)));
  } else if (low != 0) {
    behind = 128 * lane() + 64 - static_cast<std::uint32_t>(__clzll(static_cast<long long>(low)));
  }
  for (unsigned step = 1; step < kLanes; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAllLanes, behind, step);
    if (lane() >= step && other > behind) behind = other;
  }
  const std::uint32_t next = __shfl_up_sync(kAllLanes, behind, 1);
  return {{low, high}, lane() == 0 ? 0 : next};
}

/// Calls `visit(gap)` for the first of every run of kept atoms of the lane; the others have no gap. A run that comes from
/// the words before has gap 0.
template <typename Visit>
__device__ inline void for_each_first_gap(const LaneMarks& marks, Visit visit) {
  std::uint32_t next = marks.next;
  for (unsigned w = 0; w < 2; ++w) {
    const std::uint64_t word = marks.word[w];
    const std::uint32_t base = 128 * lane() + 64 * w;
    std::uint64_t firsts = word & ~(word << 1), lasts = word & ~(word >> 1);
    for (; firsts != 0; firsts &= firsts - 1, lasts &= lasts - 1) {
      visit(base + static_cast<std::uint32_t>(__ffsll(static_cast<long long>(firsts))) - 1 - next);
      next = base + static_cast<std::uint32_t>(__ffsll(static_cast<long long>(lasts)));
    }
  }
}

/// Calls `visit(gap)` for every kept atom of the lane.
template <typename Visit>
__device__ inline void for_each_gap(const LaneMarks& marks, Visit visit) {
  std::uint32_t next = marks.next;
  for (unsigned w = 0; w < 2; ++w) {
    for (std::uint64_t left = marks.word[w]; left != 0; left &= left - 1) {
      const std::uint32_t at = 128 * lane() + 64 * w +
                               static_cast<std::uint32_t>(__ffsll(static_cast<long long>(left))) -
                               1;
      visit(at - next);
      next = at + 1;
    }
  }
}

__device__ inline void set_bits(std::uint32_t* word, std::uint32_t bits) {
  if (bits != 0) atomicOr(word, bits);
}

/// A segment of the bit map, which begins at bit 8.
__device__ inline void write_map(const LaneMarks& marks, std::uint64_t segment,
                                 std::uint32_t* section) {
  std::uint32_t* const out = section + segment * (coding::kMarksSegment / 32) + 4 * lane();
  std::uint64_t carried = 0;
  for (unsigned w = 0; w < 2; ++w) {
    set_bits(out + 2 * w, static_cast<std::uint32_t>((marks.word[w] << 8) | carried));
    set_bits(out + 2 * w + 1, static_cast<std::uint32_t>(marks.word[w] >> 24));
    carried = marks.word[w] >> 56;
  }
  set_bits(out + 4, static_cast<std::uint32_t>(carried));
}

/// The gaps of a segment under parameter k, and its head. `stream` is the first bit of its gaps.
__device__ inline void write_gaps(const LaneMarks& marks, unsigned k, std::uint64_t stream,
                                  std::uint32_t* section) {
  std::uint32_t bits = (1 + k) * marks.count(), total;
  for_each_first_gap(marks, [&](std::uint32_t gap) { bits += gap >> k; });
  BitSetter out(section, stream + warp_exclusive_sum(bits, total));
  for_each_gap(marks, [&](std::uint32_t gap) {
    std::uint32_t ones = gap >> k;
    for (; ones >= 31; ones -= 31) out.put(0x7FFFFFFFu, 31);
    out.put((1u << ones) - 1, ones + 1);
    out.put(gap & ((1u << k) - 1), k);
  });
  out.flush();
}

}  // namespace marks

/// By a whole warp: counts what segment `at` keeps and what its gaps take, and leaves both beside those of its
/// neighbours. Lane k returns the bits of the gaps under parameter k, the lane behind those how many are kept. The
/// segment's words must be written (by this warp, or a launch before).
__device__ inline std::uint32_t count_gaps(const Frame& frame, const MarksPlan& plan,
                                           const UnitOf& at) {
  constexpr unsigned kParameters = coding::kMaxRiceBits + 1;
  __syncwarp();  // words that this warp wrote are seen by all of it
  const marks::LaneMarks own = marks::load_lane(segment_words(frame, plan, at));
  std::uint32_t ones[kParameters] = {};
  marks::for_each_first_gap(own, [&](std::uint32_t gap) {
    for (unsigned k = 0; k < kParameters; ++k) ones[k] += gap >> k;
  });
  const std::uint32_t kept = warp_sum(own.count());
  std::uint32_t mine = kept;
  for (unsigned k = 0; k < kParameters; ++k) {
    const std::uint32_t sum = warp_sum(ones[k]) + (1 + k) * kept;
    if (lane() == k) mine = sum;
  }
  if (lane() < kParameters) gap_bits_of(frame, plan, lane())[at.number] = mine;
  if (lane() == 0) frame(plan.kept)[at.number] = kept;
  return lane() <= kParameters ? mine : 0;
}

/// Adds what the lanes of a warp counted of segments to their job's.
__device__ inline void add_counted(MarksState& state, std::uint32_t mine) {
  if (mine == 0) return;
  if (lane() <= coding::kMaxRiceBits) atomicAdd(&state.gap_bits[lane()], mine);
  if (lane() == coding::kMaxRiceBits + 1) atomicAdd(&state.kept, mine);
}

/// By a whole warp: `count_gaps` of segment `at`, added to the job's.
__device__ inline void measure_segment(const Frame& frame, const MarksPlan& plan,
                                       const UnitOf& at) {
  const std::uint32_t mine = count_gaps(frame, plan, at);
  add_counted(frame(plan.states)[at.job], mine);
}

namespace marks {
/// What the warps of a block counted of a segment each, and whose it is.
struct BlockCounts {
  std::uint32_t counts[kMaxWarps][coding::kMaxRiceBits + 2];
  std::uint32_t job[kMaxWarps];
};
}  // namespace marks

/// By all warps of a block, a segment each: the same for segment `at`, none where `at` is no unit. Sums of neighbours are added to
/// their job's together, since all that segments add meets in one place of memory.
__device__ inline void measure_segments(const Frame& frame, const MarksPlan& plan,
                                        const UnitOf& at) {
  auto& memory = shared<marks::BlockCounts>();
  const std::uint32_t mine = at ? count_gaps(frame, plan, at) : 0;
  if (lane() < coding::kMaxRiceBits + 2) memory.counts[warp_in_block()][lane()] = mine;
  if (lane() == 0) memory.job[warp_in_block()] = at ? at.job : ~0u;
  __syncthreads();
  if (warp_in_block() != 0) return;
  std::uint32_t sum = 0;
  const unsigned warps = blockDim.x / kLanes;
  for (unsigned w = 0; w < warps && memory.job[w] != ~0u; ++w) {
    if (lane() < coding::kMaxRiceBits + 2) sum += memory.counts[w][lane()];
    if (w + 1 < warps && memory.job[w + 1] == memory.job[w]) continue;
    add_counted(frame(plan.states)[memory.job[w]], sum);
    sum = 0;
  }
}

/// By a block of kThreads: `before[i]` becomes the sum of `counts` before segment i. Returns that of all.
template <unsigned kThreads>
__device__ inline std::uint64_t sum_segments(std::uint64_t segments, const std::uint32_t* counts,
                                             std::uint64_t* before) {
  return scan_blockwide<std::uint64_t, kThreads>(
      segments, [&](std::uint64_t i) { return counts[i]; },
      [&](std::uint64_t i, std::uint64_t sum) { before[i] = sum; });
}

/// By a block of kThreads: chooses the shorter section (marks.cpp, plan_marks) and sums ranks
/// and bits up. Afterwards, in every thread, `states[job]` is complete. `map_only`: the bit map
/// whatever the gaps take (top-k from half of the entries on).
template <unsigned kThreads = kScanThreads>
__device__ inline void layout_marks(const Frame& frame, const MarksPlan& plan, std::uint32_t job,
                                    bool map_only = false) {
  const MarksJob& of = frame(plan.jobs)[job];
  const std::uint64_t segments = coding::marks_segments(of.atoms);
  MarksState& state = frame(plan.states)[job];
  std::uint32_t mode = 0;
  std::uint64_t bytes = coding::max_marks_bytes(of.atoms);
  for (unsigned k = 0; k <= coding::kMaxRiceBits && !map_only; ++k) {
    const std::uint64_t with = (1 + 4 * segments + (state.gap_bits[k] + 7) / 8 + 1) / 2 * 2;
    if (with < bytes) {
      mode = 1 + k;
      bytes = with;
    }
  }
  if (threadIdx.x == 0) {
    state.mode = mode;
    state.bytes = bytes;
  }
  sum_segments<kThreads>(segments, frame(plan.kept) + of.first_segment,
                         frame(plan.ranks) + of.first_segment);
  if (mode != 0) {
    sum_segments<kThreads>(segments, gap_bits_of(frame, plan, mode - 1) + of.first_segment,
                           frame(plan.bits) + of.first_segment);
  }
  __syncthreads();  // ranks and state are seen by the whole block
}

/// By a whole warp: writes segment `at`'s part of the section into `section`, staging memory that is
/// zero and aligned to 4 bytes; neighbours share words, so bits are set with atomicOr.
__device__ inline void write_segment(const Frame& frame, const MarksPlan& plan, const UnitOf& at,
                                     std::uint32_t* section) {
  const marks::LaneMarks own = marks::load_lane(segment_words(frame, plan, at));
  const std::uint32_t mode = frame(plan.states)[at.job].mode;
  if (mode == 0) return marks::write_map(own, at.index, section);
  const std::uint64_t segments = coding::marks_segments(frame(plan.jobs)[at.job].atoms);
  if (lane() == 0) {
    if (at.index == 0) marks::set_bits(section, mode);
    const std::uint32_t bits = gap_bits_of(frame, plan, mode - 1)[at.number];
    const std::uint32_t head = frame(plan.kept)[at.number] | (bits << 16);
    marks::set_bits(section + at.index, head << 8);
    marks::set_bits(section + at.index + 1, head >> 24);
  }
  marks::write_gaps(own, mode - 1, 8 + 32 * segments + frame(plan.bits)[at.number], section);
}

namespace marks {

/// The lane's part of a segment of `size` atoms of the bit map.
__device__ inline void load_map(const BitView& body, std::uint64_t segment, std::uint32_t size,
                                std::uint64_t (&word)[2]) {
  for (unsigned w = 0; w < 2; ++w) {
    const std::uint32_t first = 128 * lane() + 64 * w;
    const std::uint32_t bits = size > first ? size - first : 0;
    word[w] = bits == 0 ? 0 : body.peek64(8 + segment * coding::kMarksSegment + first);
    if (bits < 64) word[w] &= (std::uint64_t{1} << bits) - 1;
  }
}

/// Atoms of segment `index`.
__device__ inline std::uint32_t segment_size(const MarksJob& job, std::uint64_t index) {
  const std::uint64_t left = job.atoms - index * coding::kMarksSegment;
  return static_cast<std::uint32_t>(left < coding::kMarksSegment ? left : coding::kMarksSegment);
}

/// A lane's 32 bits of a stream of gaps, and what it sees of those behind them.
struct GapWindow {
  std::uint64_t bits;
  std::uint32_t own;  ///< bits that are this lane's and the stream's
  unsigned k;

  /// The words that end their ones in the lane's bits, the first of which begins `skip` bits in:
  /// `visit(ones, low)` for each. `open` becomes the ones of a word that goes on behind the lane.
  /// Returns how many of the bits behind it are the last word's.
  template <typename Visit>
  __device__ std::uint32_t walk(std::uint32_t skip, std::uint32_t& open, Visit visit) const {
    const std::uint32_t valid = own == 32 ? ~0u : (1u << own) - 1;
    const std::uint32_t zeros = ~static_cast<std::uint32_t>(bits) & valid;
    std::uint32_t at = skip;
    open = 0;
    while (at < own) {
      const std::uint32_t left = zeros >> at;
      if (left == 0) {
        open = own - at;
        return 0;
      }
      const std::uint32_t ones = static_cast<std::uint32_t>(__ffs(static_cast<int>(left))) - 1;
      at += ones + 1;
      visit(ones, static_cast<std::uint32_t>(bits >> at) & ((1u << k) - 1));
      at += k;
    }
    return at - own;
  }
};

/// Reads a segment's gaps: `bits` bits of `body` from `first` on, `count` words under parameter k.
/// Sets the bits of `marks`, which is zero. Where a lane's first word begins is known only once the
/// lane before has been read: all guess 0 and read again until nothing changes, which words make
/// likely at once (a wrong start falls into step within a few words).
__device__ inline bool read_gaps(const BitView& body, std::uint64_t first, std::uint32_t bits,
                                 std::uint32_t count, unsigned k, std::uint32_t size,
                                 std::uint32_t* marks) {
  std::uint32_t rest = 0, open = 0, at = 0, found = 0;
  bool good = true;
  for (std::uint32_t from = 0; from < bits; from += 32 * kLanes) {
    const std::uint32_t begin = from + 32 * lane(), left = begin < bits ? bits - begin : 0;
    const GapWindow window{body.peek64(first + begin), left < 32 ? left : 32, k};
    std::uint32_t skip = lane() == 0 ? rest : 0, leave, lane_open;
    for (bool again = true; again;) {
      leave = window.walk(skip, lane_open, [](std::uint32_t, std::uint32_t) {});
      const std::uint32_t before = __shfl_up_sync(kAllLanes, leave, 1);
      again = __any_sync(kAllLanes, lane() != 0 && before != skip);
      if (lane() != 0) skip = before;
    }
    std::uint32_t span = 0, words = 0, total_span, total_words;
    window.walk(skip, lane_open, [&](std::uint32_t ones, std::uint32_t low) {
      span += (ones << k) + low + 1;
      ++words;
    });
    span += lane_open << k;
    std::uint32_t place = at + warp_exclusive_sum(span, total_span);
    window.walk(skip, lane_open, [&](std::uint32_t ones, std::uint32_t low) {
      place += (ones << k) + low;
      if (place < size) {
        atomicOr(&marks[place / 32], 1u << (place % 32));
      } else {
        good = false;
      }
      ++place;
    });
    total_words = warp_sum(words);
    at += total_span;
    found += total_words;
    const int last =
        static_cast<int>(((bits - from < 32 * kLanes ? bits - from : 32 * kLanes) - 1) / 32);
    rest = __shfl_sync(kAllLanes, leave, last);
    open = __shfl_sync(kAllLanes, lane_open, last);
  }
  return __all_sync(kAllLanes, good) != 0 && rest == 0 && open == 0 && found == count;
}

struct SegmentBits {
  std::uint32_t word[kMaxWarps][2 * kSegmentWords];
};

}  // namespace marks

/// By a whole warp: what segment `at` states that it keeps, for `open_marks`. Any bytes will do.
__device__ inline void count_segment(const Frame& frame, const MarksPlan& plan, const UnitOf& at,
                                     const std::byte* body, std::uint64_t body_bytes) {
  const BitView view(body, body_bytes);
  std::uint32_t kept, bits = 0;
  if ((view.peek32(0) & 0xFFu) == 0) {
    std::uint64_t word[2];
    marks::load_map(view, at.index, marks::segment_size(frame(plan.jobs)[at.job], at.index), word);
    kept = warp_sum(static_cast<std::uint32_t>(__popcll(word[0]) + __popcll(word[1])));
  } else {
    const std::uint32_t head = view.peek32(8 + 32 * at.index);
    kept = head & 0xFFFFu;
    bits = head >> 16;
  }
  if (lane() != 0) return;
  frame(plan.kept)[at.number] = kept;
  frame(plan.gap_bits)[at.number] = bits;
}

/// By a block of kThreads: checks frame and padding of the section at the front of `body`
/// (MarksReader::open), fills `states[job]` and the segments' rank and bit. False, in every thread,
/// when the bytes are no section of so many atoms.
template <unsigned kThreads = kScanThreads>
__device__ inline bool open_marks(const Frame& frame, const MarksPlan& plan, std::uint32_t job,
                                  const std::byte* body, std::uint64_t body_bytes) {
  const MarksJob& of = frame(plan.jobs)[job];
  const std::uint64_t segments = coding::marks_segments(of.atoms);
  const BitView view(body, body_bytes);
  const std::uint32_t mode = view.peek32(0) & 0xFFu;
  if (body_bytes == 0 || of.atoms == 0 || mode > 1 + coding::kMaxRiceBits) return false;
  const std::uint64_t least = mode == 0 ? coding::max_marks_bytes(of.atoms) : 1 + 4 * segments;
  if (body_bytes < least) return false;
  const std::uint64_t kept = sum_segments<kThreads>(segments, frame(plan.kept) + of.first_segment,
                                                    frame(plan.ranks) + of.first_segment);
  const std::uint64_t bits = sum_segments<kThreads>(
      segments, frame(plan.gap_bits) + of.first_segment, frame(plan.bits) + of.first_segment);
  const std::uint64_t end = mode == 0 ? 8 + of.atoms : 8 + 32 * segments + bits;  // in bits
  const std::uint64_t bytes = ((end + 7) / 8 + 1) / 2 * 2;
  if (threadIdx.x == 0) {
    MarksState& state = frame(plan.states)[job];
    state.kept = kept;
    state.bytes = bytes;
    state.mode = mode;
  }
  __syncthreads();  // ranks and state are seen by the whole block
  return bytes <= body_bytes && kept != 0 && view.zero(end, bytes);
}

/// By a whole warp: reads a segment, of which each lane has the marks of 128 atoms in `word`. False,
/// in every lane, when the stream is no sequence of gaps of the stated count and length.
__device__ inline bool load_segment(const Frame& frame, const MarksPlan& plan, const UnitOf& at,
                                    const std::byte* body, std::uint64_t body_bytes,
                                    std::uint64_t (&word)[2]) {
  const MarksJob& job = frame(plan.jobs)[at.job];
  const std::uint32_t size = marks::segment_size(job, at.index);
  const std::uint32_t mode = frame(plan.states)[at.job].mode;
  const BitView view(body, body_bytes);
  if (mode == 0) {
    marks::load_map(view, at.index, size, word);
    return true;
  }
  std::uint32_t* const bits = shared<marks::SegmentBits>().word[warp_in_block()];
  __syncwarp();  // of another message they were read
  for (unsigned w = 0; w < 4; ++w) bits[4 * lane() + w] = 0;
  __syncwarp();
  const std::uint64_t first =
      8 + 32 * coding::marks_segments(job.atoms) + frame(plan.bits)[at.number];
  const bool good = marks::read_gaps(view, first, frame(plan.gap_bits)[at.number],
                                     frame(plan.kept)[at.number], mode - 1, size, bits);
  __syncwarp();
  for (unsigned w = 0; w < 2; ++w)
    word[w] = bits[4 * lane() + 2 * w] | (std::uint64_t{bits[4 * lane() + 2 * w + 1]} << 32);
  return good;
}

}  // namespace atomo::cuda
