// SPDX-License-Identifier: Apache-2.0
/// Reading coordinates; nothing of a body is trusted. FORMAT.md, "2 coordinate", says what a body
/// is, format/coordinate_body.hpp its words, rice.hpp the codes.
///
/// Mapping. check_words: a block a layer looks at the segments' words and adds their bytes up; they
/// must fill the body exactly. read_segment: a warp a segment of 32,768 entries, in windows of
/// 512 values in shared memory: one lane reads the bits of a list up to the window's end (two
/// lanes when there are two lists, one from either end of the content), then all lanes write the
/// window. A window holds values rather than levels, which may have 54 bits: that
/// of a level that is not 0 is not 0 either. Reading is serial within a segment, so a tensor of few
/// segments waits for it: several entry points a segment, found by lanes that start at guessed bits
/// and agree after some words, would be faster without any change to the format.
///
/// Traffic an entry: 4 bytes written (8 read and written when adding) and the content read once:
/// the least possible.
///
/// Shared memory: 16 KiB (read_segment), 2 KiB (check_words). Every entry is written by one lane,
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

__global__ void __launch_bounds__(kScanThreads) check_words(Frame frame, DecodePlan plan) {
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

/// A way through the bits of a segment's content, up or down, as read_rice takes it.
class ContentStream {
 public:
  /// Nothing to read.
  __device__ explicit ContentStream(const BitView& content) : content_(content) {}

  /// The bits from `bit` on, or those below it.
  __device__ void begin(std::uint64_t bit, bool down) { bit_ = bit, down_ = down; }
  [[nodiscard]] __device__ Window window() const {
    return {down_ ? __brevll(content_.peek64_below(bit_)) : content_.peek64(bit_), down_};
  }
  __device__ void move(unsigned count) { bit_ = down_ ? bit_ - count : bit_ + count; }
  [[nodiscard]] __device__ std::uint64_t bit() const { return bit_; }

 private:
  BitView content_;
  std::uint64_t bit_ = 0;
  bool down_ = false;
};

constexpr std::uint32_t kWindow = 512;

struct Windows {
  std::uint32_t values[kMaxWarps][kWindow];  ///< bits of f32
};

/// One lane's way through a list, or through dense levels, of a segment of `entries` entries.
class ListReader {
 public:
  /// Nothing to read.
  __device__ ListReader(const BitView& content, unsigned level_bits)
      : in_(content), level_bits_(level_bits) {}
  /// A list from `bit` on, or down from it; its first gap is read at once.
  __device__ void begin(std::uint64_t bit, bool down, std::uint32_t entries, unsigned gap_k,
                        bool with_levels, std::uint32_t base, unsigned level_k) {
    in_.begin(bit, down);
    entries_ = entries, gap_k_ = gap_k, level_k_ = level_k, base_ = base;
    with_levels_ = with_levels;
    next_ = 0;
    find_next();
  }
  /// Dense levels from `bit` on.
  __device__ void begin_dense(std::uint64_t bit, std::uint32_t entries, unsigned level_k) {
    in_.begin(bit, false);
    entries_ = entries, level_k_ = level_k;
    dense_ = with_levels_ = true;
    next_ = 0;
  }

  /// Calls found(place, level), level not 0, for the entries before `end`; a false answer breaks
  /// the format.
  template <typename Found>
  __device__ void read(std::uint32_t end, Found found) {
    while (good_ && next_ < end) {
      const std::int64_t magnitude = read_level();
      if (!good_) return;
      if (magnitude != 0) good_ = found(next_, negative_ ? -magnitude : magnitude);
      ++next_;
      if (!dense_ && good_) find_next();
    }
  }

  [[nodiscard]] __device__ bool good() const { return good_; }
  [[nodiscard]] __device__ std::uint64_t bit() const { return in_.bit(); }

 private:
  /// Passes over a gap; behind the last entry stands the gap to the segment's end.
  __device__ void find_next() {
    next_ += read_rice(in_, gap_k_, kGapRawBits, good_);
    good_ = good_ && next_ <= entries_;
  }
  /// In a list the sign comes first, in dense levels last, and not at all for 0.
  __device__ std::int64_t read_level() {
    if (!dense_) read_sign();
    std::uint64_t level = base_;
    if (with_levels_) {
      level += level_bits_ == kLevelBits ? read_rice(in_, level_k_, kLevelBits, good_)
                                         : read_wide_rice(in_, level_k_, level_bits_, good_);
    }
    good_ = good_ && level >> level_bits_ == 0;
    if (dense_ && good_ && level != 0) read_sign();
    return static_cast<std::int64_t>(level);
  }
  __device__ void read_sign() {
    negative_ = in_.window().field(0, 1) != 0;
    in_.move(1);
  }

  ContentStream in_;
  std::uint32_t next_ = ~std::uint32_t{0};  ///< place of the entry to read
  std::uint32_t entries_ = 0, base_ = 0;
  unsigned gap_k_ = 0, level_k_ = 0, level_bits_;
  bool with_levels_ = false, dense_ = false, negative_ = false, good_ = true;
};

/// The readers of a segment: lane 0's, and lane 1's of the second of two lists, which comes down
/// from the end.
__device__ ListReader begin_reading(const BitView& content, const SegmentWord& word,
                                    std::uint32_t entries) {
  ListReader reader(content, word.level_bits);
  const std::uint64_t first = word.wide() ? 8 * kSegmentWordBytes : 0;
  const bool two = word.mode == SegmentMode::two_lists, second = lane() == 1;
  if (lane() == 0 && word.mode == SegmentMode::one_list)
    reader.begin(first, false, entries, word.others, true, 1, word.level);
  else if (lane() == 0 && word.mode == SegmentMode::dense)
    reader.begin_dense(first, entries, word.level);
  else if (lane() < 2 && two)
    reader.begin(second ? 8 * std::uint64_t{word.bytes} : first, second, entries,
                 second ? word.others : word.ones, second, second ? 2 : 1, word.level);
  return reader;
}

/// By a whole warp: exactly the stated bytes, with zeros in less than one between or behind the
/// streams. `bit` is where the lane's stream ended.
__device__ bool ends_well(const BitView& content, std::uint64_t bit, const SegmentWord& word) {
  const std::uint64_t up = __shfl_sync(kAllLanes, bit, 0), second = __shfl_sync(kAllLanes, bit, 1);
  const std::uint64_t end =
      word.mode == SegmentMode::two_lists ? second : 8 * std::uint64_t{word.bytes};
  return up <= end && end - up < 8 && (content.peek32(up) & ((1u << (end - up)) - 1)) == 0;
}

/// By a whole warp: writes or adds the window's values to y and clears it.
__device__ void put_window(std::uint32_t* values, std::uint32_t count, float* y, DecodeInto into) {
  for (std::uint32_t i = lane(); i < count; i += kLanes) {
    put(y + i, __uint_as_float(values[i]), into);
    values[i] = 0;
  }
  __syncwarp();
}

__global__ void read_segment(Frame frame, DecodePlan plan, DecodeInto into) {
  const UnitOf unit = unit_of_warp(frame, plan.segments);
  if (!unit) return;
  const std::uint32_t mode = frame(plan.modes)[unit.job];
  if (mode == kNothing) return;
  const std::uint32_t layer_number = frame(plan.layers)[unit.job];
  const LayerState& layer = frame.layer(layer_number);
  const std::uint64_t begin = unit.index * kCoordinateSegment;
  const std::uint64_t rest = frame.info(layer_number).n - begin;
  const auto entries =
      static_cast<std::uint32_t>(rest < kCoordinateSegment ? rest : kCoordinateSegment);
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
  const BitView view(content, word.bytes);
  ListReader reader = begin_reading(view, word, entries);
  std::uint32_t* const values = shared<Windows>().values[warp_in_block()];
  for (std::uint32_t i = lane(); i < kWindow; i += kLanes) values[i] = 0;
  __syncwarp();
  for (std::uint32_t first = 0; first < entries; first += kWindow) {
    const std::uint32_t end = entries - first < kWindow ? entries : first + kWindow;
    reader.read(end, [&](std::uint32_t place, std::int64_t level) {
      const std::uint32_t value = __float_as_uint(grid_value(level, layer.price));
      return atomicCAS(&values[place - first], 0u, value) == 0;  // no place is in both lists
    });
    if (__any_sync(kAllLanes, reader.good() ? 0 : 1) != 0) break;
    __syncwarp();
    put_window(values, end - first, layer.y + begin + first, into);
  }
  if (word.mode == SegmentMode::zero) return;
  const bool good = ends_well(view, reader.bit(), word) && reader.good();
  if (!good) frame.refuse(layer_number, Status::corrupt);
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

void decode(const Frame& frame, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  queue.launch_blocks(check_words, plan.count, kScanThreads, 0, frame, plan);
  queue.launch_warps(read_segment, plan.segments.units, frame, plan, into);
}

}  // namespace atomo::cuda::coordinate
