// SPDX-License-Identifier: Apache-2.0
/// Coordinates on their way out: the bits of a segment, whose word was chosen (coordinate_weigh.cu).
/// The words are those of rice.hpp.
///
/// Mapping. A warp a chunk of 4,096 entries, stream by stream. Its entries in the stream are listed in
/// shared memory, up to 1,536 at a time: lane l lists those among entries 128 l to 128 l + 127. Levels
/// above 1 are read and rounded 128 at a time. Then the list is cut into 32 equal parts: a lane counts
/// the bits of its part, a scan places them, it writes them, sharing its first and last word with its
/// neighbours.
///
/// Traffic an entry: 0.4 bytes and the entries whose level is above 1; content is written once. The
/// least possible is the content.
///
/// Shared memory: 6 KiB a warp and the scans'. Bits meet in zeroed words by atomicOr: no order
/// matters. Tensors are aligned to their entries, everything else is the workspace.

#include "cuda/bit_stream.cuh"
#include "cuda/coordinate_chunk.cuh"

namespace atomo::cuda::coordinate {
namespace {

/// Sets the bits of a stream that goes down, from those below `bit` on (BitSetter).
class DownwardBitSetter {
 public:
  __device__ DownwardBitSetter(std::uint32_t* words, std::uint64_t bit)
      : next_(words + (bit + 31) / 32), fill_(static_cast<unsigned>(-bit % 32)) {}

  /// The low `length` bits of `value`, which has no others; `length` is 1 to 32.
  __device__ void put(std::uint32_t value, unsigned length) {
    fill_ += length;
    pending_ |= std::uint64_t{value} << (64 - fill_);
    if (fill_ < 32) return;
    flush();
    --next_;
    pending_ <<= 32;
    fill_ -= 32;
  }
  /// Must be called after the last bit.
  __device__ void flush() {
    const auto word = static_cast<std::uint32_t>(pending_ >> 32);
    if (word != 0) atomicOr(next_ - 1, word);
  }

 private:
  std::uint32_t* next_;  ///< behind the word
  std::uint64_t pending_ = 0;
  unsigned fill_;
};

/// Puts words; one of up to 32 bits at once.
struct RiceSetter {
  static constexpr Direction kDirection = Direction::upward;
  BitSetter out;
  __device__ void put(RiceWord word) {
    out.put(static_cast<std::uint32_t>(word.bits), word.count < 32 ? word.count : 32);
    if (word.count > 32) out.put(static_cast<std::uint32_t>(word.bits >> 32), word.count - 32);
  }
};

struct DownwardRiceSetter {
  static constexpr Direction kDirection = Direction::downward;
  DownwardBitSetter out;
  __device__ void put(RiceWord word) {
    if (word.count > 32) out.put(static_cast<std::uint32_t>(word.bits >> 32), word.count - 32);
    out.put(static_cast<std::uint32_t>(word.bits), word.count < 32 ? word.count : 32);
  }
};

/// A list, or all entries, as a segment writes them.
struct Stream {
  unsigned list = kEvery;
  bool dense = false;
  bool with_levels = false;
  std::uint32_t base = 0;  ///< taken off levels
  unsigned gap_k = 0, level_k = 0;
};

/// What is written of an entry: its place in the chunk, its sign, its level.
struct Item {
  static constexpr unsigned kPlaceBits = 12, kLevelAt = kPlaceBits + 1;
  static_assert(kCoordinateChunk == 1u << kPlaceBits);
  /// In place of a level that has no room.
  static constexpr std::uint32_t kLong = (1u << (32 - kLevelAt)) - 1;

  std::uint32_t bits;

