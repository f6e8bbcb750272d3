// SPDX-License-Identifier: Apache-2.0
/// TernGrad (arXiv 1705.07878, section 3): every entry -N, 0 or +N, N the layer's largest
/// magnitude, perhaps clipped, five entries a byte; src/codec/methods/ternary_codec.cpp and math/stochastic_level.hpp
/// have it to the bit.
///
/// Mapping: a warp a unit of two blocks of 640 entries = 128 bytes. Writing, half a warp owns a
/// block, whose digits k are the levels of its tile k (level_tile.cuh): a lane meets the digits of
/// the same eight bytes in all five tiles and adds them up in two registers, four bytes each. In
/// the unit with a layer's last block, where digit k is w entries from digit k - 1 and w no tile,
/// digits go through shared memory. Decoding, a lane takes four bytes of a block apart, two in the
/// halves of a word; their digits k are four neighbours of tile k.
///
/// Traffic an element: written from 4 bytes read twice (2 for halves; N comes first, reduce.cu),
/// 1/5 written; decoded from 1/5 read, 4 written (and 4 read when added). Shared memory: 1.5 KiB a
/// warp to write. Draws depend on the entry alone. Words of the message are stored whole where it
/// is aligned to 4, else in bytes; values in 16 bytes where the tensor is aligned to them.

#include "cuda/ternary.cuh"

#include <algorithm>
#include <bit>

#include "cuda/bit_stream.cuh"
#include "cuda/entries.cuh"
#include "cuda/level_tile.cuh"
#include "cuda/row_sums.cuh"
#include "format/method_configs.hpp"

namespace atomo::cuda::ternary {
namespace {

constexpr unsigned kTrits = 5;  ///< digits a byte
/// Entries whose digits stand at one place of their bytes: eight a lane of half a warp.
constexpr unsigned kTile = 128, kTileLanes = 16;
constexpr unsigned kBlock = kTrits * kTile, kBlocks = 2, kTernaryUnit = kBlocks * kBlock;
constexpr unsigned kBlockBytes = kTile;

/// Of one warp that writes.
struct TernaryMemory {
  unsigned char digits[kBlocks][kBlock];
  std::uint32_t out[kBlocks * kBlockBytes / 4];
};
struct TernaryMemories {
  TernaryMemory warp[kMaxWarps];
};

/// Bytes of `length` digits.
__device__ unsigned width_of(unsigned length) { return (length + kTrits - 1) / kTrits; }

/// Entries of the block from `begin` on.
__device__ unsigned block_length(std::uint64_t begin, std::uint64_t n) {
  if (begin >= n) return 0;
  return n - begin < kBlock ? static_cast<unsigned>(n - begin) : kBlock;
}

/// Digits of this lane's entries of a tile of the layer, as `eight_codes` places codes.
struct TernaryDigits {
  LevelDraws draws;
  math::LevelScale scale;

