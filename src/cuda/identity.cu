// SPDX-License-Identifier: Apache-2.0
/// identity: entries as they are (f32), or rounded stochastically to halves (core/short_draw.hpp).
///
/// Mapping: a warp a unit of 2,048 entries. f32 goes 32 neighbours at a time, a lane an entry; of
/// halves a lane owns eight neighbours, which are a whole block of draws and four words of the
/// message, stored by way of shared memory so that neighbouring lanes store neighbouring words.
///
/// Traffic an element, the least: written from 4 bytes read (2 for halves), 4 or 2 written; decoded
/// from 4 or 2 read a message, 4 written (and 4 read when added) for all messages together. Shared memory: 512 bytes a warp to write halves. Draws depend on the entry
/// alone. Words of the message are read and stored whole where it is aligned to 4, else in bytes;
/// tensors in 16 bytes where they are aligned to them and the message holds halves.
///
/// Status::overflow is noted by the last unit of a layer to finish, and only when no unit met an
/// Inf or NaN: such a layer is not sent.

#include "cuda/identity.cuh"

#include "cuda/bit_stream.cuh"
#include "cuda/entries.cuh"
#include "cuda/half_rounding.cuh"
#include "cuda/row_sums.cuh"

namespace atomo::cuda::identity {
namespace {

constexpr unsigned kIdentityUnit = 2048, kBatch = 16;
constexpr unsigned long long kOverflowed = 1ull << 32;

/// False in a lane that met a non-finite entry.
__device__ bool write_f32(const Entries& entries, std::uint64_t first, std::uint64_t n,
                          std::byte* body) {
  bool finite = true;
#pragma unroll 1
  for (unsigned row = 0; row < kIdentityUnit && first + row < n; row += kBatch * kLanes) {
    float x[kBatch];
    const std::uint64_t i = first + row + lane();
    finite &= load_entries(entries, i, kLanes, n, x);
#pragma unroll
    for (unsigned k = 0; k < kBatch; ++k) {
      if (i + k * kLanes < n) store_word(body + 4 * (i + k * kLanes), __float_as_uint(x[k]));
    }
  }
  return finite;
}

/// The halves of a row, two a word: as lanes make them, then as they are stored.
struct HalfRow {
  uint4 of_lane[kLanes];
};
struct HalfRows {
  HalfRow warp[kMaxWarps];
};

/// Likewise; the half beyond an odd last entry is padding.
__device__ bool write_halves(const Entries& entries, DType wire, const HalfDraws& draws,
                             std::uint64_t first, std::uint64_t n, std::byte* body, HalfRow& row,
                             bool& overflow) {
  const auto* const words = reinterpret_cast<const std::uint32_t*>(row.of_lane);
  bool finite = true;
#pragma unroll 1
  for (std::uint64_t begin = first; begin < n && begin < first + kIdentityUnit;
       begin += 8 * kLanes) {
    const std::uint64_t i = begin + 8 * lane();
    float x[8];
    eight_entries(entries, i, n, x);
    finite &= drop_non_finite(x);
    std::uint32_t pairs[4];
    round_eight(x, wire, draws, i, pairs, overflow);
    row.of_lane[lane()] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    __syncwarp();
    std::byte* const to = body + 2 * begin;
    if (begin + 8 * kLanes <= n && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
#pragma unroll
      for (unsigned w = lane(); w < 4 * kLanes; w += kLanes)
        reinterpret_cast<std::uint32_t*>(to)[w] = words[w];
    } else {
#pragma unroll 1
      for (unsigned w = lane(); w < 4 * kLanes && begin + 2 * w < n; w += kLanes)
        store_word(to + 4 * w, words[w]);
    }
    __syncwarp();
  }
  return finite;
}

__global__ void write_identity(const Frame frame, const Plan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  const Entries entries = frame.entries(job.layer);
  std::byte* const body = frame.message + frame.layer(job.layer).body_at;
  const std::uint64_t first = at.index * kIdentityUnit;
  if (job.wire == DType::f32) {
    note_finite(frame, job.layer, write_f32(entries, first, job.n, body));
    return;
  }
  bool overflow = false;
  const Key key = frame.key(job.layer);
  const HalfDraws draws{Philox(key, Purpose::identity), Philox(key, Purpose::identity_low)};
  note_finite(frame, job.layer,
              write_halves(entries, job.wire, draws, first, job.n, body,
                           shared<HalfRows>().warp[warp_in_block()], overflow));
  overflow = __any_sync(kAllLanes, overflow) != 0;
  if (lane() != 0) return;
  const unsigned long long one = overflow ? kOverflowed + 1 : 1;
  const unsigned long long done = take_ticket(&frame(plan.states)[at.job].done, one) + one;
  if (static_cast<std::uint32_t>(done) != divide_up(job.n, kIdentityUnit)) return;
  const std::uint32_t flags = atomicOr(&frame.layer(job.layer).flags, 0u);
  if (done >= kOverflowed && (flags & format::LayerRecord::kNonFinite) == 0)
    frame.notice(Status::overflow);
}

/// Entries from `first` on, which are f32 in the messages; `sound` has a bit for each that has a body.
__device__ void decode_f32(const Frames& frames, const Job& job, std::uint64_t first,
                           std::uint32_t sound, DecodeInto into) {
  constexpr unsigned kTogether = 8;  // loads under way, which no store may cut off
  float* const y = frames.first.layer(job.layer).y + first + lane();
  const std::uint64_t rest = job.n - first;
#pragma unroll 1
  for (unsigned row = 0; row < kIdentityUnit; row += kTogether * kLanes) {
    float sum[kTogether];
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k)
      sum[k] = into.add && row + k * kLanes + lane() < rest ? y[row + k * kLanes] : 0.0f;
#pragma unroll 1
    for (std::uint32_t left = sound; left != 0;) {
      const Frame frame = frames[take_message(left)];
      const std::byte* const body =
          frame.message + frame.layer(job.layer).body_at + 4 * (first + row + lane());
      std::uint32_t words[kTogether];
#pragma unroll
      for (unsigned k = 0; k < kTogether; ++k)
        words[k] = row + k * kLanes + lane() < rest ? load_word(body + 4 * k * kLanes) : 0;
#pragma unroll
      for (unsigned k = 0; k < kTogether; ++k) put(&sum[k], __uint_as_float(words[k]), into);
    }
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      if (row + k * kLanes + lane() < rest) y[row + k * kLanes] = sum[k];
    }
  }
}