  [[nodiscard]] static __device__ Item of(std::uint32_t place, std::uint32_t negative,
                                          std::uint32_t level) {
    return {place | negative << kPlaceBits | (level < kLong ? level : kLong) << kLevelAt};
  }
  [[nodiscard]] __device__ std::uint32_t place() const { return bits & (kCoordinateChunk - 1); }
  [[nodiscard]] __device__ std::uint32_t negative() const { return bits >> kPlaceBits & 1; }
  [[nodiscard]] __device__ std::uint32_t level() const { return bits >> kLevelAt; }
};

/// Those of a chunk's part of a stream that are written together, in the stream's order. Of a warp.
struct Items {
  static constexpr std::uint32_t kCount = 1536;
  Item of[kCount];
};

/// By a whole warp: lists the items from number `base` on; of levels above 1 that they are, as 2.
/// `own`: the number of the lane's first entry in the list.
__device__ void list_items(const ChunkInHand& chunk, const Stream& stream, std::uint32_t own,
                           std::uint32_t base, Items& items) {
  if (stream.dense) {
    const std::uint32_t end = min(chunk.entries, base + Items::kCount);
    for (std::uint32_t i = base + lane(); i < end; i += kLanes) {
      const MarkedWord word = load_word(*chunk.bits, i / kLanes);
      const auto bit = [&](std::uint32_t of) { return of >> lane() & 1; };
      items.of[i - base] = Item::of(i, bit(word.negative), bit(word.nonzero) + bit(word.large));
    }
    return;
  }
  std::uint32_t number = own - base;  // those before `base` come to more than there are
#pragma unroll 1
  for (unsigned w = 0; w < LaneEntries::kCount / kLanes; ++w) {
    const MarkedWord word = load_word(*chunk.bits, LaneEntries::kCount / kLanes * lane() + w);
    const std::uint32_t first = LaneEntries::first() + kLanes * w;
    std::uint32_t left = stream.list == kEvery  ? word.nonzero
                         : stream.list == kOnes ? word.nonzero & ~word.large
                                                : word.large;
    for (; left != 0; left &= left - 1, ++number) {
      const unsigned bit = static_cast<unsigned>(__ffs(static_cast<int>(left))) - 1;
      if (number < Items::kCount)
        items.of[number] =
            Item::of(first + bit, word.negative >> bit & 1, 1 + (word.large >> bit & 1));
    }
  }
}

/// By a whole warp: puts the levels that are above 1 into `count` items.
__device__ void read_levels(const ChunkInHand& chunk, std::uint32_t count, Items& items) {
  const auto put = [&](std::uint32_t n, Item item, std::uint32_t level) {
    items.of[n] = Item::of(item.place(), item.negative(), level);
  };
  const auto carried = [&](Item item) { return chunk.bits->carried(item.place()); };
  if (chunk.at_top != 0) {
#pragma unroll 1
    for (std::uint32_t n = lane(); n < count; n += kLanes) {
      const Item item = items.of[n];
      if (item.level() > 1) put(n, item, chunk.level(item.place(), carried(item)));
    }
    return;
  }
  constexpr unsigned kTogether = 4;  // on their way together
#pragma unroll 1
  for (std::uint32_t first = lane(); first < count; first += kTogether * kLanes) {
    Item item[kTogether];
    float x[kTogether];
    std::uint32_t carries = 0;  // a bit an item
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const std::uint32_t n = first + k * kLanes;
      item[k] = n < count ? items.of[n] : Item{};
      x[k] = item[k].level() > 1 ? chunk.x(item[k].place()) : 0;
      carries |= item[k].level() > 1 ? carried(item[k]) << k : 0;
    }
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      const auto fixed = static_cast<std::uint32_t>(grid_fixed_in_range(x[k], chunk.scale) >> 32);
      if (item[k].level() > 1) put(first + k * kLanes, item[k], fixed + (carries >> k & 1));
    }
  }
}

/// The words of a stream.
class Words {
 public:
  __device__ Words(const ChunkInHand& chunk, const Stream& stream)
      : chunk_(chunk), stream_(stream) {}

  /// `next`: the place in the segment behind the list's entry before; becomes that behind this one.
  [[nodiscard]] __device__ std::uint32_t bits(Item item, std::uint32_t& next) const {
    const std::uint32_t level = level_of(item);
    if (stream_.dense)
      return rice_bits(level, stream_.level_k, kLevelBits) + (level != 0 ? 1u : 0u);
    return list_bits(take_gap(item, next), level);
  }

  template <typename Setter>
  __device__ void put(Item item, std::uint32_t& next, Setter& setter) const {
    constexpr Direction direction = Setter::kDirection;
    const std::uint32_t level = level_of(item);
    const RiceWord sign{item.negative(), 1};
    if (stream_.dense) {
      const RiceWord word = rice_word<direction>(level, stream_.level_k, kLevelBits);
      return setter.put(level != 0 ? join<direction>(word, sign) : word);
    }
    const std::uint32_t gap = take_gap(item, next), value = level - stream_.base;
    if (list_bits(gap, level) < 32) {
      ShortWord word =
          append<direction>(short_word<direction>(gap, stream_.gap_k), {item.negative(), 1});
      if (stream_.with_levels)
        word = append<direction>(word, short_word<direction>(value, stream_.level_k));
      return setter.out.put(word.bits, word.count);
    }
    setter.put(join<direction>(rice_word<direction>(gap, stream_.gap_k, kGapRawBits), sign));
    if (stream_.with_levels) setter.put(rice_word<direction>(value, stream_.level_k, kLevelBits));
  }

 private:
  /// Up to 31 bits of a stream, as a RiceWord has them: the kernel takes a fifth more instructions
  /// where short words are of 64 bits.
  struct ShortWord {
    std::uint32_t bits;
    unsigned count;
  };
  template <Direction direction>
  [[nodiscard]] static __device__ ShortWord append(ShortWord first, ShortWord next) {
    const unsigned count = first.count + next.count;
    if constexpr (direction == Direction::upward)
      return {first.bits | next.bits << first.count, count};
    return {first.bits << next.count | next.bits, count};
  }
  template <Direction direction>
  [[nodiscard]] static __device__ ShortWord short_word(std::uint32_t v, unsigned k) {
    const std::uint32_t q = v >> k, ones = (1u << q) - 1;
    return append<direction>({direction == Direction::upward ? ones : ones << 1, q + 1},
                             {v & ((1u << k) - 1), k});
  }