  __device__ void operator()(const Entries& entries, std::uint64_t tile, std::uint64_t n,
                             std::uint32_t (&digits)[2]) const {
    constexpr LevelCode<false> kRule{65536.0f, 1};
    float x[8];
    const std::uint64_t first = tile * kTile + 8 * (lane() % kTileLanes);
    eight_entries(entries, first, n, x);  // all finite: the norm came first
    eight_codes(
        kRule, draws, first / 8, 8, [&](unsigned k) { return choose(x, k); },
        [&](unsigned) { return scale; }, digits);
    for (std::uint32_t& d : digits) d -= (d >> 1) & 0x01010101u;  // level + 2 sign is 0, 1 or 3
  }
};

/// Bytes of two whole blocks: a lane has eight neighbours of its block.
__device__ void write_whole_blocks(const TernaryDigits& digits_of, const Entries& entries,
                                   std::uint64_t first, std::uint64_t n, std::uint32_t* out) {
  const unsigned half = lane() / kTileLanes, l = lane() % kTileLanes;
  const std::uint64_t tile = (first + half * kBlock) / kTile;
  std::uint32_t sums[2] = {0, 0};
#pragma unroll 1
  for (unsigned k = kTrits; k-- > 0;) {
    std::uint32_t digits[2];
    digits_of(entries, tile + k, n, digits);
    for (unsigned i = 0; i < 2; ++i) sums[i] = 3 * sums[i] + digits[i];  // below 243 in each byte
  }
  std::uint32_t* const words = out + half * kBlockBytes / 4 + 2 * l;
  words[0] = sums[0];
  words[1] = sums[1];
}

/// Bytes of the unit that holds the layer's last block; those behind it are zero.
__device__ void write_last_blocks(const TernaryDigits& digits_of, const Entries& entries,
                                  std::uint64_t first, std::uint64_t n, TernaryMemory& memory) {
  const unsigned half = lane() / kTileLanes, l = lane() % kTileLanes;
  const std::uint64_t tile = (first + half * kBlock) / kTile;
#pragma unroll 1
  for (unsigned k = 0; k < kTrits; ++k) {
    std::uint32_t digits[2];
    digits_of(entries, tile + k, n, digits);
    for (unsigned j = 0; j < 8; ++j)
      memory.digits[half][k * kTile + 8 * l + j] =
          static_cast<unsigned char>(digits[j / 4] >> (j % 4 * 8));
  }
  __syncwarp();
  const unsigned width = width_of(block_length(first + half * kBlock, n));
  auto* const bytes = reinterpret_cast<unsigned char*>(memory.out) + half * kBlockBytes;
  for (unsigned j = l; j < kBlockBytes; j += kTileLanes) {
    unsigned v = 0;  // digits that do not exist are 0, as entries beyond the last are
    for (unsigned k = kTrits; k-- > 0;)
      v = 3 * v + (j < width ? memory.digits[half][j + k * width] : 0u);
    bytes[j] = static_cast<unsigned char>(v);
  }
}

__global__ void write_ternary(const Frame frame, const Plan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  if (was_non_finite(frame, job.layer)) return;

  const float norm = frame(plan.norms.results)[job.norm];
  const Key key = frame.key(job.layer);
  const TernaryDigits digits{{Philox(key, Purpose::ternary), Philox(key, Purpose::ternary_low)},
                             math::level_scale(math::level_step(norm, 1), 65536.0f)};
  const Entries entries = frame.entries(job.layer);
  const std::uint64_t first = at.index * kTernaryUnit;
  TernaryMemory& memory = shared<TernaryMemories>().warp[warp_in_block()];
  if (first + kTernaryUnit <= job.n) {
    write_whole_blocks(digits, entries, first, job.n, memory.out);
  } else {
    write_last_blocks(digits, entries, first, job.n, memory);
  }
  __syncwarp();

  std::byte* const body = frame.message + frame.layer(job.layer).body_at;
  if (at.index == 0 && lane() == 0) store_word(body, __float_as_uint(norm));
  const std::uint64_t trits = divide_up(job.n, kTrits), begin = at.index * kBlocks * kBlockBytes;
  for (unsigned k = lane(); k < kBlocks * kBlockBytes / 4 && begin + 4 * k < trits; k += kLanes)
    store_word(body + 4 + begin + 4 * k, memory.out[k]);
}

__device__ float value_of(unsigned digit, float norm) {
  return digit == 0 ? 0.0f : digit == 1 ? norm : -norm;
}

/// A whole block from `begin` on; false when a byte is no five digits. Bytes are taken apart two at a
/// time, in the halves of a word: their quotients by 3 are the upper bytes of products with 171 / 512,
/// which are exact below 256.
template <bool kAdd>
__device__ bool decode_block(const BitView& trits, std::uint64_t begin, float norm,
                             RowSums<kTrits, kAdd>& sums) {
  const std::uint32_t bytes = trits.peek32(begin / kTrits * 8 + 32 * lane());
  std::uint32_t even = bytes & 0x00FF00FFu, odd = bytes >> 8 & 0x00FF00FFu;
  // 243 + 13 is 256: bit 8 of a half.
  const bool valid = (((even + 0x000D000Du) | (odd + 0x000D000Du)) & 0x01000100u) == 0;
  const std::uint32_t magnitude = __float_as_uint(norm);
#pragma unroll
  for (unsigned k = 0; k < kTrits; ++k) {
    // A half is at most 255, its product with 171 below 2^16.
    const std::uint32_t even_third = even * 171u >> 9 & 0x007F007Fu;
    const std::uint32_t odd_third = odd * 171u >> 9 & 0x007F007Fu;
    const std::uint32_t low = even - 3 * even_third, high = odd - 3 * odd_third;
    const std::uint32_t digits[4] = {low & 3u, high & 3u, low >> 16, high >> 16};
    float v[4];
#pragma unroll
    for (unsigned b = 0; b < 4; ++b) {
      const std::uint32_t bits = digits[b] == 0 ? 0 : magnitude;
      v[b] = __uint_as_float(bits | (digits[b] & 2u) << 30);
    }
    sums.put(k, v);
    even = even_third;
    odd = odd_third;
  }
  return valid;
}

/// The same of a layer's last block, of fewer entries: digits of no entry must be zero.
__device__ bool decode_last_block(const BitView& trits, std::uint64_t begin, unsigned length,
                                  float norm, float* y, DecodeInto into) {
  const unsigned width = width_of(length);
  bool valid = true;
  for (unsigned j = lane(); j < width; j += kLanes) {
    unsigned left = trits.peek32((begin / kTrits + j) * 8) & 0xFFu;
    for (unsigned e = j; e < length; e += width) {
      put(y + begin + e, value_of(left % 3, norm), into);
      left /= 3;
    }
    valid &= left == 0;  // nor may a byte be 243 or more
  }
  return valid;
}

/// Of a message: its digits and norm; whether the norm is one.
struct Trits {
  BitView digits;
  float norm;
  bool valid;

