// SPDX-License-Identifier: Apache-2.0
/// sign: one bit an entry, 1 where x < 0; before the bits the scale mean |x|, or for each bucket the
/// means of both sides, or nothing.
///
/// Mapping: a warp a unit of 1,024 entries = 32 words of bits. Writing, a row of 32 entries is a
/// ballot, kept by the lane of its number, and the words leave together. Decoding, lanes read the
/// words of half a unit of a message; of a row of 128 entries each takes four bits from the lane that
/// has them. A row lies in one bucket.
///
/// Traffic an element, the least: written from 4 bytes read (2 for halves), 1/8 written, and with a
/// scale or means 4 read once more before (reduce.cu); decoded from 1/8 read a message, 4 written (and 4 read
/// when added), whatever the number of messages. No shared memory. Bits need no order. Words of the message are stored whole where it is
/// aligned to 4, else in bytes; values in 16 bytes where the tensor is aligned to them.
///
/// A vote: each lane adds its words of the messages, 32 entries at once, into four planes that hold how
/// many of eight messages say minus, a bit an entry; a row's lanes then take their entries' bits as
/// decoding does. 1/8 read a message; 4 written for eight messages, and 4 read from the ninth message on.
/// Sums of signs are whole numbers, so no order matters.

#include "cuda/sign.cuh"

#include <algorithm>

#include "cuda/bit_stream.cuh"
#include "cuda/entries.cuh"
#include "cuda/row_sums.cuh"
#include "format/method_configs.hpp"

namespace atomo::cuda::sign {
namespace {

constexpr unsigned kUnit = kLanes * 32, kBatch = 16;

/// By a warp: the means of the buckets that begin among the entries of its unit.
__device__ void put_means(const Job& job, const float* means, std::uint64_t first,
                          std::byte* body) {
  const std::uint64_t begin = first + std::uint64_t{lane()} * kSumRow;
  const std::uint64_t bucket = begin >> job.bucket_log;
  if (lane() >= kUnit / kSumRow || begin >= job.n || bucket << job.bucket_log != begin) return;
  store_word(body + 8 * bucket, __float_as_uint(means[2 * bucket]));
  store_word(body + 8 * bucket + 4, __float_as_uint(means[2 * bucket + 1]));
}

__global__ void write_sign(const Frame frame, const Plan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  if (job.scale_bytes != 0 && was_non_finite(frame, job.layer)) return;

  const Entries entries = frame.entries(job.layer);
  const std::uint64_t first = at.index * kUnit;
  std::uint32_t word = 0;
  bool finite = true;
#pragma unroll 1
  for (unsigned row = 0; row < kUnit / kLanes; row += kBatch) {
    float x[kBatch];
    finite &= load_entries(entries, first + row * kLanes + lane(), kLanes, job.n, x);
#pragma unroll
    for (unsigned k = 0; k < kBatch; ++k) {
      const std::uint32_t negative = __ballot_sync(kAllLanes, x[k] < 0);
      if (lane() == row + k) word = negative;
    }
  }
  if (job.scale_bytes == 0) note_finite(frame, job.layer, finite);

  std::byte* const body = frame.message + frame.layer(job.layer).body_at;
  const float* const scales = frame(plan.scales.results) + job.scale;
  if (job.means) {
    put_means(job, scales, first, body);
  } else if (job.scale_bytes != 0 && at.index == 0 && lane() == 0) {
    store_word(body, __float_as_uint(scales[0]));
  }
  if (first + lane() * 32 < job.n)
    store_word(body + job.scale_bytes + first / 8 + 4 * lane(), word);
}

/// The magnitudes of both signs from entry `row` on, in a body of the right size.
struct Scales {
  std::uint32_t plus, minus;
};
__device__ Scales scales_of(const Job& job, const std::byte* body, std::uint64_t row) {
  if (job.means) {
    const std::byte* const at = body + 8 * ((row < job.n ? row : job.n - 1) >> job.bucket_log);
    return {load_word(at), load_word(at + 4)};
  }
  const std::uint32_t scale = job.scale_bytes != 0 ? load_word(body) : __float_as_uint(1.0f);
  return {scale, scale};
}

/// Whether the bits behind the last entry are what sign.cpp takes.
__device__ bool clean_padding(const Job& job, const std::byte* body, std::uint64_t bytes,
                              bool last_unit) {
  return !last_unit || job.n % 8 == 0 ||
         (static_cast<unsigned>(body[bytes - 1]) >> (job.n % 8)) == 0;
}

__global__ void decode_sign(const Frames frames, const Plan plan, const DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  const std::uint64_t bytes = job.scale_bytes + divide_up(job.n, 8);
  const std::uint64_t first = at.index * kUnit;
  const std::uint32_t sound = open_fixed_bodies(frames, job.layer, bytes, Status::truncated);
  if (sound == 0) return;
  float* const y = frames.first.layer(job.layer).y;
  with_add(into, [&](auto adds) {
#pragma unroll 1
    for (unsigned part = 0; part < kUnit; part += kSumRows * kSumRow) {
      RowSums<kSumRows, decltype(adds)::value> sums(y, first + part, job.n, into);
#pragma unroll 1
      for (std::uint32_t left = sound; left != 0;) {
        const Frame frame = frames[take_message(left)];
        const std::byte* const body = frame.message + frame.layer(job.layer).body_at;
        Scales scales =
            scales_of(job, body, first + part + std::uint64_t{lane() % kSumRows} * kSumRow);
        bool valid = is_magnitude(scales.plus) && is_magnitude(scales.minus);
        if (!valid) scales = {0, 0};  // of NaN the other messages' sum would become NaN
        valid = valid && clean_padding(job, body, bytes, first + kUnit >= job.n);
        if (__all_sync(kAllLanes, valid) == 0 && lane() == 0)
          frame.refuse(job.layer, Status::corrupt);
        const BitView bits(body + job.scale_bytes, divide_up(job.n, 8));
        const std::uint32_t word = bits.peek32(first + part + 32 * (lane() % (4 * kSumRows)));
#pragma unroll
        for (unsigned row = 0; row < kSumRows; ++row) {
          const std::uint32_t mine =
              __shfl_sync(kAllLanes, word, static_cast<int>(4 * row + lane() / 8)) >>
              (lane() % 8 * 4);
          const std::uint32_t plus = __shfl_sync(kAllLanes, scales.plus, static_cast<int>(row)),
                              minus = __shfl_sync(kAllLanes, scales.minus, static_cast<int>(row));
          float v[4];
#pragma unroll
          for (unsigned k = 0; k < 4; ++k)
            v[k] = __uint_as_float((mine >> k & 1u) != 0 ? minus | 0x80000000u : plus);
          sums.put(row, v);
        }
      }
      sums.store();
    }
  });
}

/// The sign of a sum of signs; NaN stays NaN.
__device__ float majority(float sum) {
  if (sum > 0) return 1;
  return sum < 0 ? -1.0f : sum;
}

__global__ void count_signs(const Frames frames, const Plan plan, const VoteInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  const std::uint64_t bit_bytes = divide_up(job.n, 8), bytes = job.scale_bytes + bit_bytes;
  const std::uint64_t first = at.index * kUnit;
  constexpr unsigned kRows = kUnit / kSumRow;
  constexpr unsigned kPlanes = 4;
  static_assert(kMessagesAtOnce < 1u << kPlanes);
  std::uint32_t planes[kPlanes] = {};
  float messages = 0;
#pragma unroll 1
  for (std::uint32_t left = open_fixed_bodies(frames, job.layer, bytes, Status::truncated);
       left != 0;) {
    const Frame frame = frames[take_message(left)];
    const std::byte* const body = frame.message + frame.layer(job.layer).body_at;
    const Scales scales = scales_of(job, body, first + std::uint64_t{lane() % kRows} * kSumRow);
    const bool valid = is_magnitude(scales.plus) && is_magnitude(scales.minus) &&
                       clean_padding(job, body, bytes, first + kUnit >= job.n);
    if (__all_sync(kAllLanes, valid) == 0 && lane() == 0) frame.refuse(job.layer, Status::corrupt);
    std::uint32_t carry = BitView(body + job.scale_bytes, bit_bytes).peek32(first + 32 * lane());
#pragma unroll
    for (unsigned p = 0; p < kPlanes; ++p) {
      const std::uint32_t both = planes[p] & carry;
      planes[p] ^= carry;
      carry = both;
    }
    messages += 1;
  }
  float* const y = frames.first.layer(job.layer).y;
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
    const std::uint64_t i = first + row * kSumRow + 4 * lane();
    std::uint32_t minus[kPlanes];
#pragma unroll
    for (unsigned p = 0; p < kPlanes; ++p)
      minus[p] = __shfl_sync(kAllLanes, planes[p], static_cast<int>(4 * row + lane() / 8)) >>
                 (lane() % 8 * 4);
    if (i >= job.n) continue;
    float sum[4] = {};
    if (into.continues) Entries{y, DType::f32}.four(i, job.n, sum);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      std::uint32_t count = 0;
#pragma unroll
      for (unsigned p = 0; p < kPlanes; ++p) count |= (minus[p] >> k & 1u) << p;
      sum[k] += messages - 2 * static_cast<float>(count);
      if (into.last) sum[k] = majority(sum[k]);
    }
    put_four(y, i, job.n, sum, {});
  }
}

