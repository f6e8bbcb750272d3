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

/// What the lanes of a warp make of stripes: lane 8g + i has copy g of accumulator i. A word is also
/// added to the accumulator beside its own; a lane adds its words up, and hands them over at the end
/// of a region.
class WarpHash {
 public:
  static constexpr unsigned kCopies = kLanes / xxh3::kAccumulators;
  static constexpr unsigned kOwn =
      xxh3::kRegionStripes / kCopies;  ///< stripes of a lane in a region

  /// Reads the lane's words of the secret.
  __device__ WarpHash() : initial_(copy() == 0 ? xxh3::initial(accumulator()) : 0) {
    const std::uint64_t* const secret = kDeviceSecret.data();
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) secret_[k] = secret[kCopies * k + copy() + accumulator()];
  }
  [[nodiscard]] static __device__ unsigned accumulator() { return lane() % xxh3::kAccumulators; }
  [[nodiscard]] static __device__ unsigned copy() { return lane() / xxh3::kAccumulators; }

  __device__ void start(std::uint64_t seed) {
    seed_ = seed;
    const std::uint64_t own = (copy() + accumulator()) % 2 == 0 ? seed : std::uint64_t{0} - seed;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) keys_[k] = secret_[k] + own;
    scramble_key_ = seeded(xxh3::kScrambleKey);
    sum_ = initial_;
    words_ = 0;
  }
  [[nodiscard]] __device__ std::uint64_t key(unsigned k) const { return keys_[k]; }
  [[nodiscard]] __device__ std::uint64_t last_key() const { return seeded(xxh3::kLastKey); }

  /// The lane's word of a stripe, under the lane's key for it.
  __device__ void add(std::uint64_t word, std::uint64_t key) {
    sum_ += xxh3::product(word, key);
    words_ += word;
  }
  __device__ void end_region() {
    add_up();
    sum_ = copy() == 0 ? xxh3::scramble(sum_, scramble_key_) : 0;
  }
  /// The hash of `length` bytes, the same in every lane.
  [[nodiscard]] __device__ std::uint64_t finish(std::uint64_t length) {
    add_up();
    const std::uint64_t keyed = sum_ ^ seeded(xxh3::kEndKey);
    std::uint64_t end = xxh3::fold(keyed, __shfl_xor_sync(kAllLanes, keyed, 1));
    end += __shfl_xor_sync(kAllLanes, end, 2);
    end += __shfl_xor_sync(kAllLanes, end, 4);
    return xxh3::avalanche(length * xxh3::kPrime64_1 + end);
  }

 private:
  [[nodiscard]] __device__ std::uint64_t seeded(unsigned key) const {
    return xxh3::seeded_at(kDeviceSecret.data(), key + 8 * accumulator(), seed_);
  }
  /// The copies' sums, and the words of neighbours.
  __device__ void add_up() {
    sum_ += __shfl_xor_sync(kAllLanes, words_, 1);
    words_ = 0;
#pragma unroll
    for (unsigned step = xxh3::kAccumulators; step < kLanes; step *= 2)
      sum_ += __shfl_xor_sync(kAllLanes, sum_, static_cast<int>(step));
  }

  std::uint64_t secret_[kOwn], initial_;
  std::uint64_t seed_, keys_[kOwn], scramble_key_, sum_, words_;
};

/// XXH3 of `length` bytes from byte `from` on, above xxh3::kLongestShort, by a whole warp; the same
/// in every lane.
__device__ inline std::uint64_t hash_long(WarpHash& hash, const MessageBytes& bytes,
                                          std::uint64_t from, std::uint64_t length,
                                          std::uint64_t seed) {
  constexpr unsigned kOwn = WarpHash::kOwn, kCopies = WarpHash::kCopies;
  const unsigned i = WarpHash::accumulator(), copy = WarpHash::copy();
  hash.start(seed);
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
    for (unsigned k = 0; k < kOwn; ++k)
      if (first + kCopies * k + copy < stripes) hash.add(words[k], hash.key(k));
    if (behind > stripes) break;
    hash.end_region();
  }
  if (copy == 0) hash.add(bytes(from + length - xxh3::kStripeBytes + 8 * i), hash.last_key());
  return hash.finish(length);
}

