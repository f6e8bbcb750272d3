// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A segment of coordinates as a warp reads it, whatever becomes of its levels: values
/// (coordinate_decode.cu) or bytes in the workspace (coordinate_levels.cu).
///
/// Lanes take 128 bits of a list each, from guessed starts that are mended until all agree. The second of two
/// lists comes down from the content's end.

#include "cuda/bit_stream.cuh"
#include "cuda/coordinate_decode.cuh"
#include "cuda/cub.cuh"
#include "format/coordinate_body.hpp"

namespace atomo::cuda::coordinate {

/// The decoder's choice for a layer.
enum DecodeMode : std::uint32_t { kNothing = 0, kZeros = 1, kSegments = 2 };

/// Entries that a warp adds of several messages.
inline constexpr std::uint64_t kSummed = 1024;
static_assert(kCoordinateSegment % kSummed == 0);

/// What a segment has of a message that is added with others.
enum SegmentKind : std::uint32_t { kNoSegment = 0, kZeroSegment = 1, kLevels = 2, kWideLevels = 3 };

/// The next bits of a stream, the first lowest, whichever way it goes: numbers of one that goes down
/// are upside down.
struct Window {
  std::uint64_t bits;
  bool down;

  [[nodiscard]] __device__ unsigned ones() const {
    return static_cast<unsigned>(__ffsll(static_cast<long long>(~bits))) - 1;
  }
  [[nodiscard]] __device__ std::uint64_t field(unsigned skipped, unsigned count) const {
    const std::uint64_t number = bits >> skipped & ((std::uint64_t{1} << count) - 1);
    return down ? __brevll(number) >> 1 >> (63 - count) : number;
  }
};

/// A list, or dense levels: where it is, and what its words are made of.
struct Stream {
  BitView content;
  std::uint64_t begin;  ///< its first bit, or the one behind where it goes down
  bool down, dense, with_levels;
  std::uint32_t base;  ///< of levels
  unsigned gap_k, level_k, level_bits;
};

/// A lane's place in a stream, in bits from its begin: what read_rice takes.
class Cursor {
 public:
  __device__ Cursor(const Stream& stream, std::uint64_t at) : stream_(stream), at_(at) {}

  [[nodiscard]] __device__ std::uint64_t at() const { return at_; }
  [[nodiscard]] __device__ Window window() const {
    if (!stream_.down) return {stream_.content.peek64(stream_.begin + at_), false};
    if (at_ >= stream_.begin) return {0, true};
    return {__brevll(stream_.content.peek64_below(stream_.begin - at_)), true};
  }
  __device__ void move(unsigned count) { at_ += count; }

  __device__ std::uint32_t read_gap(bool& good) {
    return read_rice(*this, stream_.gap_k, kGapRawBits, good);
  }
  /// A signed level. In a list the sign comes first, in dense levels last, and not at all for 0.
  __device__ std::int64_t read_level(bool& good) {
    bool negative = !stream_.dense && read_sign();
    std::uint64_t level = stream_.base;
    if (stream_.with_levels) {
      level += stream_.level_bits == kLevelBits
                   ? read_rice(*this, stream_.level_k, kLevelBits, good)
                   : read_wide_rice(*this, stream_.level_k, stream_.level_bits, good);
    }
    good = good && level >> stream_.level_bits == 0;
    if (stream_.dense && level != 0) negative = read_sign();
    return negative ? -static_cast<std::int64_t>(level) : static_cast<std::int64_t>(level);
  }

 private:
  __device__ bool read_sign() {
    const bool negative = window().field(0, 1) != 0;
    move(1);
    return negative;
  }

