// SPDX-License-Identifier: Apache-2.0
/// minmax: codes of 8 or 4 bits between a bucket's least and largest entry, drawn so that the result is
/// unbiased (math/minmax_rounding.hpp).
///
/// Mapping: a warp a unit of 1,024 entries, whole buckets of 128 to 1,024. A lane owns four neighbours
/// of a row of 128 entries, which are a whole block of draws; a row lies in one bucket. Writing, a
/// bucket is read twice, for its ends and for its codes, the second time from the L1 cache; lanes make the
/// grids of all buckets at once. Codes are estimated in f32; a lane that has one in doubt, one of 1,024 at
/// 8 bits, takes f64.
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

/// Numbers in whose order floats stand, infinities and NaN outermost, and back.
__device__ std::int32_t order_of(float x) {
  const auto bits = static_cast<std::int32_t>(__float_as_uint(x));
  return bits ^ (bits >> 31 & 0x7FFFFFFF);
}
__device__ float of_order(std::int32_t order) {
  return __uint_as_float(static_cast<std::uint32_t>(order ^ (order >> 31 & 0x7FFFFFFF)));
}

/// A lane's entries of a unit's rows.
struct LaneEntries {
  Entries entries;
  std::uint64_t first;  ///< of the unit
  std::uint32_t count;  ///< of the unit
  bool vectors;         ///< rows are whole, and their fours are vectors in memory
  const float* at;      ///< then the lane's first

  __device__ LaneEntries(const Entries& of, std::uint64_t from, std::uint64_t n)
      : entries(of),
        first(from),
        count(n - from < kUnit ? static_cast<std::uint32_t>(n - from) : kUnit),
        at(static_cast<const float*>(of.x) + from + 4 * lane()) {
    vectors =
        of.dtype == DType::f32 && count == kUnit && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  }
  /// Those of a row: four, 0 where there is none.
  __device__ void four(std::uint32_t row, float (&x)[4]) const {
    if (vectors) {
      const float4 v = *reinterpret_cast<const float4*>(at + row);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
      entries.four(first + row + 4 * lane(), first + count, x);
    }
  }
  /// Entries of the unit from the lane's first of a row on.
  [[nodiscard]] __device__ std::uint32_t left(std::uint32_t row) const {
    if (vectors) return kSumRow;
    const std::uint32_t i = row + 4 * lane();
    return i < count ? count - i : 0;
  }
};

/// Least and largest entry of a bucket; both 0 where one is not finite.
struct Ends {
  float least, largest;
};

/// By a whole warp: the ends of the rows from `begin` to `end`.
__device__ Ends find_ends(const LaneEntries& entries, std::uint32_t begin, std::uint32_t end,
                          bool& finite) {
  constexpr std::int32_t kInfinity = 0x7F800000;
  std::int32_t least = kInfinity, largest = ~kInfinity;
#pragma unroll 1
  for (std::uint32_t row = begin; row < end; row += kSumRow) {
    float x[4];
    entries.four(row, x);
    const std::uint32_t left = entries.left(row);
    if (left == 0) break;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const std::int32_t order = order_of(k < left ? x[k] : x[0]);
      least = order < least ? order : least;
      largest = order > largest ? order : largest;
    }
  }
  least = __reduce_min_sync(kAllLanes, least);
  largest = __reduce_max_sync(kAllLanes, largest);
  if (largest < kInfinity && least > ~kInfinity) return {of_order(least), of_order(largest)};
  finite = false;
  return {0, 0};
}

/// The codes of a lane's four entries, of which `left` exist, each at `width` bits, exactly. Entries that are
/// not finite have the code 0: their message is refused.
__device__ std::uint32_t exact_codes(const math::MinmaxGrid& grid, std::uint32_t levels,
                                     const float (&x)[4], std::uint32_t left,
                                     const PhiloxWords& words, unsigned width) {
  const double inverse = math::minmax_inverse(grid);
  std::uint32_t four = 0;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) {
    if (k < left && is_finite(x[k]))
      four |= math::minmax_code(grid, inverse, levels, x[k], words[k]) << (width * k);
  }
  return four;
}

/// The same, estimated in f32, and whether all of them are sure.
__device__ std::uint32_t estimated_codes(const math::MinmaxEstimate& estimate, const float (&x)[4],
                                         const PhiloxWords& words, unsigned width, bool& sure) {
  std::uint32_t four = 0;
  float farthest = 0;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) {
    float distance;
    const std::uint32_t code = math::minmax_estimated(estimate, x[3 - k], words[3 - k], distance);
    farthest = distance > farthest ? distance : farthest;
    four = (four << width) + code;
  }
  sure = farthest <= estimate.sure;
  return four;
}

