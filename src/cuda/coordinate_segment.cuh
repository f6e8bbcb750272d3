// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A segment of coordinates as a block reads it, whatever becomes of its levels: values
/// (coordinate_decode.cu) or bytes in the workspace (coordinate_levels.cu).
///
/// A list is read in rounds: its bits go to shared memory, each thread takes a stretch of them, and
/// guesses that a word begins where its stretch does. Where one really begins is known only once the
/// thread before has read, so starts are mended until all agree: a wrong start falls into step with
/// the words within a few of them. Sums of the places that words take then tell each thread where
/// its entries are, and it reads its words a second time. Levels gather in shared memory, a byte
/// each.

#include "cuda/bit_stream.cuh"
#include "cuda/coordinate_decode.cuh"
#include "cuda/coordinate_words.cuh"
#include "cuda/cub.cuh"

namespace atomo::cuda::coordinate {

/// The decoder's choice for a layer.
enum DecodeMode : std::uint32_t { kNothing = 0, kZeros = 1, kSegments = 2 };

/// Entries that a warp adds of several messages.
inline constexpr std::uint64_t kSummed = 1024;
static_assert(kCoordinateSegment % kSummed == 0);

/// What a segment has of a message that is added with others.
enum SegmentKind : std::uint32_t { kNoSegment = 0, kZeroSegment = 1, kLevels = 2, kWideLevels = 3 };

/// Threads of a block that reads segments.
inline constexpr unsigned kReadThreads = 128, kReadWarps = kReadThreads / kLanes;
/// Such blocks that an SM has room for.
inline constexpr unsigned kReadBlocks = 6;
/// 32-bit words of a stream in a thread's stretch: the more, the less is read twice; the fewer, the
/// more threads have some of a short stream. Odd, so that threads that are equally far in their
/// stretches look into different banks.
inline constexpr unsigned kMinStretch = 3, kMaxStretch = 9;
/// Words that are looked at behind the last stretch.
inline constexpr unsigned kWordsBehind = kLongestWord / 32 + 3;

struct SegmentMemory {
  alignas(16) std::int8_t levels[kCoordinateSegment];
  std::uint32_t staged[kReadThreads * kMaxStretch + kWordsBehind];
  std::uint32_t left_over[kReadWarps];  ///< bits behind the warps' stretches that belong to them
  std::uint32_t places[kReadWarps];     ///< that the warps' words take
  std::uint32_t end;                    ///< of the stream, bits from the round's begin
};
/// An SM's blocks share 228 KiB; each takes 1 KiB for itself.
static_assert(sizeof(SegmentMemory) + 1024 <= 228 * 1024 / kReadBlocks);

/// In place of a level that takes more than a byte.
inline constexpr std::int8_t kFarLevel = -128;

/// A list, or dense levels: where its bits are.
struct Stream {
  BitView content;
  std::uint64_t begin;  ///< its first bit, or the one behind where it goes down
  std::uint64_t bits;   ///< that it has at most
  WordShape shape;
};

/// By a whole block: the bits of a stream from `from` on, its first the highest.
__device__ inline void stage(const Stream& stream, std::uint64_t from, unsigned words,
                             std::uint32_t* staged) {
  constexpr unsigned kTogether = 5;  // words whose loads are on their way together
  const bool down = stream.shape.down;
  bool whole = true;
  for (unsigned first = threadIdx.x; first < words; first += kTogether * kReadThreads) {
    BitView::Pair pairs[kTogether];
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const std::uint64_t bit = from + 32 * std::uint64_t{first + k * kReadThreads};
      pairs[k] = stream.content.load_pair(down ? stream.begin - bit - 32 : stream.begin + bit);
    }
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const unsigned i = first + k * kReadThreads;
      if (i < words) staged[i] = down ? pairs[k].bits() : __brev(pairs[k].bits());
      whole = whole && pairs[k].whole;
    }
  }
  if (whole) return;
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < words; i += kReadThreads) {
    const std::uint64_t bit = from + 32 * std::uint64_t{i};
    if (!down)
      staged[i] = __brev(stream.content.peek32(stream.begin + bit));
    else
      staged[i] = bit < stream.begin ? stream.content.peek32_below(stream.begin - bit) : 0;
  }
}

/// A thread's stretch of a round, in bits from the round's begin.
struct Stretch {
  std::uint32_t begin, end;
  std::uint32_t
      read_end;  ///< words that begin before are read: `end`, unless the stream ends first
  std::uint32_t skipped = 0;    ///< bits at its begin, of the thread before
  std::uint32_t left_over = 0;  ///< bits behind its end, of the last word
  std::uint32_t places = 0;     ///< that its words take

  [[nodiscard]] __device__ std::uint32_t behind(std::uint32_t at) const {
    return at > end ? at - end : 0;
  }
};

template <typename Words>
__device__ inline void guess(Words& words, Stretch& own) {
  std::uint32_t at = own.begin;
  while (at < own.read_end) own.places += words.pass(at);
  own.left_over = own.behind(at);
}