/// The halves of a message, n of them.
struct HalfView {
  const std::byte* body;
  std::uint64_t n;

  /// Entries i to i + 3, two a word; 0 from n on. i is a multiple of 4.
  __device__ void four(std::uint64_t i, std::uint32_t (&pairs)[2]) const {
    const std::byte* const at = body + 2 * i;
    if (i + 4 <= n && reinterpret_cast<std::uintptr_t>(body) % 4 == 0) {
      pairs[0] = reinterpret_cast<const std::uint32_t*>(at)[0];
      pairs[1] = reinterpret_cast<const std::uint32_t*>(at)[1];
      return;
    }
    const std::uint64_t bits = i < n ? BitView(body, 2 * n).peek64(16 * i) : 0;
    pairs[0] = static_cast<std::uint32_t>(bits);
    pairs[1] = static_cast<std::uint32_t>(bits >> 32);
  }
};

/// The same of halves.
__device__ void decode_halves(const Frames& frames, const Job& job, std::uint64_t first,
                              std::uint32_t sound, DecodeInto into) {
  float* const y = frames.first.layer(job.layer).y;
  const bool f16 = job.wire == DType::f16;
  with_add(into, [&](auto adds) {
#pragma unroll 1
    for (unsigned row = 0; row < kIdentityUnit; row += kSumRows * kSumRow) {
      RowSums<kSumRows, decltype(adds)::value> sums(y, first + row, job.n, into);
#pragma unroll 1
      for (std::uint32_t left = sound; left != 0;) {
        const Frame frame = frames[take_message(left)];
        const std::byte* const body = frame.message + frame.layer(job.layer).body_at;
        const HalfView halves(body, job.n);
        std::uint32_t pairs[kSumRows][2];
#pragma unroll
        for (unsigned r = 0; r < kSumRows; ++r) halves.four(sums.at(r), pairs[r]);
#pragma unroll
        for (unsigned r = 0; r < kSumRows; ++r) {
          float v[4];
#pragma unroll
          for (unsigned k = 0; k < 4; ++k)
            v[k] = wide_half(static_cast<std::uint16_t>(pairs[r][k / 2] >> (16 * (k % 2))), f16);
          sums.put(r, v);
        }
      }
      sums.store();
    }
  });
}

__global__ void decode_identity(const Frames frames, const Plan plan, const DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  const std::uint32_t sound =
      open_fixed_bodies(frames, job.layer, job.n * size_of(job.wire), Status::corrupt);
  if (sound == 0) return;
  const std::uint64_t first = at.index * kIdentityUnit;
  if (job.wire == DType::f32) {
    decode_f32(frames, job, first, sound, into);
  } else {
    decode_halves(frames, job, first, sound, into);
  }
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::identity>(layers);
  plan = {};
  if (count == 0) return;
  JobMaker<Job> jobs(layout, count);
  for_each_of_method<MethodId::identity>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    jobs.add({.n = layer.n, .layer = number, .wire = static_cast<DType>(layer.kind.params)},
             divide_up(layer.n, kIdentityUnit));
  });
  plan.jobs = jobs.jobs();
  plan.states = layout.zeroed<State>(count);
}

ATOMO_LAUNCH_UNITS(Plan, write_identity, decode_identity)

}  // namespace atomo::cuda::identity
