// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The content of a group on its way into its slot: lanes' bits meet in shared memory, both strands
/// in one buffer, from its ends.

#include "cuda/cub.cuh"
#include "cuda/duo_code.cuh"

namespace atomo::cuda {

/// Words of a buffer for a group whose content has `slot_words` at most: where the strands meet both
/// may have a word that is not full.
__host__ __device__ constexpr std::uint32_t strand_words(std::uint64_t slot_words) {
  return static_cast<std::uint32_t>(slot_words) + 1;
}

/// Both strands of a group, by a whole warp. The upward one fills the buffer from its first word on,
/// the downward one from its last. Words have the bits of a strand in its order, the first the
/// highest.
class Strands {
 public:
  /// `words`: `count` of them, in shared memory.
  __device__ Strands(std::uint32_t* words, std::uint32_t count) : words_(words), count_(count) {
    for (std::uint32_t i = lane(); i < count; i += kLanes) words[i] = 0;
    __syncwarp();
  }

  /// Each lane's bits, all on one strand, behind those that lanes before it have on that strand: `runs`
  /// one after the other, of which most lanes have the first alone.
  template <unsigned kRuns>
  __device__ void put(const DuoBits (&runs)[kRuns], bool upward) {
    // Both strands are summed at once: 128 pairs of 63 bits fit 16 bits.
    const unsigned half = upward ? 0 : 16;
    std::uint32_t own = 0, total;
    for (const DuoBits& run : runs) own += run.count;
    const std::uint32_t before = warp_exclusive_sum(own << half, total) >> half & 0xFFFFu;
    std::uint32_t bit = (upward ? up_ : down_) + before;
    set(bit, runs[0].bits, runs[0].count, upward);
    if (own != runs[0].count) {
#pragma unroll
      for (unsigned k = 1; k < kRuns; ++k) {
        bit += runs[k - 1].count;
        set(bit, runs[k].bits, runs[k].count, upward);
      }
    }
    up_ += total & 0xFFFFu;
    down_ += total >> 16;
  }

  /// Lets the strands meet in the group's slot. Returns the bits of both.
  __device__ std::uint32_t write(std::uint32_t* slot) const {
    __syncwarp();
    const std::uint32_t all = up_ + down_;
    for (std::uint32_t i = lane(); 32 * i < all; i += kLanes) {
      // From the group's end down so many bits are not below the word; the last 32 are its own.
      const std::uint32_t behind = all - 32 * i;
      slot[i] =
          (32 * i < up_ ? __brev(words_[i]) : 0) |
          __funnelshift_l(downward_word(behind / 32), downward_word(behind / 32 - 1), behind % 32);
    }
    return all;
  }

 private:
  /// 0 outside of the strand.
  __device__ std::uint32_t downward_word(std::uint32_t k) const {
    return k < (down_ + 31) / 32 ? words_[count_ - 1 - k] : 0;
  }

  /// ORs the low `count` bits in from `bit` of the strand on, the highest first.
  __device__ void set(std::uint32_t bit, std::uint64_t bits, std::uint32_t count, bool upward) {
    if (count == 0) return;
    const unsigned shift = bit % 32;
    bits <<= 64 - count;
    const auto low = static_cast<std::uint32_t>(bits),
               high = static_cast<std::uint32_t>(bits >> 32);
    const std::uint32_t parts[3] = {high >> shift, __funnelshift_r(low, high, shift),
                                    __funnelshift_r(0u, low, shift)};
    std::uint32_t* const first = words_ + (upward ? bit / 32 : count_ - 1 - bit / 32);
    const std::int32_t next = upward ? 1 : -1;
    for (std::int32_t k = 0; k < 3; ++k) {
      if (parts[k] != 0) atomicOr(first + k * next, parts[k]);
    }
  }

  std::uint32_t* words_;
  std::uint32_t count_;
  std::uint32_t up_ = 0, down_ = 0;  ///< bits of the strands
};

}  // namespace atomo::cuda
