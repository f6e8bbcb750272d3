// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The content of a group on its way into the body: lanes' bits meet in shared memory, a window a
/// strand, whole words leave it.

#include "cuda/cub.cuh"
#include "cuda/duo_code.cuh"

namespace atomo::cuda {

/// Words of a strand's window: 128 pairs of 63 bits, and what was left.
inline constexpr std::uint32_t kWindowWords = 256;

/// Both strands of a group on their way to its slot, by a whole warp. The upward strand fills the slot
/// from its first word on, the downward one from its last; they are joined at the end. Windows have
/// the bits of a strand in its order, the first the highest of a word.
class StrandWindows {
 public:
  /// `windows` are those of the upward and of the downward strand.
  __device__ StrandWindows(std::uint32_t* windows, std::uint32_t* slot, std::uint64_t slot_words)
      : windows_(windows), slot_(slot), slot_words_(static_cast<std::uint32_t>(slot_words)) {
    for (std::uint32_t i = lane(); i < 2 * kWindowWords; i += kLanes) windows_[i] = 0;
    __syncwarp();
  }

  /// Each lane's pairs, all on one strand, behind those that lanes before it have on that strand; a
  /// count of 0 where there is no pair.
  template <unsigned kDuos>
  __device__ void put(const DuoBits (&pairs)[kDuos], bool upward) {
    // Both strands are summed at once: 128 pairs of 63 bits fit 16 bits.
    const unsigned half = upward ? 0 : 16;
    std::uint32_t own = 0, total;
    for (const DuoBits& pair : pairs) own += pair.count;
    const std::uint32_t before = warp_exclusive_sum(own << half, total) >> half & 0xFFFFu;
    std::uint32_t* const window = upward ? windows_ : windows_ + kWindowWords;
    std::uint32_t bit = (upward ? up_.fill : down_.fill) + before, held = 0;
    std::uint64_t bits = 0;
    for (const DuoBits& pair : pairs) {
      if (held + pair.count > 64) {
        set(window, bit, bits, held);
        bit += held;
        bits = held = 0;
      }
      bits = bits << pair.count | pair.bits;
      held += pair.count;
    }
    set(window, bit, bits, held);
    __syncwarp();
    drain(windows_, up_, total & 0xFFFFu, true);
    drain(windows_ + kWindowWords, down_, total >> 16, false);
  }

  /// Lets the strands meet. Returns the bits of both.
  __device__ std::uint64_t finish() {
    const std::uint32_t up = 32 * up_.words + up_.fill, down = 32 * down_.words + down_.fill;
    const std::uint32_t all = up + down, end = (all + 31) / 32;
    // Words move to lower places, the lower ones first.
    for (std::uint32_t first = up_.words; first < end; first += kLanes) {
      const std::uint32_t i = first + lane();
      std::uint32_t word = 0;
      if (i < end) {
        // From the group's end down so many bits are not below the word; the last 32 are its own.
        const std::uint32_t behind = all - 32 * i;
        word = __funnelshift_l(downward_word(behind / 32), downward_word(behind / 32 - 1),
                               behind % 32);
        if (i == up_.words) word |= __brev(windows_[0]);
      }
      __syncwarp();
      if (i < end) slot_[i] = word;
      __syncwarp();
    }
    return all;
  }

 private:
  /// What of a strand has left its window, and bits that are still in it.
  struct Strand {
    std::uint32_t words = 0, fill = 0;
  };

  /// A word of the downward strand; 0 outside of it.
  __device__ std::uint32_t downward_word(std::uint32_t k) const {
    if (k < down_.words) return slot_[slot_words_ - 1 - k];
    return k == down_.words ? windows_[kWindowWords] : 0;
  }

  /// ORs the low `count` bits in from `bit` on, the highest first.
  __device__ static void set(std::uint32_t* window, std::uint32_t bit, std::uint64_t bits,
                             std::uint32_t count) {
    if (count == 0) return;
    const unsigned shift = bit % 32;
    bits <<= 64 - count;
    const auto low = static_cast<std::uint32_t>(bits),
               high = static_cast<std::uint32_t>(bits >> 32);
    const std::uint32_t words[3] = {high >> shift, __funnelshift_r(low, high, shift),
                                    __funnelshift_r(0u, low, shift)};
    for (unsigned k = 0; k < 3; ++k) {
      if (words[k] != 0) atomicOr(&window[bit / 32 + k], words[k]);
    }
  }
  /// Writes the whole words out and keeps the rest; `more` bits have come.
  __device__ void drain(std::uint32_t* window, Strand& strand, std::uint32_t more, bool upward) {
    const std::uint32_t all = strand.fill + more, whole = all / 32, rest = window[whole];
    for (std::uint32_t i = lane(); i < whole; i += kLanes) {
      const std::uint32_t place = strand.words + i;
      slot_[upward ? place : slot_words_ - 1 - place] = upward ? __brev(window[i]) : window[i];
    }
    __syncwarp();
    for (std::uint32_t i = lane(); i <= whole; i += kLanes) window[i] = i == 0 ? rest : 0;
    __syncwarp();
    strand.words += whole;
    strand.fill = all % 32;
  }

  std::uint32_t* windows_;
  std::uint32_t* slot_;
  std::uint32_t slot_words_;
  Strand up_, down_;
};

}  // namespace atomo::cuda