  [[nodiscard]] __device__ std::uint32_t level_of(Item item) const {
    const std::uint32_t level = item.level();
    if (level != Item::kLong) return level;
    const std::uint32_t i = item.place();
    return chunk_.level(i, chunk_.bits->carried(i));
  }
  [[nodiscard]] __device__ std::uint32_t take_gap(Item item, std::uint32_t& next) const {
    const std::uint32_t place = chunk_.place + item.place(), gap = place - next;
    next = place + 1;
    return gap;
  }
  [[nodiscard]] __device__ std::uint32_t list_bits(std::uint32_t gap, std::uint32_t level) const {
    return rice_bits(gap, stream_.gap_k, kGapRawBits) + 1 +
           (stream_.with_levels ? rice_bits(level - stream_.base, stream_.level_k, kLevelBits) : 0);
  }

  const ChunkInHand& chunk_;
  const Stream& stream_;
};

/// By a whole warp: the chunk's part of a stream, which begins at `bit` of the slot and goes up, or
/// below it and goes down; behind the segment's last the end mark.
template <typename Setter>
__device__ void write_stream(const ChunkInHand& chunk, const Stream& stream, std::uint32_t bit,
                             Items& items) {
  const Words words(chunk, stream);
  const auto beside = [&](std::uint32_t bits) {  // that many bits further along
    return Setter::kDirection == Direction::upward ? bit + bits : bit - bits;
  };
  std::uint32_t all = chunk.entries, own = 0, next = 0;
  if (!stream.dense) {
    own = warp_exclusive_sum(lane_entries(*chunk.bits, stream.list).count(), all);
    next = place_after(chunk, stream.list, chunk.index);
  }
#pragma unroll 1
  for (std::uint32_t base = 0; base < all; base += Items::kCount) {
    const std::uint32_t count = min(all - base, Items::kCount);
    list_items(chunk, stream, own, base, items);
    __syncwarp();
    if (stream.with_levels) read_levels(chunk, count, items);
    __syncwarp();
    // Neighbours in the stream by one lane; an odd number each, so that lanes read different banks.
    const std::uint32_t each = divide_up(count, kLanes) | 1;
    const std::uint32_t begin = min(each * lane(), count), end = min(begin + each, count);
    const std::uint32_t before_own =
        begin == 0 ? next : chunk.place + items.of[begin - 1].place() + 1;
    std::uint32_t place = before_own, own_bits = 0, round_bits;
    for (std::uint32_t n = begin; n < end; ++n) own_bits += words.bits(items.of[n], place);
    const std::uint32_t before = warp_exclusive_sum(own_bits, round_bits);
    place = before_own;
    Setter setter{{chunk.slot, beside(before)}};
    for (std::uint32_t n = begin; n < end; ++n) words.put(items.of[n], place, setter);
    setter.out.flush();
    bit = beside(round_bits);
    next = chunk.place + items.of[count - 1].place() + 1;
    __syncwarp();  // all are read
  }
  if (stream.dense || !chunk.is_last() || lane() != 0) return;
  Setter setter{{chunk.slot, bit}};
  setter.put(
      rice_word<Setter::kDirection>(chunk.segment_entries - next, stream.gap_k, kGapRawBits));
  setter.out.flush();
}

__global__ void __launch_bounds__(kThreads, 6) write_chunk(Frame frame, Plan plan) {
  ChunkInHand chunk;
  if (!take_chunk(frame, plan, chunk)) return;
  const SegmentWord how = SegmentWord::unpack(frame(plan.words)[chunk.segment]);
  if (how.mode == SegmentMode::zero) return;
  Items& items = dynamic_shared<Items>()[warp_in_block()];
  const Chunk& state = chunk.states[chunk.index];
  if (how.mode == SegmentMode::dense) {
    write_stream<RiceSetter>(chunk, {.dense = true, .with_levels = true, .level_k = how.level},
                             state.bit[0], items);
  } else if (how.mode == SegmentMode::one_list) {
    write_stream<RiceSetter>(chunk, {kEvery, false, true, 1, how.others, how.level}, state.bit[0],
                             items);
  } else {
    write_stream<RiceSetter>(chunk, {kOnes, false, false, 0, how.ones, 0}, state.bit[0], items);
    write_stream<DownwardRiceSetter>(chunk, {kOthers, false, true, 2, how.others, how.level},
                                     state.bit[1], items);
  }
}

}  // namespace

void write_segments(const Frame& frame, const Plan& plan, Queue& queue) {
  launch_chunks(write_chunk, sizeof(Items), frame, plan, queue);
}

}  // namespace atomo::cuda::coordinate
