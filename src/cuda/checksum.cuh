// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The checksums of a container by warps (FORMAT.md, "Checksums"): XXH3 as in xxh3.hpp, the eight
/// accumulators in four copies, each of which takes every fourth stripe of a region.

#include "core/xxh3.hpp"
#include "cuda/cub.cuh"
#include "cuda/frame.cuh"
#include "format/checksum.hpp"
#include "format/container_rules.hpp"

namespace atomo::cuda {

namespace xxh3 = core::xxh3;

__device__ const std::array<std::uint64_t, 24> kDeviceSecret = xxh3::kSecret;

/// Bytes of a message, zeros behind its end.
struct MessageBytes {
  const std::byte* begin = nullptr;
  std::uint64_t size = 0;

  /// Bytes `at` to `at` + 7 at any address.
  __device__ std::uint64_t operator()(std::uint64_t at) const {
    if (at + 8 <= size) {
      const std::byte* const p = begin + at;
      return reinterpret_cast<std::uintptr_t>(p) % 8 == 0
                 ? *reinterpret_cast<const std::uint64_t*>(p)
                 : load_word(p) | std::uint64_t{load_word(p + 4)} << 32;
    }
    std::uint64_t word = 0;
    for (unsigned k = 0; k < 8 && at + k < size; ++k)
      word |= static_cast<std::uint64_t>(begin[at + k]) << (8 * k);
    return word;
  }
  /// Four of them, `at` four multiples of 4 below `end`. All loads are under way at once where the
  /// address allows it.
  __device__ void four(const std::uint64_t (&at)[4], std::uint64_t end,
                       std::uint64_t (&words)[4]) const {
    if (end > size || reinterpret_cast<std::uintptr_t>(begin) % 4 != 0) {
      for (unsigned k = 0; k < 4; ++k) words[k] = (*this)(at[k]);
      return;
    }
    std::uint32_t low[4], high[4];
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const auto* const p = reinterpret_cast<const std::uint32_t*>(begin + at[k]);
      low[k] = p[0];
      high[k] = p[1];
    }
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) words[k] = low[k] | std::uint64_t{high[k]} << 32;
  }
};

/// XXH3 of `length` bytes from byte `from` on, above xxh3::kLongestShort, by a whole warp; the same
/// in every lane. Lane 8g + i has copy g of accumulator i.
__device__ inline std::uint64_t hash_long(const MessageBytes& bytes, std::uint64_t from,
                                          std::uint64_t length, std::uint64_t seed) {
  constexpr unsigned kCopies = kLanes / xxh3::kAccumulators;
  constexpr unsigned kOwn = xxh3::kRegionStripes / kCopies;  // stripes of a lane in a region
  const std::uint64_t* const secret = kDeviceSecret.data();
  const unsigned i = lane() % xxh3::kAccumulators, copy = lane() / xxh3::kAccumulators;
  std::uint64_t keys[kOwn];
  for (unsigned k = 0; k < kOwn; ++k)
    keys[k] = xxh3::seeded_word(secret, kCopies * k + copy + i, seed);
  const std::uint64_t scramble_key = xxh3::seeded_at(secret, xxh3::kScrambleKey + 8 * i, seed);

  std::uint64_t sum = copy == 0 ? xxh3::initial(i) : 0;
  const auto gain = [&](std::uint64_t word, std::uint64_t key) {
    return xxh3::gain(word, __shfl_xor_sync(kAllLanes, word, 1), key);
  };
  const auto add_copies = [&] {
    for (unsigned step = xxh3::kAccumulators; step < kLanes; step *= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, static_cast<int>(step));
  };
  const std::uint64_t stripes = (length - 1) / xxh3::kStripeBytes;  // but for the last
  for (std::uint64_t first = 0; first < stripes; first += xxh3::kRegionStripes) {
    const std::uint64_t behind = first + xxh3::kRegionStripes;
    std::uint64_t at[kOwn], words[kOwn];
    for (unsigned k = 0; k < kOwn; ++k) {
      // Stripes that the region does not have: any that exists, and then not added.
      const std::uint64_t stripe = first + kCopies * k + copy;
      at[k] = from + xxh3::kStripeBytes * (stripe < stripes ? stripe : first) + 8 * i;
    }
    bytes.four(at, from + xxh3::kStripeBytes * (behind < stripes ? behind : stripes), words);
    for (unsigned k = 0; k < kOwn; ++k) {
      const std::uint64_t more = gain(words[k], keys[k]);
      sum += first + kCopies * k + copy < stripes ? more : 0;
    }
    if (behind > stripes) break;
    add_copies();
    sum = copy == 0 ? xxh3::scramble(sum, scramble_key) : 0;
  }
  const std::uint64_t last = gain(bytes(from + length - xxh3::kStripeBytes + 8 * i),
                                  xxh3::seeded_at(secret, xxh3::kLastKey + 8 * i, seed));
  sum += copy == 0 ? last : 0;
  add_copies();

  const std::uint64_t keyed = sum ^ xxh3::seeded_at(secret, xxh3::kEndKey + 8 * i, seed);
  std::uint64_t end = xxh3::fold(keyed, __shfl_xor_sync(kAllLanes, keyed, 1));
  end += __shfl_xor_sync(kAllLanes, end, 2);
  end += __shfl_xor_sync(kAllLanes, end, 4);
  return xxh3::avalanche(length * xxh3::kPrime64_1 + end);
}

