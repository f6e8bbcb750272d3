// SPDX-License-Identifier: Apache-2.0
/// Reading coordinates; nothing of a body is trusted. FORMAT.md, "2 coordinate", says what a body
/// is, format/coordinate_body.hpp its words, rice.hpp the codes.
///
/// Mapping. check_words: a block a layer looks at the segments' words and adds their bytes up; they
/// must fill the body exactly. read_segment: a warp a segment of 32,768 entries. Lanes take 128 bits
/// of a list each, from guessed starts that are mended until all agree; what a word says goes to y
/// where it belongs, with a mark, and entries without a mark are zeros in the end. The second of two
/// lists comes down from the content's end.
///
/// Traffic an entry: 4 bytes written (8 read and written when adding), a sector more a level that is
/// not 0, and the content read three or four times, from L1 but for the first. The least possible is
/// the 4 bytes, or 8, and the content once.
///
/// Shared memory: 32 KiB (read_segment), 2 KiB (check_words). Every entry is written by one lane,
/// so no order matters. The message has any alignment, y that of f32.

#include "cuda/bit_stream.cuh"
#include "cuda/coordinate_decode.cuh"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"
#include "format/coordinate_body.hpp"

namespace atomo::cuda::coordinate {
namespace {

/// The decoder's choice for a layer.
enum DecodeMode : std::uint32_t { kNothing = 0, kZeros = 1, kSegments = 2 };

/// By a whole block: where the segments' contents begin; false when the words are none of a body of
/// `bytes` bytes.
__device__ bool place_segments(const std::byte* body, std::uint64_t bytes, std::uint64_t segments,
                               std::uint64_t* starts) {
  if (bytes / kSegmentWordBytes < segments) return false;
  bool valid = true;
  const auto content = [&](std::uint64_t s) {
    const SegmentWord word = SegmentWord::unpack(load_word(body + s * kSegmentWordBytes));
    valid = valid && word.valid();
    return std::uint64_t{word.bytes};
  };
  const std::uint64_t table = segments * kSegmentWordBytes;
  const std::uint64_t all = scan_blockwide<std::uint64_t>(
      segments, content,
      [&](std::uint64_t s, std::uint64_t before) { starts[s] = table + before; });
  return __syncthreads_and(valid && all != 0 && table + all == bytes ? 1 : 0) != 0;
}

__global__ void __launch_bounds__(kScanThreads)
    check_words(const Frames frames, const DecodePlan plan) {
  const Frame frame = frames[blockIdx.y];
  const std::uint32_t number = frame(plan.layers)[blockIdx.x];
  const LayerState& layer = frame.layer(number);
  const std::uint64_t first = frame(plan.segments.begin)[blockIdx.x];
  const std::uint64_t segments = frame(plan.segments.begin)[blockIdx.x + 1] - first;
  DecodeMode mode = kNothing;
  const bool has_forms = frame.info(number).method == MethodId::automatic;
  if (layer.decodes != 0 && (!has_forms || form_of(layer) == kGridForm)) {
    mode = kZeros;
    if (layer.bytes != 0) {
      const bool good = layer.price > 0 && is_finite(layer.price) &&
                        place_segments(frame.message + layer.body_at, layer.bytes, segments,
                                       frame(plan.starts) + first);
      mode = good ? kSegments : kNothing;
      if (!good && threadIdx.x == 0) frame.refuse(number, Status::corrupt);
    }
  }
  if (threadIdx.x == 0) frame(plan.modes)[blockIdx.x] = mode;
}

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
constexpr std::uint32_t kLaneBits = 128;
static_assert(kLaneBits > 2 * kRiceLimit + kGapRawBits + 1 + kWideLevelBits);

/// What a segment is decoded into.
struct SegmentOutput {
  float* y;
  DecodeInto into;
  double step;
  std::uint32_t entries;
  std::uint32_t* marks;  ///< a bit an entry that is written
};

/// A value on its way to where it belongs: when adding, the next word is read while what stands
/// there is on its way.
class PendingValue {
 public:
  __device__ explicit PendingValue(const SegmentOutput& out) : out_(out) {}

  __device__ void put(std::uint32_t place, float value) {
    const float old = out_.into.add ? out_.y[place] : 0.0f;
    finish();
    place_ = place, value_ = value, old_ = old, there_ = true;
  }
  /// Must be called after the last value.
  __device__ void finish() {
    if (there_) out_.y[place_] = out_.into.add ? old_ + (out_.into.alpha * value_) : value_;
    there_ = false;
  }

