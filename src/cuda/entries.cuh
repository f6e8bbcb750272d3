// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What operations that send every entry share: a warp's reads of a tensor, and values on their way
/// into one.

#include "cuda/frame.cuh"

namespace atomo::cuda {

/// Not NaN.
__device__ inline bool is_infinite(float x) {
  return (__float_as_uint(x) & 0x7FFFFFFFu) == 0x7F800000u;
}

/// The bits of the largest magnitude, which are in the order of what they stand for; those of Inf and NaN
/// are beyond all others.
template <unsigned kCount>
__device__ inline std::uint32_t largest_magnitude(const float (&x)[kCount]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (const float v : x) largest = std::max(largest, __float_as_uint(v) & 0x7FFFFFFFu);
  return largest;
}

/// Non-finite values become 0; false where there was one, with what is the largest magnitude then.
template <unsigned kCount>
__device__ inline bool drop_non_finite(float (&x)[kCount], std::uint32_t& largest) {
  largest = largest_magnitude(x);
  if (largest < 0x7F800000u) return true;
#pragma unroll
  for (float& v : x) v = is_finite(v) ? v : 0.0f;
  largest = largest_magnitude(x);
  return false;
}
template <unsigned kCount>
__device__ inline bool drop_non_finite(float (&x)[kCount]) {
  std::uint32_t largest;
  return drop_non_finite(x, largest);
}

/// v[k], k no constant: a select, so that the values stay in registers.
__device__ inline float choose(const float (&v)[8], unsigned k) {
  float chosen = v[0];
#pragma unroll
  for (unsigned j = 1; j < 8; ++j) chosen = j == k ? v[j] : chosen;
  return chosen;
}

/// out[k] = entry first + k * step, 0 where that is not below `end`. All loads are on their way
/// before the first is needed; no place is compared where the last one is below `end`.
template <unsigned kCount>
__device__ inline void load_rows(const Entries& entries, std::uint64_t first, unsigned step,
                                 std::uint64_t end, float (&out)[kCount]) {
  const bool whole = first + std::uint64_t{kCount - 1} * step < end;
  if (entries.dtype == DType::f32) {
    const auto* const x = static_cast<const float*>(entries.x) + first;
    if (whole) {
#pragma unroll
      for (unsigned k = 0; k < kCount; ++k) out[k] = x[k * step];
      return;
    }
#pragma unroll
    for (float& v : out) v = 0.0f;
#pragma unroll 1
    for (unsigned k = 0; k < kCount && first + std::uint64_t{k} * step < end; ++k) {
      const float v = x[k * step];
#pragma unroll
      for (unsigned j = 0; j < kCount; ++j) out[j] = j == k ? v : out[j];
    }
    return;
  }
  const auto* const x = static_cast<const std::uint16_t*>(entries.x) + first;
  std::uint16_t half[kCount];
#pragma unroll
  for (unsigned k = 0; k < kCount; ++k)
    half[k] = whole || first + std::uint64_t{k} * step < end ? x[k * step] : std::uint16_t{0};
#pragma unroll
  for (unsigned k = 0; k < kCount; ++k) out[k] = wide_half(half[k], entries.dtype == DType::f16);
}

/// The same; a non-finite entry counts as 0 and makes the answer false.
template <unsigned kCount>
__device__ inline bool load_entries(const Entries& entries, std::uint64_t first, unsigned step,
                                    std::uint64_t end, float (&out)[kCount]) {
  load_rows(entries, first, step, end, out);
  return drop_non_finite(out);
}

/// Entries i to i + 7, 0 from n on.
__device__ inline void eight_entries(const Entries& entries, std::uint64_t i, std::uint64_t n,
                                     float (&x)[8]) {
  const float* const at = static_cast<const float*>(entries.x) + i;
  if (entries.dtype == DType::f32 && i + 8 <= n && reinterpret_cast<std::uintptr_t>(at) % 16 == 0) {
    const float4 low = reinterpret_cast<const float4*>(at)[0],
                 high = reinterpret_cast<const float4*>(at)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
  float four[4];
  entries.four(i, n, four);
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) x[k] = four[k];
  entries.four(i + 4, n, four);
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) x[4 + k] = four[k];
}

/// By a whole warp that reads a layer of fixed length, each lane with what it met: `seal` takes a layer out
/// that is found non-finite when its place is known.
__device__ inline void note_finite(const Frame& frame, std::uint32_t layer, bool finite) {
  if (__all_sync(kAllLanes, finite) != 0 || lane() != 0) return;
  frame.mark_non_finite(layer);
  atomicAdd(&frame.state().gaps, 1u);
}

/// Whether the layer was found non-finite by an earlier launch: it has no body to write.
__device__ inline bool was_non_finite(const Frame& frame, std::uint32_t layer) {
  return (frame.layer(layer).flags & format::LayerRecord::kNonFinite) != 0;
}

__device__ inline void put(float* y, float v, DecodeInto into) {
  *y = into.add ? *y + (into.alpha * v) : v;
}

/// Entries i to i + 3, those from n on dropped. One vector access where the address allows it.
__device__ inline void put_four(float* y, std::uint64_t i, std::uint64_t n, const float (&v)[4],
                                DecodeInto into) {
  if (i + 4 > n || reinterpret_cast<std::uintptr_t>(y + i) % 16 != 0) {
    for (unsigned k = 0; k < 4; ++k) {
      if (i + k < n) put(y + i + k, v[k], into);
    }
    return;
  }
  auto* const at = reinterpret_cast<float4*>(y + i);
  float4 out = into.add ? *at : float4{};
  put(&out.x, v[0], into);
  put(&out.y, v[1], into);
  put(&out.z, v[2], into);
  put(&out.w, v[3], into);
  *at = out;
}

/// By a whole warp: refuses a body proper that has not `bytes` bytes. False when there is nothing
/// to decode.
__device__ inline bool open_fixed_body(const Frame& frame, std::uint32_t layer, std::uint64_t bytes,
                                       Status when_short) {
  const LayerState& state = frame.layer(layer);
  if (state.decodes == 0) return false;
  if (state.bytes == bytes) return true;
  if (lane() == 0) frame.refuse(layer, state.bytes < bytes ? when_short : Status::corrupt);
  return false;
}

/// A norm or a scale as a decoder accepts it: finite, sign bit 0.
__device__ inline bool is_magnitude(std::uint32_t bits) { return bits < 0x7F800000u; }

}  // namespace atomo::cuda