__global__ void write_minmax(const Frame frame, const MinmaxPlan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const MinmaxLayout layout(*at.entry);
  const std::uint32_t layer = at.entry->layer;
  const std::uint64_t first = at.index * kUnit;
  const LaneEntries entries(frame.entries(layer), first, layout.n);
  const Philox draws(frame.key(layer), Purpose::minmax);
  std::byte* const grids = frame.message + frame.layer(layer).body_at;
  const unsigned width = layout.nibbles ? 4 : 8;
  std::byte* to = grids + layout.grid_bytes + (first + 4 * lane()) * width / 8;
  // A word is of one lane, or, of nibbles, of an even one and the next.
  const bool stores = !layout.nibbles || lane() % 2 == 0;
  const bool words_aligned = reinterpret_cast<std::uintptr_t>(to) % 4 == 0;
  const std::uint32_t bucket = 1u << layout.bucket_log;
  bool finite = true;
  Ends own{0, 0};  // lane b: of bucket b
  for (std::uint32_t b = 0, begin = 0; begin < entries.count; ++b, begin += bucket) {
    const Ends ends = find_ends(entries, begin, min(begin + bucket, entries.count), finite);
    if (lane() == b) own = ends;
  }
  const math::MinmaxGrid grid = math::minmax_grid(own.least, own.largest, layout.levels);
  math::MinmaxEstimate estimate;
  const bool estimates = math::minmax_estimate(grid, own.largest, layout.levels, estimate);
  if (lane() << layout.bucket_log < entries.count) {
    std::byte* const to = grids + 8 * ((first >> layout.bucket_log) + lane());
    store_word(to, __float_as_uint(grid.low));
    store_word(to + 4, __float_as_uint(grid.step));
  }
#pragma unroll 1
  for (std::uint32_t b = 0, begin = 0; begin < entries.count; ++b, begin += bucket) {
    const auto from = static_cast<int>(b);
    const math::MinmaxGrid here{__shfl_sync(kAllLanes, grid.low, from),
                                __shfl_sync(kAllLanes, grid.step, from)};
    const math::MinmaxEstimate with{
        here.low, __shfl_sync(kAllLanes, estimate.inverse, from),
        __shfl_sync(kAllLanes, estimates ? estimate.sure : -1.0f, from)};
    const std::uint32_t end = min(begin + bucket, entries.count);
#pragma unroll 1
    for (std::uint32_t row = begin; row < end; row += kSumRow, to += kSumRow * width / 8) {
      const std::uint32_t left = entries.left(row);
      float x[4];
      entries.four(row, x);
      const PhiloxWords words = draws(first / 4 + lane() + row / 4);
      bool sure;
      std::uint32_t four = estimated_codes(with, x, words, width, sure);
      if (!sure) four = exact_codes(here, layout.levels, x, left, words, width);
      if (left < 4) four &= (1u << (width * left)) - 1;
      if (layout.nibbles) four |= __shfl_down_sync(kAllLanes, four, 1) << 16;
      if (!stores || left == 0) continue;
      if (words_aligned) {
        *reinterpret_cast<std::uint32_t*>(to) = four;
      } else {
        store_bytes(to, four, min(4u, (left * width + 7) / 8));
      }
    }
  }
  note_finite(frame, layer, finite);
}

/// math::minmax_value by a fused operation, whose product is exact, too; the code becomes a number by its
/// bits.
__device__ float value_of(double low, double step, std::uint32_t code) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr double kWhole = 0x1p52;
  const double k = std::bit_cast<double>(std::bit_cast<std::uint64_t>(kWhole) | code) - kWhole;
  const auto v = static_cast<float>(fma(k, step, low));
  return v < kMost ? v : kMost;
}

__global__ void decode_minmax(const Frames frames, const MinmaxPlan plan, const DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const MinmaxLayout layout(*at.entry);
  const std::uint64_t n = layout.n, first = at.index * kUnit;
  const std::uint32_t layer = at.entry->layer;
  const unsigned width = layout.nibbles ? 4 : 8;
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
        std::uint32_t low_bits = load_word(own), step_bits = load_word(own + 4);
        bool valid = is_magnitude(low_bits & 0x7FFFFFFFu) && is_magnitude(step_bits);
        if (!valid) low_bits = step_bits = 0;  // of NaN the other messages' sum would become NaN
        if (first + kUnit >= n && layout.nibbles && n % 2 != 0)
          valid &= (codes.peek32(8 * (layout.code_bytes - 1)) >> 4 & 15u) == 0;
        if (__all_sync(kAllLanes, valid) == 0 && lane() == 0) frame.refuse(layer, Status::corrupt);
        const double low = __uint_as_float(low_bits), step = __uint_as_float(step_bits);
        std::uint32_t four[kSumRows];
        const std::byte* const at = grids + layout.grid_bytes + sums.at(0) * width / 8;
        if (first + kUnit > n || reinterpret_cast<std::uintptr_t>(at) % (width / 2) != 0) {
#pragma unroll
          for (unsigned row = 0; row < kSumRows; ++row)
            four[row] = codes.peek32(width * sums.at(row));
        } else if (layout.nibbles) {
#pragma unroll
          for (unsigned row = 0; row < kSumRows; ++row)
            four[row] = reinterpret_cast<const std::uint16_t*>(at)[row * kSumRow / 4];
        } else {
#pragma unroll
          for (unsigned row = 0; row < kSumRows; ++row)
            four[row] = reinterpret_cast<const std::uint32_t*>(at)[row * kSumRow / 4];
        }
#pragma unroll
        for (unsigned row = 0; row < kSumRows; ++row) {
          const auto from = static_cast<int>(row);
          const double row_low = __shfl_sync(kAllLanes, low, from);
          const double row_step = __shfl_sync(kAllLanes, step, from);
          float v[4];
#pragma unroll
          for (unsigned k = 0; k < 4; ++k)
            v[k] = value_of(row_low, row_step, four[row] >> (width * k) & layout.levels);
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
