// SPDX-License-Identifier: Apache-2.0
/// minmax: codes of 8 or 4 bits between a bucket's least and largest entry, drawn so that the result is
/// unbiased (math/minmax_rounding.hpp).
///
/// Mapping: a warp a unit of 1,024 entries, whole buckets of 128 to 1,024. A lane owns four neighbours
/// of a row of 128 entries, which are a whole block of draws; a row lies in one bucket. Writing, a
/// bucket is read twice, for its ends and for its codes, the second time from the L1 cache. Codes are
/// estimated in f32; a lane that has one in doubt, one of 1,024 at 8 bits, takes f64.
///
/// Traffic an element, the least: written from 4 bytes read (2 for halves), 1 or 1/2 written and 8 a
/// bucket; decoded from as many read a message, 4 written (and 4 read when added) for all messages
/// together. No shared memory. Draws depend on the entry alone. Words of the message are stored whole
/// where it is aligned to 4, else in bytes.

#include "core/philox.hpp"
#include "cuda/bit_stream.cuh"
#include "cuda/entries.cuh"
#include "cuda/fixed_length.cuh"
#include "cuda/row_sums.cuh"
#include "format/method_configs.hpp"
#include "math/minmax_rounding.hpp"

namespace atomo::cuda::fixed_length {
namespace {

using MinmaxPlan = Plan<MethodId::minmax>;

/// Where the parts of a layer's body are.
struct MinmaxLayout {
  std::uint64_t n, grid_bytes, code_bytes;
  std::uint32_t bucket_log, levels;
  bool nibbles;

  __device__ explicit MinmaxLayout(const Job& job) : n(job.n) {
    const MinmaxConfig config = format::minmax_config(job.params);
    bucket_log = static_cast<std::uint32_t>(config.bucket_log);
    nibbles = config.bits == 4;
    levels = (1u << config.bits) - 1;
    grid_bytes = 8 * divide_up(n, std::uint64_t{1} << bucket_log);
    code_bytes = nibbles ? divide_up(n, 2) : n;
  }
};

/// Numbers in whose order floats stand.
__device__ std::uint32_t order_of(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float of_order(std::uint32_t order) {
  return __uint_as_float((order >> 31) != 0 ? order & 0x7FFFFFFFu : ~order);
}

/// Least and largest entry of a bucket.
struct Ends {
  float least, largest;
};

/// By a whole warp: the ends of the entries [begin, end); `finite` is what this lane read.
__device__ Ends find_ends(const Entries& entries, std::uint64_t begin, std::uint64_t end,
                          bool& finite) {
  std::uint32_t least = ~0u, largest = 0;
  for (std::uint64_t row = begin; row < end; row += kSumRow) {
    const std::uint64_t i = row + 4 * lane();
    float x[4];
    entries.four(i, end, x);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      if (i + k >= end) continue;
      const bool sound = is_finite(x[k]);
      finite &= sound;
      const std::uint32_t order = order_of(sound ? x[k] : 0.0f);
      least = order < least ? order : least;
      largest = order > largest ? order : largest;
    }
  }
  return {of_order(__reduce_min_sync(kAllLanes, least)),
          of_order(__reduce_max_sync(kAllLanes, largest))};
}

/// The codes of a lane's four entries, each at `width` bits. Estimated in f32; where one of them may
/// be wrong, in f64. Entries that are not finite have the code 0: their message is refused.
__device__ std::uint32_t four_codes(const math::MinmaxGrid& grid,
                                    const math::MinmaxEstimate& estimate, bool estimates,
                                    std::uint32_t levels, const float (&x)[4], unsigned count,
                                    const PhiloxWords& words, unsigned width) {
  if (estimates) {
    std::uint32_t four = 0;
    bool doubt = false;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      float distance;
      const float up = math::minmax_estimated(estimate, x[k], words[k], distance);
      if (k >= count || !is_finite(x[k])) continue;
      doubt |= distance > estimate.sure;
      four |= static_cast<std::uint32_t>(up) << (width * k);
    }
    if (!doubt) return four;
  }
  const double inverse = math::minmax_inverse(grid);
  std::uint32_t four = 0;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) {
    if (k >= count || !is_finite(x[k])) continue;
    four |= math::minmax_code(grid, inverse, levels, x[k], words[k]) << (width * k);
  }
  return four;
}