/// The words begin `skipped` bits behind the stretch's begin. Reads them, and those of before, until
/// both are at the same bit.
template <typename Words>
__device__ inline void mend(Words& words, Stretch& own, std::uint32_t skipped) {
  std::uint32_t before = own.begin + own.skipped, now = own.begin + skipped;
  own.skipped = skipped;
  while (before != now) {
    const bool is_before = before < now;
    std::uint32_t at = is_before ? before : now;
    if (at >= own.read_end) break;
    const std::uint32_t places = words.pass(at);
    own.places += is_before ? 0 - places : places;
    (is_before ? before : now) = at;
  }
  if (now >= own.read_end) own.left_over = own.behind(now);
}

/// By a whole block: all threads' stretches, each from where the one before ends; where it ends in
/// the last thread's.
template <typename Words>
__device__ inline std::uint32_t agree(Words& words, Stretch& own, SegmentMemory& memory) {
  guess(words, own);
  for (;;) {
    if (lane() == kLanes - 1) memory.left_over[warp_in_block()] = own.left_over;
    __syncthreads();
    std::uint32_t skipped = __shfl_up_sync(kAllLanes, own.left_over, 1);
    if (lane() == 0) skipped = threadIdx.x == 0 ? 0 : memory.left_over[warp_in_block() - 1];
    const bool changed = skipped != own.skipped;
    if (__syncthreads_or(changed ? 1 : 0) == 0) return memory.left_over[kReadWarps - 1];
    if (changed) mend(words, own, skipped);
  }
}

/// By a whole block: the places of the threads before; `total` becomes those of all.
__device__ inline std::uint32_t places_before(std::uint32_t places, SegmentMemory& memory,
                                              std::uint32_t& total) {
  std::uint32_t of_warp, before = warp_exclusive_sum(places, of_warp);
  if (lane() == 0) memory.places[warp_in_block()] = of_warp;
  __syncthreads();
  total = 0;
  for (unsigned w = 0; w < kReadWarps; ++w) {
    if (w == warp_in_block()) before += total;
    total += memory.places[w];
  }
  return before;
}

/// What becomes of a segment's levels. `far(place, level)` is called for those that take more than
/// a byte.
template <typename Far>
struct SegmentOutput {
  SegmentMemory& memory;
  std::uint32_t entries;
  Far far;
  bool has_far = false;  ///< the thread met some
};

/// A thread's words, which belong to places from `place` on. `memory.end` becomes the stream's end
/// where it is among them. False when they break the format.
template <typename Words, typename Output>
__device__ inline bool take_levels(Words& words, const Stretch& own, bool second,
                                   std::uint32_t place, Output& out) {
  if (place > out.entries) return true;  // behind the stream's end
  bool good = true;
  std::int8_t* const levels = out.memory.levels;
  for (std::uint32_t at = own.begin + own.skipped; at < own.read_end; ++place) {
    if constexpr (Words::kGaps) place += words.read_gap(at, good);
    if (place >= out.entries) {
      good = good && place == out.entries;
      if (good) out.memory.end = at;
      return good;
    }
    const auto level = words.read_level(at, good);
    if (second) good = good && levels[place] == 0;  // not in both lists
    if (!good) return false;
    if (!Words::kLevels || (level >= -127 && level <= 127)) {
      levels[place] = static_cast<std::int8_t>(level);
    } else {
      levels[place] = kFarLevel;
      out.has_far = true;
      out.far(place, level);
    }
  }
  return true;
}

/// By a whole block: takes a stream's levels; its length in `bits`. False, in every thread, when it
/// breaks the format.
template <typename Words, typename Output>
__device__ inline bool read_stream(const Stream& stream, bool second, Output& out,
                                   std::uint64_t& bits) {
  SegmentMemory& memory = out.memory;
  Words words(memory.staged, stream.shape);
  constexpr std::uint32_t kNoEnd = ~std::uint32_t{0};
  if (threadIdx.x == 0) memory.end = kNoEnd;
  const std::uint64_t wanted = stream.bits / (32 * kReadThreads) | 1;
  const auto stretch = static_cast<unsigned>(wanted < kMinStretch   ? kMinStretch
                                             : wanted < kMaxStretch ? wanted
                                                                    : kMaxStretch);
  std::uint32_t place = 0;
  for (std::uint64_t round = 0; round <= stream.bits;) {
    // A word may begin at the last bit's end: that of dense levels which ends them.
    const std::uint64_t left = stream.bits - round + 1;
    const std::uint32_t all = 32 * stretch * kReadThreads;
    const std::uint32_t read_end = left < all ? static_cast<std::uint32_t>(left) : all;
    stage(stream, round, (read_end + 31) / 32 + kWordsBehind, memory.staged);
    __syncthreads();
    const std::uint32_t end = 32 * stretch * (threadIdx.x + 1);
    Stretch own{end - 32 * stretch, end, read_end < end ? read_end : end};
    const std::uint32_t left_over = agree(words, own, memory);
    std::uint32_t total;
    const std::uint32_t first = place + places_before(own.places, memory, total);
    const bool good = take_levels(words, own, second, first, out);
    if (__syncthreads_or(good ? 0 : 1) != 0) return false;
    if (memory.end != kNoEnd) {
      bits = round + memory.end;
      return true;
    }
    round += all + left_over;
    place += total;
  }
  return false;
}