  __device__ Trits(const Frame& frame, const Job& job)
      : digits(frame.message + frame.layer(job.layer).body_at + 4, divide_up(job.n, kTrits)) {
    const std::uint32_t bits = load_word(frame.message + frame.layer(job.layer).body_at);
    norm = __uint_as_float(bits);
    valid = is_magnitude(bits);
  }
};

/// A block of all messages; `sound` has a bit for each that has a body.
__device__ void decode_blocks(const Frames& frames, const Job& job, std::uint64_t begin,
                              std::uint32_t sound, DecodeInto into) {
  const unsigned length = block_length(begin, job.n);
  if (length == 0) return;
  float* const y = frames.first.layer(job.layer).y;
  with_add(into, [&](auto adds) {
    RowSums<kTrits, decltype(adds)::value> sums(y, begin, length == kBlock ? job.n : 0, into);
#pragma unroll 1
    for (std::uint32_t left = sound; left != 0;) {
      const Frame frame = frames[take_message(left)];
      const Trits trits(frame, job);
      const bool valid =
          trits.valid &&
          (length == kBlock ? decode_block(trits.digits, begin, trits.norm, sums)
                            : decode_last_block(trits.digits, begin, length, trits.norm, y, into));
      if (!__all_sync(kAllLanes, valid) && lane() == 0) frame.refuse(job.layer, Status::corrupt);
    }
    if (length == kBlock) sums.store();
  });
}

__global__ void decode_ternary(const Frames frames, const Plan plan, const DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const Job& job = *at.entry;
  const std::uint32_t sound =
      open_fixed_bodies(frames, job.layer, 4 + divide_up(job.n, kTrits), Status::truncated);
  if (sound == 0) return;
#pragma unroll 1
  for (unsigned b = 0; b < kBlocks; ++b)
    decode_blocks(frames, job, at.index * kTernaryUnit + b * kBlock, sound, into);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::ternary>(layers);
  plan = {};
  if (count == 0) return;
  JobMaker<Job> jobs(layout, count);
  ReducePlanner norms(layout, count);
  for_each_of_method<MethodId::ternary>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    const float clip = std::bit_cast<float>(layer.kind.params);
    const auto norm = norms.add({.n = layer.n,
                                 .span = layer.n,
                                 .layer = number,
                                 .rule = clip > 0 ? ReduceRule::clipped_max : ReduceRule::max_abs,
                                 .clip = clip});
    jobs.add({.n = layer.n, .norm = norm, .layer = number}, divide_up(layer.n, kTernaryUnit));
  });
  plan.jobs = jobs.jobs();
  plan.norms = norms.finish();
}

void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  reduce(frame, plan.norms, queue);
}

ATOMO_LAUNCH_UNITS(Plan, write_ternary, decode_ternary)

}  // namespace atomo::cuda::ternary