/// The same of the kChecksumBlock bytes at an address that is a multiple of 4. All loads are under way
/// at once.
__device__ inline std::uint64_t hash_block(WarpHash& hash, const std::byte* block,
                                           std::uint64_t seed) {
  constexpr unsigned kOwn = WarpHash::kOwn, kRegions = format::kChecksumBlock / xxh3::kRegionBytes;
  static_assert(format::kChecksumBlock % xxh3::kRegionBytes == 0);
  std::uint64_t words[kRegions * kOwn];
  const std::byte* const own = block + 8 * lane();
  if (reinterpret_cast<std::uintptr_t>(block) % 8 == 0) {
#pragma unroll
    for (unsigned k = 0; k < kRegions * kOwn; ++k)
      words[k] = *reinterpret_cast<const std::uint64_t*>(own + 8 * kLanes * k);
  } else {
    const auto* const halves = reinterpret_cast<const std::uint32_t*>(own);
#pragma unroll
    for (unsigned k = 0; k < kRegions * kOwn; ++k) {
      const std::uint32_t* const low = halves + 2 * kLanes * k;
      words[k] = low[0] | std::uint64_t{low[1]} << 32;
    }
  }
  hash.start(seed);
  // The last copy's last stripe is the input's, which has a key of its own.
  const bool has_last = WarpHash::copy() + 1 == WarpHash::kCopies;
#pragma unroll
  for (unsigned region = 0; region < kRegions; ++region) {
    const bool ends = region + 1 == kRegions;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      const bool last = ends && k + 1 == kOwn && has_last;
      hash.add(words[region * kOwn + k], last ? hash.last_key() : hash.key(k));
    }
    if (!ends) hash.end_region();
  }
  return hash.finish(format::kChecksumBlock);
}

/// The checksum of a head whose first 56 bytes are in place, by a whole warp; the same in every
/// lane.
__device__ inline std::uint64_t head_checksum(const std::byte* message, std::uint64_t head_bytes) {
  const std::uint64_t* const secret = kDeviceSecret.data();
  const std::uint64_t seed = xxh3::hash_up_to_240(secret, message, format::kHeadChecksumAt, 0);
  const std::uint64_t length = head_bytes - format::kHeaderBytes;
  const MessageBytes rest{message + format::kHeaderBytes, length};
  if (length > xxh3::kLongestShort) {
    WarpHash hash;
    return hash_long(hash, rest, 0, length, seed);
  }
  return length <= 16 ? xxh3::hash_up_to_16(secret, rest.begin, length, seed)
                      : xxh3::hash_up_to_240(secret, rest.begin, length, seed);
}

/// Warps that share the blocks of bodies of up to `bytes` bytes.
inline std::uint64_t checksum_warps(std::uint64_t bytes) {
  constexpr std::uint64_t kMostWarps = 8192;  // as many as the largest GPU runs at once
  return std::clamp<std::uint64_t>(divide_up(bytes, format::kChecksumBlock), 1, kMostWarps);
}

/// What a warp of many has to hash.
struct HashShare {
  std::uint64_t warp = 0, warps = 1;
};

/// The bodies of a message of `total_bytes` bytes behind a head of `head_bytes`.
__device__ inline MessageBytes bodies_of(const Frame& frame, std::uint64_t head_bytes,
                                         std::uint64_t total_bytes) {
  return {frame.message + head_bytes, total_bytes - head_bytes};
}

/// By a whole warp: adds the checksums of its share of the blocks of the bodies to `checksum`.
__device__ inline void add_checksums(const MessageBytes& bodies, HashShare own,
                                     unsigned long long& checksum) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(bodies.begin) % 4 == 0;
  const std::uint64_t whole = aligned ? bodies.size / format::kChecksumBlock : 0;
  WarpHash hash;
  std::uint64_t sum = 0, block = own.warp;
  for (; block < whole; block += own.warps)
    sum += hash_block(hash, bodies.begin + block * format::kChecksumBlock, block);
  for (; block * format::kChecksumBlock < bodies.size; block += own.warps)
    sum += hash_long(hash, bodies, block * format::kChecksumBlock, format::kChecksumBlock, block);
  if (lane() == 0 && sum != 0) atomicAdd(&checksum, static_cast<unsigned long long>(sum));
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
