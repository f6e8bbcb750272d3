// SPDX-License-Identifier: Apache-2.0
/// fp8: every entry eight bits of floating point, drawn so that the result is unbiased, under one scale a
/// layer (math/fp8_rounding.hpp).
///
/// Mapping: a warp a unit of 1,024 entries. A lane owns four neighbours of a row of 128 entries, which
/// are a whole block of draws and a word of codes.
///
/// Traffic an element: written from 4 bytes read twice (2 for halves; the largest comes first,
/// reduce.cu), 1 written; decoded from 1 read a message, 4 written (and 4 read when added) for all
/// messages together. No shared memory. Draws depend on the entry alone. Words of the message are stored
/// whole where it is aligned to 4, else in bytes.

#include "cuda/fp8.cuh"

#include "core/philox.hpp"
#include "cuda/bit_stream.cuh"
#include "cuda/entries.cuh"
#include "cuda/row_sums.cuh"
#include "math/fp8_rounding.hpp"

namespace atomo::cuda::fp8 {
namespace {

constexpr unsigned kUnit = 1024, kScaleBytes = 4;

__global__ void write_fp8(const Frame frame, const Plan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  if (was_non_finite(frame, job.layer)) return;
  const math::Fp8Type type = math::fp8_type(job.params);
  const int exponent = math::fp8_scale(type, frame(plan.maxima.results)[job.largest]);
  const auto scale = static_cast<float>(math::power_of_two(exponent));
  const math::Fp8Grid grid = math::fp8_grid(type, exponent);
  const Entries entries = frame.entries(job.layer);
  const Philox draws(frame.key(job.layer), Purpose::fp8);
  std::byte* const body = frame.message + frame.layer(job.layer).body_at;
  if (at.index == 0 && lane() == 0) store_word(body, __float_as_uint(scale));
  const std::uint64_t first = at.index * kUnit;
#pragma unroll 1
  for (unsigned row = 0; row < kUnit && first + row < job.n; row += kSumRow) {
    const std::uint64_t i = first + row + 4 * lane();
    float x[4];
    entries.four(i, job.n, x);
    const PhiloxWords words = draws(i / 4);
    std::uint32_t four = 0;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      if (i + k >= job.n) continue;
      const std::uint32_t sign = x[k] < 0 ? 0x80u : 0u;
      four |= (math::fp8_code(grid, std::fabs(x[k]), words[k]) | sign) << (8 * k);
    }
    if (i < job.n) store_word(body + kScaleBytes + i, four);
  }
}

__global__ void decode_fp8(const Frames frames, const Plan plan, const DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  const math::Fp8Type type = math::fp8_type(job.params);
  const std::uint64_t first = at.index * kUnit;
  const std::uint32_t sound =
      open_fixed_bodies(frames, job.layer, kScaleBytes + job.n, Status::truncated);
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
        std::uint32_t scale = load_word(body);
        int exponent = 0;
        bool valid = math::read_fp8_scale(type, scale, exponent);
        if (!valid) scale = 0;  // of NaN the other messages' sum would become NaN
        const BitView codes(body + kScaleBytes, job.n);
#pragma unroll
        for (unsigned row = 0; row < kSumRows; ++row) {
          const std::uint64_t i = sums.at(row);
          const std::uint32_t four = codes.peek32(8 * i);
          float v[4];
#pragma unroll
          for (unsigned k = 0; k < 4; ++k) {
            const std::uint32_t code = four >> (8 * k) & 0xFFu;
            valid &= i + k >= job.n || (code & 0x7Fu) <= type.last_code;
            const float magnitude = math::fp8_value(type, code & 0x7Fu, __uint_as_float(scale));
            v[k] = (code & 0x80u) != 0 ? -magnitude : magnitude;
          }
          sums.put(row, v);
        }
        if (__all_sync(kAllLanes, valid) == 0 && lane() == 0)
          frame.refuse(job.layer, Status::corrupt);
      }
      sums.store();
    }
  });
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::fp8>(layers);
  plan = {};
  if (count == 0) return;
  JobMaker<Job> jobs(layout, count);
  ReducePlanner maxima(layout, count);
  for_each_of_method<MethodId::fp8>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    const std::uint64_t largest = maxima.add({.n = layer.n, .span = layer.n, .layer = number});
    jobs.add({layer.n, largest, number, layer.kind.params}, divide_up(layer.n, kUnit));
  });
  plan.jobs = jobs.jobs();
  plan.maxima = maxima.finish();
}

void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  reduce(frame, plan.maxima, queue);
}

ATOMO_LAUNCH_UNITS(Plan, write_fp8, decode_fp8)

}  // namespace atomo::cuda::fp8
