// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A layer of which some entries are sent (cpu/kept_entries.hpp): a warp walks the marks of a segment of
/// 4,096 entries, a lane four neighbours at a time, so that tensors move in vectors and the rank of
/// an entry is a count of bits below it.

#include "coding/marks.hpp"
#include "cuda/entries.cuh"

namespace atomo::cuda {

/// Entries of a segment, which a warp gathers or scatters.
inline constexpr std::uint64_t kKeptSegment = coding::kMarksSegment;
/// Entries that a warp looks at together.
inline constexpr std::uint64_t kKeptStep = 4 * kLanes;

/// Entry `segment` * 4,096 of a layer of n, and the one behind the segment.
struct SegmentRange {
  std::uint64_t begin, end;

  __device__ SegmentRange(std::uint64_t n, std::uint64_t segment)
      : begin(segment * kKeptSegment), end(n - begin < kKeptSegment ? n : begin + kKeptSegment) {}
};

/// By a whole warp: `visit(i, bits, rank)` for every fourth entry i of the segment, by one lane
/// each. Bit k of `bits`: entry i + k is marked; `rank`: marked entries of the segment before i.
/// `word(w)` gives the marks of entries 64 w to 64 w + 63, none of them from n on.
template <typename Word, typename Visit>
__device__ inline void visit_kept(const SegmentRange& range, Word word, Visit visit) {
  std::uint32_t rank = 0;
  for (std::uint64_t base = range.begin; base < range.end; base += kKeptStep) {
    const std::uint64_t low = word(base / 64);
    const std::uint64_t high = base + 64 < range.end ? word(base / 64 + 1) : 0;
    const bool upper = lane() >= kLanes / 2;
    const std::uint64_t own = upper ? high : low;
    const unsigned shift = 4 * (lane() % (kLanes / 2));
    const auto in_low = static_cast<std::uint32_t>(__popcll(low));
    const auto below =
        static_cast<std::uint32_t>(__popcll(own & ((std::uint64_t{1} << shift) - 1)));
    const std::uint64_t at = base + 4 * lane();
    if (at < range.end)
      visit(at, static_cast<unsigned>(own >> shift) & 15u, rank + (upper ? in_low : 0) + below);
    rank += in_low + static_cast<std::uint32_t>(__popcll(high));
  }
}

/// y[i] to y[i + 3], 0 from `end` on and where nothing is added to it.
__device__ inline void load_four(const float* y, std::uint64_t i, std::uint64_t end,
                                 DecodeInto into, float (&out)[4]) {
  if (into.add && i + 4 <= end && reinterpret_cast<std::uintptr_t>(y + i) % 16 == 0) {
    const float4 four = *reinterpret_cast<const float4*>(y + i);
    out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
  } else {
    for (unsigned k = 0; k < 4; ++k) out[k] = into.add && i + k < end ? y[i + k] : 0.0f;
  }
}

__device__ inline bool differ(const float (&a)[4], const float (&b)[4]) {
  bool any = false;
  for (unsigned k = 0; k < 4; ++k) any = any || __float_as_uint(a[k]) != __float_as_uint(b[k]);
  return any;
}

/// y[i + k] = y[i + k] + (alpha * v[k]) for the entries before `end`. A sum that changes nothing is
/// not stored: most are, where few entries are marked.
__device__ inline void add_four_kept(float* y, std::uint64_t i, std::uint64_t end,
                                     const float (&v)[4], float alpha) {
  float old[4], sum[4];
  load_four(y, i, end, {true}, old);
  for (unsigned k = 0; k < 4; ++k) sum[k] = old[k] + (alpha * v[k]);
  if (differ(sum, old)) put_four(y, i, end, sum, {});
}

/// By a whole warp: puts `value(rank)` where an entry is marked and 0 elsewhere.
template <typename Word, typename Value>
__device__ inline void scatter_kept(const SegmentRange& range, Word word, Value value, float* y,
                                    DecodeInto into) {
  visit_kept(range, word, [&](std::uint64_t i, unsigned bits, std::uint32_t rank) {
    float v[4];
    for (unsigned k = 0; k < 4; ++k) v[k] = ((bits >> k) & 1u) != 0 ? value(rank++) : 0.0f;
    if (into.add) {
      add_four_kept(y, i, range.end, v, into.alpha);
    } else {
      put_four(y, i, range.end, v, into);
    }
  });
}

}  // namespace atomo::cuda