/// The checksum of a head whose first 56 bytes are in place, by a whole warp; the same in every
/// lane.
__device__ inline std::uint64_t head_checksum(const std::byte* message, std::uint64_t head_bytes) {
  const std::uint64_t* const secret = kDeviceSecret.data();
  const std::uint64_t seed = xxh3::hash_up_to_240(secret, message, format::kHeadChecksumAt, 0);
  const std::uint64_t length = head_bytes - format::kHeaderBytes;
  const MessageBytes rest{message + format::kHeaderBytes, length};
  if (length > xxh3::kLongestShort) return hash_long(rest, 0, length, seed);
  return length <= 16 ? xxh3::hash_up_to_16(secret, rest.begin, length, seed)
                      : xxh3::hash_up_to_240(secret, rest.begin, length, seed);
}

/// Warps that share the blocks of bodies of up to `bytes` bytes.
inline std::uint64_t checksum_warps(std::uint64_t bytes) {
  constexpr std::uint64_t kMostWarps = 8192;  // as many as the largest GPU runs at once
  return std::clamp<std::uint64_t>(divide_up(bytes, format::kChecksumBlock), 1, kMostWarps);
}

/// Adds this warp's blocks of the bodies to the message's checksum.
__device__ inline void add_body_checksums(const Frame& frame) {
  MessageState& state = frame.state();
  const MessageBytes bodies{frame.message + state.head_bytes, state.total_bytes - state.head_bytes};
  const std::uint64_t blocks = (bodies.size + format::kChecksumBlock - 1) / format::kChecksumBlock;
  std::uint64_t sum = 0;
  for (std::uint64_t block = warp_in_grid(); block < blocks; block += warps_in_grid())
    sum += hash_long(bodies, block * format::kChecksumBlock, format::kChecksumBlock, block);
  if (lane() == 0 && sum != 0) atomicAdd(&state.checksum, static_cast<unsigned long long>(sum));
}

/// Called by every thread of a grid once: true in all threads of the block that comes last, which
/// then sees what the others wrote before.
__device__ inline bool is_last_block(std::uint32_t& tickets) {
  auto& last = shared<std::uint32_t>();
  __syncthreads();
  if (threadIdx.x == 0) last = take_ticket(&tickets) + 1 == gridDim.x ? 1 : 0;
  __syncthreads();
  return last != 0;
}

}  // namespace atomo::cuda
