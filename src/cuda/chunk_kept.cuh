// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What messages of chunked top-k keep of some entries of a layer, once their slots are read
/// (chunk_topk_decode.cu): what chunk_put.cu and tile_transform.cu share.

#include "cuda/bit_stream.cuh"
#include "cuda/chunk_topk.cuh"

namespace atomo::cuda::chunk_topk {

using format::ChunkBody;

/// What a slot of a group holds: the place in its chunk, or nothing.
inline constexpr std::uint16_t kUnused = 0x8000, kUpper = 0x4000, kPlace = 0x0FFF;

__device__ inline std::uint32_t load_half_word(const std::byte* p) {
  return static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8;
}
/// The code in the lowest bits of a word.
__device__ inline std::uint32_t code_in(std::uint32_t word, unsigned bits) {
  return bits == 32 ? word : word & ((1u << bits) - 1);
}
/// A slot's code.
__device__ inline std::uint32_t code_of(const BitView& values, unsigned bits, std::uint32_t slot) {
  return code_in(values.peek32(std::uint64_t{slot} * bits), bits);
}

/// By a whole warp: a bit for each message whose body of the job holds what the format says.
__device__ inline std::uint32_t sound_messages(const Frames& frames, const DecodePlan& plan,
                                               std::uint32_t job) {
  bool good = false;
  if (lane() < frames.count) {
    const Frame frame = frames[lane()];
    good = frame.layer(frame(plan.jobs)[job].layer).decodes != 0 &&
           frame(plan.readable)[job] != 0 && frame(plan.broken)[job] == 0;
  }
  return __ballot_sync(kAllLanes, good);
}

/// An entry that a message keeps, counted from the first of a range; kNowhere: none of the range.
struct KeptEntry {
  static constexpr std::uint32_t kNowhere = ~0u;
  std::uint32_t place = kNowhere;
  float value = 0;
};

/// A slot, and what memory says of it while that is on its way.
struct SlotLoad {
  std::uint32_t held = kUnused;  ///< what it holds
  BitView::Pair code;            ///< the words around its code
};

/// The slots of the chunks that the entries from `begin` to before `end` of a job's sequence are in, of at
/// most 4,096 entries.
class SlotRange {
 public:
  SlotRange() = default;
  __device__ SlotRange(const ChunkBody& at, std::uint64_t begin, std::uint64_t end)
      : begin_(begin),
        first_chunk_(begin / at.chunk),
        entries_(static_cast<std::uint32_t>(end - begin)),
        count_((static_cast<std::uint32_t>((end - 1) / at.chunk - first_chunk_) + 1) * at.keep) {}

  [[nodiscard]] __device__ std::uint32_t entries() const { return entries_; }
  /// Slots of a message.
  [[nodiscard]] __device__ std::uint32_t count() const { return count_; }

  /// Asks memory for slot i of a message.
  [[nodiscard]] __device__ SlotLoad load(const Frame& frame, const DecodePlan& plan, const Job& job,
                                         std::uint32_t i) const {
    const ChunkBody& at = job.body;
    const Slot slot(*this, at, i);
    SlotLoad load;
    if (slot.rank >= at.keep_of(slot.chunk)) return load;
    load.held = (frame(plan.places) + job.first_slot + first_chunk_ * at.keep)[i];
    load.code =
        slot.codes(at, body_of(frame, job)).load_pair(std::uint64_t{slot.number} * at.value_bits);
    return load;
  }
  /// What it holds.
  [[nodiscard]] __device__ KeptEntry entry(const Frame& frame, const Job& job, std::uint32_t i,
                                           const SlotLoad& load) const {
    if ((load.held & kUnused) != 0) return {};
    const ChunkBody& at = job.body;
    const Slot slot(*this, at, i);
    const std::uint64_t place = slot.chunk * at.chunk + (load.held & kPlace) - begin_;
    if (place >= entries_) return {};
    const std::byte* const body = body_of(frame, job);
    const std::uint32_t own = load.code.whole
                                  ? code_in(load.code.bits(), at.value_bits)
                                  : code_of(slot.codes(at, body), at.value_bits, slot.number);
    const std::uint32_t upper = (load.held & kUpper) != 0 ? 1u : 0u;
    const std::byte* const levels = body + at.levels_at + 2 * slot.group * at.level_words;
    const float value = format::chunk_value(
        job.config.values, at.lists_upper ? upper | own << 1 : own,
        [&](unsigned w) { return static_cast<std::uint16_t>(load_half_word(levels + 2 * w)); });
    return {static_cast<std::uint32_t>(place), value};
  }

 private:
  /// Where slot i is.
  struct Slot {
    std::uint64_t chunk, group;
    std::uint32_t rank, number;  ///< in the chunk, in the group

    __device__ Slot(const SlotRange& range, const ChunkBody& at, std::uint32_t i) {
      const std::uint32_t before = i / at.keep;
      rank = i - before * at.keep;
      chunk = range.first_chunk_ + before;
      group = chunk >> core::countr_zero(at.group_chunks);
      number = (static_cast<std::uint32_t>(chunk) & (at.group_chunks - 1)) * at.keep + rank;
    }
    [[nodiscard]] __device__ BitView codes(const ChunkBody& at, const std::byte* body) const {
      return {body + at.values_of(group), at.value_bytes_of(at.group_slots(group))};
    }
  };
  [[nodiscard]] __device__ static const std::byte* body_of(const Frame& frame, const Job& job) {
    return frame.message + frame.layer(job.layer).body_at;
  }

  std::uint64_t begin_;        ///< entry
  std::uint64_t first_chunk_;  ///< that has entries of these
  std::uint32_t entries_, count_;
};

}  // namespace atomo::cuda::chunk_topk