  const Stream& stream_;
  std::uint64_t at_;
};

/// Bits of a stream that a lane reads of a round: more than the longest word has, 36 of a gap, a
/// sign and 73 of a level.
inline constexpr std::uint32_t kLaneBits = 128;
static_assert(kLaneBits > 2 * kRiceLimit + kGapRawBits + 1 + kWideLevelBits);

/// A lane's words of a round, which begin at `at` and belong to places from `place` on: writes the
/// values of those that begin before `end` bits. `ends` becomes true where the stream ends, and `at`
/// then is that bit. False when they break the format.
template <typename Output>
__device__ inline bool write_words(const Stream& stream, const Output& out, std::uint32_t place,
                                   std::uint64_t end, std::uint64_t& at, bool& ends) {
  Cursor in(stream, at);
  auto written = pending(out);
  bool good = true;
  for (; good && place <= out.entries && in.at() < end; ++place) {
    if (!stream.dense) place += in.read_gap(good);
    good = good && place <= out.entries;
    ends = good && place == out.entries;
    if (!good || ends) break;
    const std::int64_t level = in.read_level(good);
    if (level == 0) continue;
    const std::uint32_t bit = 1u << (place % 32);
    good = good && (atomicOr(&out.marks[place / 32], bit) & bit) == 0;  // not in both lists
    written.put(place, level);
  }
  written.finish();
  at = in.at();
  return good;
}

/// By a whole warp: writes what a stream says; its length in `bits`. False, in every lane, when it
/// breaks the format.
///
/// A round is kLaneBits a lane. Where a lane's first word begins is known only once the lane before
/// has been read: all guess their first bit and read again until nothing changes. Rice words make
/// that likely after few times, as a wrong start falls into step within a few words.
template <typename Output>
__device__ inline bool read_stream(const Stream& stream, const Output& out, std::uint64_t& bits) {
  std::uint32_t place = 0;
  for (std::uint64_t round = 0;;) {
    const std::uint64_t begin = round + kLaneBits * lane(), end = begin + kLaneBits;
    std::uint32_t skip = 0, leave = 0, span = 0;  // places that the lane's words take
    for (bool changed = true, again = true; again;) {
      if (changed) {
        Cursor in(stream, begin + skip);
        bool any = true;
        for (span = 0; in.at() < end; ++span) {
          if (!stream.dense) span += in.read_gap(any);
          (void)in.read_level(any);
        }
        leave = static_cast<std::uint32_t>(in.at() - end);
      }
      const std::uint32_t before = __shfl_up_sync(kAllLanes, leave, 1);
      changed = lane() != 0 && before != skip;
      if (changed) skip = before;
      again = __any_sync(kAllLanes, changed) != 0;
    }
    std::uint32_t total;
    const std::uint32_t first = place + warp_exclusive_sum(span, total);
    std::uint64_t at = begin + skip;
    bool ends = false;
    const bool good = write_words(stream, out, first, end, at, ends);
    if (__any_sync(kAllLanes, good ? 0 : 1) != 0) return false;
    if (const std::uint32_t ending = __ballot_sync(kAllLanes, ends); ending != 0) {
      bits = __shfl_sync(kAllLanes, at, __ffs(static_cast<int>(ending)) - 1);
      return true;
    }
    round += kLanes * kLaneBits + __shfl_sync(kAllLanes, leave, kLanes - 1);
    place += total;
  }
}

/// By a whole warp: writes what a segment says; false, in every lane, when it breaks the format.
template <typename Output>
__device__ inline bool read_content(const BitView& content, const SegmentWord& word,
                                    const Output& out) {
  if (word.mode == SegmentMode::zero) return true;
  const std::uint64_t bits = 8 * std::uint64_t{word.bytes};
  const bool one = word.mode == SegmentMode::one_list, two = word.mode == SegmentMode::two_lists;
  std::uint64_t up = word.wide() ? 8 * kSegmentWordBytes : 0, end = bits;
  for (bool second = false;; second = true) {
    const Stream stream{content,
                        second ? bits : up,
                        second,
                        !one && !two,
                        second || !two,
                        second ? 2u : (one || two ? 1u : 0u),
                        second || one ? word.others : word.ones,
                        word.level,
                        word.level_bits};
    std::uint64_t length = 0;
    if (!read_stream(stream, out, length)) return false;
    if (second ? length > bits : length > bits - up) return false;
    (second ? end : up) += second ? std::uint64_t{0} - length : length;
    if (second || !two) break;
    __syncwarp();  // marks of the first list are seen
  }
  // Exactly the stated bytes, with zeros in less than one between or behind the streams.
  return up <= end && end - up < 8 && (content.peek32(up) & ((1u << (end - up)) - 1)) == 0;
}

struct SegmentMarks {
  std::uint32_t word[kMaxWarps][kCoordinateSegment / 32];
};

__device__ inline std::uint32_t entries_of_segment(const Frame& frame, std::uint32_t layer,
                                                   std::uint64_t begin) {
  const std::uint64_t rest = frame.info(layer).n - begin;
  return static_cast<std::uint32_t>(rest < kCoordinateSegment ? rest : kCoordinateSegment);
}

/// By a whole warp: the word of a segment and its content; false, in every lane, when there is none such.
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

/// By a whole warp: no marks.
__device__ inline std::uint32_t* clear_marks() {
  std::uint32_t* const marks = shared<SegmentMarks>().word[warp_in_block()];
  __syncwarp();  // those before were read
  for (std::uint32_t i = lane(); i < kCoordinateSegment / 32; i += kLanes) marks[i] = 0;
  __syncwarp();
  return marks;
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
