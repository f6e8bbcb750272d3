// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a warp decodes of several messages: entries stay in registers while one message after the other
/// is added to them, so that the tensor is read and written once.

#include <type_traits>

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

/// `visit(adds)`, `adds` a constant: whether values are added to the output.
template <typename Visit>
__device__ inline void with_add(DecodeInto into, Visit visit) {
  if (into.add) {
    visit(std::true_type{});
  } else {
    visit(std::false_type{});
  }
}

/// kRows rows from entry `first` of n on; kAdd is what `with_add` tells.
template <unsigned kRows, bool kAdd>
class RowSums {
 public:
  __device__ RowSums(float* y, std::uint64_t first, std::uint64_t n, DecodeInto into)
      : to_(in_one(y + first + 4 * lane())), at_(first + 4 * lane()), n_(n), alpha_(into.alpha) {
    whole_ =
        at_ + (kRows - 1) * kSumRow + 4 <= n_ && reinterpret_cast<std::uintptr_t>(to_) % 16 == 0;
    if constexpr (kAdd) {
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row) load_row(row);
    }
  }

  /// Where the lane's entries of a row begin.
  [[nodiscard]] __device__ std::uint64_t at(unsigned row) const { return at_ + row * kSumRow; }
  /// The values that a message has for them.
  __device__ void put(unsigned row, const float (&v)[4]) {
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) sum_[row][k] = kAdd ? sum_[row][k] + (alpha_ * v[k]) : v[k];
  }
  __device__ void store() const {
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) store_row(row);
  }
  /// The same of fours that are not what they were.
  __device__ void store_changed(const RowSums& old) const {
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      std::uint32_t changed = 0;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        changed |= __float_as_uint(sum_[row][k]) ^ __float_as_uint(old.sum_[row][k]);
      if (changed != 0) store_row(row);
    }
  }

 private:
  __device__ void load_row(unsigned row) {
    const float* const from = to_ + row * kSumRow;
    if (whole_) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      sum_[row][0] = four.x, sum_[row][1] = four.y, sum_[row][2] = four.z, sum_[row][3] = four.w;
    } else {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) sum_[row][k] = at(row) + k < n_ ? from[k] : 0.0f;
    }
  }
  __device__ void store_row(unsigned row) const {
    float* const to = to_ + row * kSumRow;
    if (whole_) {
      *reinterpret_cast<float4*>(to) =
          make_float4(sum_[row][0], sum_[row][1], sum_[row][2], sum_[row][3]);
    } else {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        if (at(row) + k < n_) to[k] = sum_[row][k];
      }
    }
  }

  float* to_;
  std::uint64_t at_, n_;
  float alpha_;
  bool whole_;  ///< all of the lane's rows exist and are aligned
  float sum_[kRows][4] = {};
};

}  // namespace atomo::cuda