 private:
  const SegmentOutput& out_;
  std::uint32_t place_ = 0;
  float value_ = 0, old_ = 0;
  bool there_ = false;
};

/// A lane's words of a round, which begin at `at` and belong to places from `place` on: writes the
/// values of those that begin before `end` bits. `ends` becomes true where the stream ends, and `at`
/// then is that bit. False when they break the format.
__device__ bool write_words(const Stream& stream, const SegmentOutput& out, std::uint32_t place,
                            std::uint64_t end, std::uint64_t& at, bool& ends) {
  Cursor in(stream, at);
  PendingValue pending(out);
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
    pending.put(place, grid_value(level, out.step));
  }
  pending.finish();
  at = in.at();
  return good;
}

/// By a whole warp: writes what a stream says; its length in `bits`. False, in every lane, when it
/// breaks the format.
///
/// A round is kLaneBits a lane. Where a lane's first word begins is known only once the lane before
/// has been read: all guess their first bit and read again until nothing changes. Rice words make
/// that likely after few times, as a wrong start falls into step within a few words.
__device__ bool read_stream(const Stream& stream, const SegmentOutput& out, std::uint64_t& bits) {
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
__device__ bool read_content(const BitView& content, const SegmentWord& word,
                             const SegmentOutput& out) {
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

/// By a whole warp: entries that no word was for are 0. Sums that change nothing are not stored.
__device__ void put_zeros(const SegmentOutput& out) {
  constexpr unsigned kRows = 16;  // loads that are on their way together
  for (std::uint32_t row = 0; row < out.entries; row += kRows * kLanes) {
    float old[kRows];
    bool there[kRows];
#pragma unroll
    for (unsigned k = 0; k < kRows; ++k) {
      const std::uint32_t i = row + k * kLanes + lane();
      there[k] = i < out.entries && ((out.marks[i / 32] >> (i % 32)) & 1u) == 0;
      old[k] = there[k] && out.into.add ? out.y[i] : 1.0f;
    }
#pragma unroll
    for (unsigned k = 0; k < kRows; ++k) {
      const float sum = out.into.add ? old[k] + (out.into.alpha * 0.0f) : 0.0f;
      if (there[k] && __float_as_uint(sum) != __float_as_uint(old[k]))
        out.y[row + k * kLanes + lane()] = sum;
    }
  }
}

struct SegmentMarks {
  std::uint32_t word[kMaxWarps][kCoordinateSegment / 32];
};

__global__ void read_segment(Frame frame, DecodePlan plan, DecodeInto into) {
  const UnitOf unit = unit_of_warp(frame, plan.segments);
  if (!unit) return;
  const std::uint32_t mode = frame(plan.modes)[unit.job];
  if (mode == kNothing) return;
  const std::uint32_t layer_number = frame(plan.layers)[unit.job];
  const LayerState& layer = frame.layer(layer_number);
  const std::uint64_t begin = unit.index * kCoordinateSegment;
  const std::uint64_t rest = frame.info(layer_number).n - begin;
  const std::byte* const body = frame.message + layer.body_at;
  SegmentWord word;
  const std::byte* content = body;
  if (mode == kSegments) {
    word = SegmentWord::unpack(load_word(body + unit.index * kSegmentWordBytes));
    content += frame(plan.starts)[unit.number];
    if (word.wide() && !word.take_second(load_word(content))) {
      if (lane() == 0) frame.refuse(layer_number, Status::corrupt);
      return;
    }
  }
  const SegmentOutput out{
      layer.y + begin, into, layer.price,
      static_cast<std::uint32_t>(rest < kCoordinateSegment ? rest : kCoordinateSegment),
      shared<SegmentMarks>().word[warp_in_block()]};
  for (std::uint32_t i = lane(); i < kCoordinateSegment / 32; i += kLanes) out.marks[i] = 0;
  __syncwarp();
  const bool good = read_content(BitView(content, word.bytes), word, out);
  __syncwarp();
  if (!good && lane() == 0) frame.refuse(layer_number, Status::corrupt);
  if (good) put_zeros(out);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan) {
  const auto own = [](const LayerPlan& layer) {
    return (layer.kind.method == MethodId::coordinate ||
            layer.kind.method == MethodId::automatic) &&
           layer.n > 0;
  };
  plan = {};
  for (const LayerPlan& layer : layers) plan.count += own(layer) ? 1 : 0;
  if (plan.count == 0) return;
  TableMaker<std::uint32_t> numbers(layout, plan.count);
  SplitMaker segments(layout, plan.count);
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    if (!own(layers[i])) continue;
    numbers.add(i);
    segments.add(segments_of(layers[i].n));
  }
  plan.layers = numbers.table();
  plan.segments = segments.split();
  plan.starts = layout.scratch<std::uint64_t>(plan.segments.units);
  plan.modes = layout.scratch<std::uint32_t>(plan.count);
}

void decode(const Frames& frames, const DecodePlan& plan, DecodeInto, Queue& queue) {
  queue.launch_blocks_each(check_words, plan.count, frames.count, kScanThreads, 0, frames, plan);
}

void decode_in_turn(const Frames& frames, std::uint32_t m, const DecodePlan& plan, DecodeInto into,
                    Queue& queue) {
  const Frame frame = frames[m];
  queue.launch_warps(read_segment, plan.segments.units, frame, plan, into);
}

}  // namespace atomo::cuda::coordinate