bool scaled(const LayerPlan& layer) {
  return is_of<MethodId::sign>(layer) &&
         format::sign_config(layer.kind.params).scale != SignScale::one;
}

/// Its scale, or the means of its buckets.
void add_scales(const LayerPlan& layer, ReducePlanner& scales, Job& job) {
  const SignConfig config = format::sign_config(layer.kind.params);
  ReduceJob reduce{.n = layer.n, .span = layer.n, .layer = job.layer, .rule = ReduceRule::mean_abs};
  job.scale_bytes = 4;
  if (config.scale == SignScale::means) {
    job.means = true;
    job.bucket_log = config.bucket_log == 0 ? 63 : static_cast<std::uint32_t>(config.bucket_log);
    if (config.bucket_log != 0) reduce.span = std::uint64_t{1} << config.bucket_log;
    reduce.rule = ReduceRule::side_means;
    job.scale_bytes = 8 * divide_up(layer.n, reduce.span);
  }
  job.scale = scales.add(reduce);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::sign>(layers);
  plan = {};
  if (count == 0) return;
  JobMaker<Job> jobs(layout, count);
  ReducePlanner scales(layout, static_cast<std::size_t>(std::ranges::count_if(layers, scaled)));
  for_each_of_method<MethodId::sign>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    Job job{.n = layer.n, .layer = number};
    if (scaled(layer)) add_scales(layer, scales, job);
    jobs.add(job, divide_up(layer.n, kUnit));
  });
  plan.jobs = jobs.jobs();
  plan.scales = scales.finish();
}

void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  reduce(frame, plan.scales, queue);
}

ATOMO_LAUNCH_UNITS(Plan, write_sign, decode_sign)

void count(const Frames& frames, const Plan& plan, VoteInto into, Queue& queue) {
  queue.launch_warps(count_signs, plan.jobs.units.units, frames, plan, into);
}

}  // namespace atomo::cuda::sign
