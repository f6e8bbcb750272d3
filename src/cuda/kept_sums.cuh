// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sums of 4,096 entries in a block's shared memory, to which messages add the few entries that they keep. What
/// is not kept is 0, which is added to all sums at the end: it changes none but -0, whatever came before.

#include "cuda/kept_entries.cuh"

namespace atomo::cuda {

struct KeptSums {
  alignas(16) float at[kKeptSegment];
  alignas(16) std::uint8_t kept[kKeptSegment];  ///< messages that keep the entry

  /// Four neighbours begin.
  __device__ void begin(std::uint32_t i, const float (&y)[4]) {
    *reinterpret_cast<float4*>(at + i) = make_float4(y[0], y[1], y[2], y[3]);
    *reinterpret_cast<std::uint32_t*>(kept + i) = 0;
  }
  /// A message keeps an entry; no other thread adds to it at the same time.
  __device__ void add(std::uint32_t i, float v, DecodeInto into) {
    put(&at[i], v, into);
    ++kept[i];
  }
};

/// What the messages without an entry add to its sum.
class Absent {
 public:
  __device__ Absent(std::uint32_t messages, DecodeInto into)
      : messages_(messages), zero_(into.add ? into.alpha * 0.0f : 0.0f) {}

  [[nodiscard]] __device__ float sum(const KeptSums& sums, std::uint32_t i) const {
    return sums.kept[i] == messages_ ? sums.at[i] : sums.at[i] + zero_;
  }

 private:
  std::uint32_t messages_;
  float zero_;
};

}  // namespace atomo::cuda