/// By a whole block: takes the levels of a segment; false, in every thread, when it breaks the
/// format.
template <typename Output>
__device__ inline bool read_content(const BitView& content, const SegmentWord& word, Output& out) {
  if (word.mode == SegmentMode::zero) return true;
  const std::uint64_t bits = 8 * std::uint64_t{word.bytes};
  std::uint64_t up = word.wide() ? 8 * kSegmentWordBytes : 0, length = 0;
  const bool one = word.mode == SegmentMode::one_list, two = word.mode == SegmentMode::two_lists;
  const Stream first{
      content,
      up,
      bits - up,
      {one ? word.others : word.ones, word.level, word.level_bits, false, one || two, !two}};
  const bool good = word.wide() ? read_stream<WideWords>(first, false, out, length)
                    : one ? read_stream<NarrowWords<false, true, true>>(first, false, out, length)
                    : two ? read_stream<NarrowWords<false, true, false>>(first, false, out, length)
                          : read_stream<NarrowWords<false, false, true>>(first, false, out, length);
  if (!good || length > bits - up) return false;
  up += length;
  length = 0;
  if (two) {
    __syncthreads();  // all know the end of the first
    const Stream second{
        content, bits, bits - up, {word.others, word.level, word.level_bits, true, true, true}};
    if (!(word.wide() ? read_stream<WideWords>(second, true, out, length)
                      : read_stream<NarrowWords<true, true, true>>(second, true, out, length)))
      return false;
    if (length > bits - up) return false;
  }
  // Exactly the stated bytes, with zeros in less than one between or behind the streams.
  const std::uint64_t rest = bits - length - up;
  return rest < 8 && (content.peek32(up) & ((1u << rest) - 1)) == 0;
}

/// By a whole block: every level is 0.
__device__ inline void clear_levels(SegmentMemory& memory) {
  __syncthreads();  // those before were read
  auto* const sixteen = reinterpret_cast<uint4*>(memory.levels);
  for (std::uint32_t i = threadIdx.x; i < kCoordinateSegment / 16; i += kReadThreads)
    sixteen[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
}

__device__ inline std::uint32_t entries_of_segment(const Frame& frame, std::uint32_t layer,
                                                   std::uint64_t begin) {
  const std::uint64_t rest = frame.info(layer).n - begin;
  return static_cast<std::uint32_t>(rest < kCoordinateSegment ? rest : kCoordinateSegment);
}

/// The segment of this block; every block has one.
__device__ inline UnitOf unit_of_block(const Frame& frame, const DecodePlan& plan) {
  return find_unit_together(frame, plan.segments, blockIdx.x);
}

/// The word of a segment and its content; false, in every thread, when there is none such.
__device__ inline bool find_content(const Frame& frame, const DecodePlan& plan, const UnitOf& unit,
                                    const LayerState& layer, SegmentWord& word,
                                    const std::byte*& content) {
  const std::byte* const body = frame.message + layer.body_at;
  content = body;
  if (frame(plan.modes)[unit.job] != kSegments) return true;
  word = SegmentWord::unpack(load_word(body + unit.index * kSegmentWordBytes));
  content += frame(plan.starts)[unit.number];
  return !word.wide() || word.take_second(load_word(content));
}

/// Levels of a byte each, four to a word, as values: f32 products of integers below 128, which an f64 rounds
/// alike.
__device__ inline void values_of(std::uint32_t levels, float step, float (&v)[4]) {
#pragma unroll
  for (unsigned k = 0; k < 4; ++k)
    v[k] = static_cast<float>(static_cast<std::int32_t>(levels << (24 - 8 * k)) >> 24) * step;
  if (is_finite(127.0f * step)) return;
  constexpr std::uint32_t kLargestBits = 0x7F7FFFFFu;
#pragma unroll
  for (float& value : v) {
    const std::uint32_t bits = __float_as_uint(value);
    if (!is_finite(value)) value = __uint_as_float((bits & 0x80000000u) | kLargestBits);
  }
}

/// Layers that have no other form than coordinates: several messages are added at once.
__device__ inline bool goes_together(const Frame& frame, const DecodePlan& plan,
                                     std::uint32_t job) {
  return frame.info(frame(plan.layers)[job]).method == MethodId::coordinate;
}

/// Lane m: the kind of segment `unit` in message first + m.
__device__ inline std::uint32_t kind_of_lane(const Frames& frames, const DecodePlan& plan,
                                             std::uint64_t unit, std::uint32_t first,
                                             std::uint32_t count) {
  return lane() < count ? frames[first + lane()](plan.kinds)[unit] : std::uint32_t{kNoSegment};
}

/// Levels of `count` messages from `first` on, and their sums but for segments of wide levels: two
/// launches.
void add_levels(const Frames& frames, const DecodePlan& plan, DecodeInto into, std::uint32_t first,
                std::uint32_t count, Queue& queue);

}  // namespace atomo::cuda::coordinate
