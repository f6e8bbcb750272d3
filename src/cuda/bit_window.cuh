// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The content of a group on its way into the body: lanes' bits meet in shared memory, whole words
/// leave it.

#include "cuda/cub.cuh"
#include "cuda/duo_code.cuh"

namespace atomo::cuda {

/// Words of a window: 128 pairs of 63 bits, and what was left.
inline constexpr std::uint32_t kWindowWords = 256;

/// Bits of a group on their way to its slot, by a whole warp.
class BitWindow {
 public:
  __device__ BitWindow(std::uint32_t* window, std::uint32_t* slot) : window_(window), slot_(slot) {
    for (std::uint32_t i = lane(); i < kWindowWords; i += kLanes) window_[i] = 0;
    __syncwarp();
  }

  /// Each lane's pairs behind those of the lanes before it; a count of 0 where there is no pair.
  template <unsigned kDuos>
  __device__ void put(const DuoBits (&pairs)[kDuos]) {
    std::uint32_t own = 0, total;
    for (const DuoBits& pair : pairs) own += pair.count;
    std::uint32_t bit = fill_ + warp_exclusive_sum(own, total), held = 0;
    std::uint64_t bits = 0;
    for (const DuoBits& pair : pairs) {
      if (held + pair.count > 64) {
        set(bit, bits);
        bit += held;
        bits = held = 0;
      }
      if (pair.count != 0) bits |= pair.bits << held;
      held += pair.count;
    }
    set(bit, bits);
    __syncwarp();
    drain(fill_ + total);
  }

  /// Returns the bits of all.
  __device__ std::uint64_t finish() {
    if (fill_ != 0 && lane() == 0) slot_[0] = window_[0];
    return bits_ + fill_;
  }

 private:
  /// ORs 64 bits in from `bit` on.
  __device__ void set(std::uint32_t bit, std::uint64_t bits) {
    const unsigned shift = bit % 32;
    const auto low = static_cast<std::uint32_t>(bits),
               high = static_cast<std::uint32_t>(bits >> 32);
    const std::uint32_t words[3] = {low << shift, __funnelshift_l(low, high, shift),
                                    __funnelshift_l(high, 0u, shift)};
    for (unsigned k = 0; k < 3; ++k) {
      if (words[k] != 0) atomicOr(&window_[bit / 32 + k], words[k]);
    }
  }
  /// Writes the whole words of `total` bits out and keeps the rest.
  __device__ void drain(std::uint32_t total) {
    const std::uint32_t whole = total / 32, rest = window_[whole];
    for (std::uint32_t i = lane(); i < whole; i += kLanes) slot_[i] = window_[i];
    __syncwarp();
    for (std::uint32_t i = lane(); i <= whole; i += kLanes) window_[i] = i == 0 ? rest : 0;
    __syncwarp();
    slot_ += whole;
    bits_ += 32 * whole;
    fill_ = total % 32;
  }

  std::uint32_t* window_;
  std::uint32_t* slot_;
  std::uint32_t fill_ = 0;
  std::uint64_t bits_ = 0;
};

}  // namespace atomo::cuda
