// SPDX-License-Identifier: Apache-2.0
/// natural: a power of two beside each entry, drawn so that the result is unbiased.
///
/// Mapping: a warp a unit of 1,024 entries. A lane owns four neighbours of a row of 128 entries,
/// which are a whole block of draws and a word of codes; eight lanes put a word of signs together.
///
/// Traffic an element, the least: written from 4 bytes read (2 for halves), 9/8 written; decoded
/// from 9/8 read a message, 4 written (and 4 read when added) for all messages together. No shared memory. Draws depend on the entry
/// alone. Words of the message are stored whole where it is aligned to 4, else in bytes.

#include "core/philox.hpp"
#include "cuda/bit_stream.cuh"
#include "cuda/entries.cuh"
#include "cuda/fixed_length.cuh"
#include "cuda/row_sums.cuh"
#include "math/natural_rounding.hpp"

namespace atomo::cuda::fixed_length {
namespace {

using NaturalPlan = Plan<MethodId::natural>;

__device__ std::uint64_t sign_bytes(std::uint64_t n) { return divide_up(n, 32) * 4; }

__global__ void write_natural(const Frame frame, const NaturalPlan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const std::uint64_t n = at.entry->n, first = at.index * kUnit;
  const std::uint32_t layer = at.entry->layer;
  const Entries entries = frame.entries(layer);
  const Philox draws(frame.key(layer), Purpose::natural);
  std::byte* const signs = frame.message + frame.layer(layer).body_at;
  std::byte* const codes = signs + sign_bytes(n);
  bool finite = true;
#pragma unroll 1
  for (unsigned row = 0; row < kUnit && first + row < n; row += kSumRow) {
    const std::uint64_t i = first + row + 4 * lane();
    float x[4];
    entries.four(i, n, x);
    finite &= drop_non_finite(x);
    const PhiloxWords words = draws(i / 4);
    std::uint32_t four = 0, negative = 0;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      four |= math::natural_code(x[k], words[k]) << (8 * k);
      negative |= (x[k] < 0 ? 1u : 0u) << k;
    }
    if (i < n) store_word(codes + i, four);
    negative <<= lane() % 8 * 4;
    for (unsigned apart = 1; apart < 8; apart *= 2)
      negative |= __shfl_xor_sync(kAllLanes, negative, static_cast<int>(apart));
    if (lane() % 8 == 0 && i < n) store_word(signs + i / 8, negative);
  }
  note_finite(frame, layer, finite);
}

__global__ void decode_natural(const Frames frames, const NaturalPlan plan, const DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const std::uint64_t n = at.entry->n, first = at.index * kUnit;
  const std::uint32_t layer = at.entry->layer;
  const std::uint32_t sound =
      open_fixed_bodies(frames, layer, sign_bytes(n) + n, Status::truncated);
  if (sound == 0) return;
  float* const y = frames.first.layer(layer).y;
  with_add(into, [&](auto adds) {
#pragma unroll 1
    for (unsigned part = 0; part < kUnit; part += kSumRows * kSumRow) {
      RowSums<kSumRows, decltype(adds)::value> sums(y, first + part, n, into);
#pragma unroll 1
      for (std::uint32_t left = sound; left != 0;) {
        const Frame frame = frames[take_message(left)];
        const std::byte* const body = frame.message + frame.layer(layer).body_at;
        const BitView signs(body, sign_bytes(n)), codes(body + sign_bytes(n), n);
        if (first + kUnit >= n && n % 32 != 0 && lane() == 0 &&
            signs.peek32(n / 32 * 32) >> (n % 32) != 0) {
          frame.refuse(layer, Status::corrupt);
        }
#pragma unroll
        for (unsigned row = 0; row < kSumRows; ++row) {
          const std::uint64_t i = sums.at(row);
          const std::uint32_t four = codes.peek32(8 * i), negative = signs.peek32(i);
          float v[4];
#pragma unroll
          for (unsigned k = 0; k < 4; ++k)
            v[k] = math::natural_value(four >> (8 * k) & 0xFFu, negative >> k & 1u);
          sums.put(row, v);
        }
      }
      sums.store();
    }
  });
}

}  // namespace

ATOMO_LAUNCH_UNITS(NaturalPlan, write_natural, decode_natural)

}  // namespace atomo::cuda::fixed_length
