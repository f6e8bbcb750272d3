// SPDX-License-Identifier: Apache-2.0
/// sign: one bit an entry, 1 where x < 0; with a scale, mean |x| before the bits.
///
/// Mapping: a warp a unit of 1,024 entries = 32 words of bits. Writing, a row of 32 entries is a
/// ballot, kept by the lane of its number, and the words leave together. Decoding, lanes read the
/// words of half a unit of a message; of a row of 128 entries each takes four bits from the lane that
/// has them.
///
/// Traffic an element, the least: written from 4 bytes read (2 for halves), 1/8 written, and with a
/// scale 4 read once more before (reduce.cu); decoded from 1/8 read a message, 4 written (and 4 read
/// when added), whatever the number of messages. No shared memory. Bits need no order. Words of the message are stored whole where it is
/// aligned to 4, else in bytes; values in 16 bytes where the tensor is aligned to them.

#include "cuda/sign.cuh"

#include <algorithm>

#include "cuda/bit_stream.cuh"
#include "cuda/entries.cuh"
#include "cuda/row_sums.cuh"
#include "format/method_configs.hpp"

namespace atomo::cuda::sign {
namespace {

constexpr unsigned kUnit = kLanes * 32, kBatch = 16;

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
  if (job.scale_bytes != 0 && at.index == 0 && lane() == 0)
    store_word(body, __float_as_uint(frame(plan.scales.results)[job.scale]));
  if (first + lane() * 32 < job.n)
    store_word(body + job.scale_bytes + first / 8 + 4 * lane(), word);
}

/// The scale of a body of the right size; refuses what sign.cpp refuses.
__device__ float open_sign(const Frame& frame, const Job& job, const std::byte* body,
                           std::uint64_t bytes, bool last_unit) {
  const std::uint32_t scale = job.scale_bytes != 0 ? load_word(body) : __float_as_uint(1.0f);
  bool valid = is_magnitude(scale);
  if (last_unit && job.n % 8 != 0)
    valid &= (static_cast<unsigned>(body[bytes - 1]) >> (job.n % 8)) == 0;
  if (!valid && lane() == 0) frame.refuse(job.layer, Status::corrupt);
  return __uint_as_float(scale);
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
#pragma unroll 1
  for (unsigned part = 0; part < kUnit; part += kSumRows * kSumRow) {
    RowSums<kSumRows> sums(y, first + part, job.n, into);
#pragma unroll 1
    for (std::uint32_t left = sound; left != 0;) {
      const Frame frame = frames[take_message(left)];
      const std::byte* const body = frame.message + frame.layer(job.layer).body_at;
      const float scale = open_sign(frame, job, body, bytes, first + kUnit >= job.n);
      const BitView bits(body + job.scale_bytes, divide_up(job.n, 8));
      const std::uint32_t word = bits.peek32(first + part + 32 * (lane() % (4 * kSumRows)));
#pragma unroll
      for (unsigned row = 0; row < kSumRows; ++row) {
        const std::uint32_t mine =
            __shfl_sync(kAllLanes, word, static_cast<int>(4 * row + lane() / 8)) >>
            (lane() % 8 * 4);
        float v[4];
#pragma unroll
        for (unsigned k = 0; k < 4; ++k)
          v[k] = __uint_as_float(__float_as_uint(scale) ^ ((mine >> k & 1u) << 31));
        sums.put(row, v);
      }
    }
    sums.store();
  }
}

bool scaled(const LayerPlan& layer) {
  return is_of<MethodId::sign>(layer) &&
         static_cast<SignScale>(layer.kind.params) == SignScale::mean;
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
    if (scaled(layer)) {
      job.scale_bytes = 4;
      job.scale = scales.add(
          {.n = layer.n, .span = layer.n, .layer = number, .rule = ReduceRule::mean_abs});
    }
    jobs.add(job, divide_up(layer.n, kUnit));
  });
  plan.jobs = jobs.jobs();
  plan.scales = scales.finish();
}

void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  reduce(frame, plan.scales, queue);
}

void write(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_warps(write_sign, plan.jobs.units.units, frame, plan);
}

void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue) {
  queue.launch_warps(decode_sign, plan.jobs.units.units, frames, plan, into);
}

}  // namespace atomo::cuda::sign
