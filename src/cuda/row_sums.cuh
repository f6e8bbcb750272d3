// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a warp decodes of several messages: entries stay in registers while one message after the other
/// is added to them, so that the tensor is read and written once.

#include "cuda/entries.cuh"

namespace atomo::cuda {

/// By a whole warp: a bit for each message that has a body proper of `bytes` bytes for the layer;
/// those of another length are refused.
__device__ inline std::uint32_t open_fixed_bodies(const Frames& frames, std::uint32_t layer,
                                                  std::uint64_t bytes, Status when_short) {
  std::uint32_t sound = 0;
#pragma unroll 1
  for (std::uint32_t m = 0; m < frames.count; ++m)
    sound |= open_fixed_body(frames[m], layer, bytes, when_short) ? 1u << m : 0u;
  return sound;
}

/// Takes the lowest bit away; its number.
__device__ inline std::uint32_t take_message(std::uint32_t& messages) {
  const auto m = static_cast<std::uint32_t>(__ffs(static_cast<int>(messages)) - 1);
  messages &= messages - 1;
  return m;
}

/// Entries of a row, four neighbours a lane.
inline constexpr unsigned kSumRow = 4 * kLanes;
/// Rows that a warp adds up together: more would leave an SM too few warps.
inline constexpr unsigned kSumRows = 4;

/// kRows rows from entry `first` of n on.
template <unsigned kRows>
class RowSums {
 public:
  __device__ RowSums(float* y, std::uint64_t first, std::uint64_t n, DecodeInto into)
      : y_(y), at_(first + 4 * lane()), n_(n), into_(into) {
    if (!into.add) return;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      const std::uint64_t i = at_ + row * kSumRow;
      if (is_vector(i)) {
        const float4 four = *reinterpret_cast<const float4*>(y_ + i);
        sum_[row][0] = four.x, sum_[row][1] = four.y, sum_[row][2] = four.z, sum_[row][3] = four.w;
      } else {
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) sum_[row][k] = i + k < n_ ? y_[i + k] : 0.0f;
      }
    }
  }

  /// Where the lane's entries of a row begin.
  [[nodiscard]] __device__ std::uint64_t at(unsigned row) const { return at_ + row * kSumRow; }
  /// The values that a message has for them.
  __device__ void put(unsigned row, const float (&v)[4]) {
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) cuda::put(&sum_[row][k], v[k], into_);
  }
  __device__ void store() const {
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      if (at(row) < n_) put_four(y_, at(row), n_, sum_[row], {});
    }
  }

 private:
  [[nodiscard]] __device__ bool is_vector(std::uint64_t i) const {
    return i + 4 <= n_ && reinterpret_cast<std::uintptr_t>(y_ + i) % 16 == 0;
  }

  float* y_;
  std::uint64_t at_, n_;
  DecodeInto into_;
  float sum_[kRows][4];
};

}  // namespace atomo::cuda