__global__ void write_minmax(const Frame frame, const MinmaxPlan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const MinmaxLayout layout(*at.entry);
  const std::uint32_t layer = at.entry->layer;
  const Entries entries = frame.entries(layer);
  const Philox draws(frame.key(layer), Purpose::minmax);
  std::byte* const grids = frame.message + frame.layer(layer).body_at;
  std::byte* const codes = grids + layout.grid_bytes;
  const std::uint64_t first = at.index * kUnit, bucket = std::uint64_t{1} << layout.bucket_log;
  const std::uint64_t stop = layout.n - first < kUnit ? layout.n : first + kUnit;
  bool finite = true;
#pragma unroll 1
  for (std::uint64_t begin = first; begin < stop; begin += bucket) {
    const std::uint64_t end = stop - begin < bucket ? stop : begin + bucket;
    const Ends ends = find_ends(entries, begin, end, finite);
    const math::MinmaxGrid grid = math::minmax_grid(ends.least, ends.largest, layout.levels);
    if (lane() == 0) {
      std::byte* const own = grids + 8 * (begin >> layout.bucket_log);
      store_word(own, __float_as_uint(grid.low));
      store_word(own + 4, __float_as_uint(grid.step));
    }
    math::MinmaxEstimate estimate;
    const bool estimates = math::minmax_estimate(grid, ends.largest, layout.levels, estimate);
#pragma unroll 1
    for (std::uint64_t row = begin; row < end; row += kSumRow) {
      const std::uint64_t i = row + 4 * lane();
      float x[4];
      entries.four(i, end, x);
      const unsigned count = i >= end ? 0 : end - i < 4 ? static_cast<unsigned>(end - i) : 4;
      std::uint32_t four = four_codes(grid, estimate, estimates, layout.levels, x, count,
                                      draws(i / 4), layout.nibbles ? 4 : 8);
      if (layout.nibbles) {
        four |= __shfl_down_sync(kAllLanes, four, 1) << 16;
        if (lane() % 2 == 0 && i < end) store_word(codes + i / 2, four);
      } else if (i < end) {
        store_word(codes + i, four);
      }
    }
  }
  note_finite(frame, layer, finite);
}

__global__ void decode_minmax(const Frames frames, const MinmaxPlan plan, const DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const MinmaxLayout layout(*at.entry);
  const std::uint64_t n = layout.n, first = at.index * kUnit;
  const std::uint32_t layer = at.entry->layer;
  const std::uint32_t sound =
      open_fixed_bodies(frames, layer, layout.grid_bytes + layout.code_bytes, Status::truncated);
  if (sound == 0) return;
  float* const y = frames.first.layer(layer).y;
  with_add(into, [&](auto adds) {
#pragma unroll 1
    for (unsigned part = 0; part < kUnit; part += kSumRows * kSumRow) {
      RowSums<kSumRows, decltype(adds)::value> sums(y, first + part, n, into);
#pragma unroll 1
      for (std::uint32_t left = sound; left != 0;) {
        const Frame frame = frames[take_message(left)];
        const std::byte* const grids = frame.message + frame.layer(layer).body_at;
        const BitView codes(grids + layout.grid_bytes, layout.code_bytes);
        // Lane r has the grid of row r.
        const std::uint64_t row_at = first + part + std::uint64_t{lane() % kSumRows} * kSumRow;
        const std::byte* const own =
            grids + 8 * ((row_at < n ? row_at : n - 1) >> layout.bucket_log);
        const std::uint32_t low = load_word(own), step = load_word(own + 4);
        bool valid = (low & 0x7FFFFFFFu) < 0x7F800000u && is_magnitude(step);
        if (first + kUnit >= n && layout.nibbles && n % 2 != 0)
          valid &= (codes.peek32(8 * (layout.code_bytes - 1)) >> 4 & 15u) == 0;
        if (__all_sync(kAllLanes, valid) == 0 && lane() == 0) frame.refuse(layer, Status::corrupt);
#pragma unroll
        for (unsigned row = 0; row < kSumRows; ++row) {
          const std::uint64_t i = sums.at(row);
          const math::MinmaxGrid grid{
              __uint_as_float(__shfl_sync(kAllLanes, low, static_cast<int>(row))),
              __uint_as_float(__shfl_sync(kAllLanes, step, static_cast<int>(row)))};
          const unsigned width = layout.nibbles ? 4 : 8;
          const std::uint32_t four = codes.peek32(width * i), mask = layout.levels;
          float v[4];
#pragma unroll
          for (unsigned k = 0; k < 4; ++k)
            v[k] = math::minmax_value(grid, four >> (width * k) & mask);
          sums.put(row, v);
        }
      }
      sums.store();
    }
  });
}

}  // namespace

ATOMO_LAUNCH_UNITS(MinmaxPlan, write_minmax, decode_minmax)

}  // namespace atomo::cuda::fixed_length
