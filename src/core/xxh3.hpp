// SPDX-License-Identifier: Apache-2.0
#pragma once
/// XXH3 with 64 bits and a seed, the checksum of containers, for host and device: what the xxHash
/// library computes, which the host uses. On the device a long input is hashed by a whole warp from
/// the parts below (cuda/container.cu).
///
/// The secret is 24 words, passed as a pointer, since a host constant has no address on the device.
/// Inputs above 240 bytes are read in stripes of 64 bytes; eight accumulators take a word of every
/// stripe each, and are scrambled after every 16 stripes. Their keys are the words of the seeded
/// secret, from word s on in stripe s.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/host_device.hpp"

namespace atomo::core::xxh3 {

inline constexpr std::array<std::uint64_t, 24> kSecret = {
    0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072,
    0x78E5C0CC4EE679CB, 0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0,
    0xCB00C391BB52283C, 0xA32E531B8B65D088, 0x4EF90DA297486471, 0xD8ACDEA946EF1938,
    0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A, 0x647378D9C97E9FC8,
    0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
    0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF,
};

inline constexpr std::uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77,
                               kPrime32_3 = 0xC2B2AE3D, kPrime64_1 = 0x9E3779B185EBCA87,
                               kPrime64_2 = 0xC2B2AE3D27D4EB4F, kPrime64_3 = 0x165667B19E3779F9,
                               kPrime64_4 = 0x85EBCA77C2B2AE63, kPrime64_5 = 0x27D4EB2F165667C5;
/// Longer inputs are hashed in stripes.
inline constexpr std::size_t kLongestShort = 240;
inline constexpr std::size_t kStripeBytes = 64, kRegionStripes = 16,
                             kRegionBytes = kStripeBytes * kRegionStripes;
inline constexpr unsigned kAccumulators = 8;
/// Where keys of the scrambling, of the last stripe and of the end start, in bytes of the secret.
inline constexpr unsigned kScrambleKey = 128, kLastKey = 121, kEndKey = 11;

template <typename T>
ATOMO_HD T load(const std::byte* p) noexcept {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

/// 8 bytes of the secret from byte `at` on.
ATOMO_HD constexpr std::uint64_t secret_at(const std::uint64_t* secret, unsigned at) noexcept {
  const unsigned word = at / 8, bits = at % 8 * 8;
  return bits == 0 ? secret[word] : secret[word] >> bits | secret[word + 1] << (64 - bits);
}

/// A word of the secret that long inputs are hashed with.
ATOMO_HD constexpr std::uint64_t seeded_word(const std::uint64_t* secret, unsigned word,
                                             std::uint64_t seed) noexcept {
  return secret[word] + (word % 2 == 0 ? seed : std::uint64_t{0} - seed);
}
/// 8 bytes of it from byte `at` on.
ATOMO_HD constexpr std::uint64_t seeded_at(const std::uint64_t* secret, unsigned at,
                                           std::uint64_t seed) noexcept {
  const unsigned word = at / 8, bits = at % 8 * 8;
  const std::uint64_t low = seeded_word(secret, word, seed);
  return bits == 0 ? low : low >> bits | seeded_word(secret, word + 1, seed) << (64 - bits);
}

/// The halves of the 128-bit product, xored.
ATOMO_HD constexpr std::uint64_t fold(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ typedef unsigned __int128 Wide;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

ATOMO_HD constexpr std::uint64_t avalanche(std::uint64_t h) noexcept {
  h = (h ^ h >> 37) * 0x165667919E3779F9;
  return h ^ h >> 32;
}
/// Hashes inputs of up to 3 bytes.
ATOMO_HD constexpr std::uint64_t avalanche_tiny(std::uint64_t h) noexcept {
  h = (h ^ h >> 33) * kPrime64_2;
  h = (h ^ h >> 29) * kPrime64_3;
  return h ^ h >> 32;
}

ATOMO_HD constexpr std::uint32_t reversed(std::uint32_t v) noexcept {
  return v << 24 | (v & 0xFF00u) << 8 | (v >> 8 & 0xFF00u) | v >> 24;
}
ATOMO_HD constexpr std::uint64_t reversed(std::uint64_t v) noexcept {
  return std::uint64_t{reversed(static_cast<std::uint32_t>(v))} << 32 |
         reversed(static_cast<std::uint32_t>(v >> 32));
}

// ---- up to 240 bytes

ATOMO_HD inline std::uint64_t hash_up_to_16(const std::uint64_t* secret, const std::byte* data,
                                            std::size_t n, std::uint64_t seed) noexcept {
  if (n > 8) {
    const std::uint64_t low =
        load<std::uint64_t>(data) ^ ((secret_at(secret, 24) ^ secret_at(secret, 32)) + seed);
    const std::uint64_t high = load<std::uint64_t>(data + n - 8) ^
                               ((secret_at(secret, 40) ^ secret_at(secret, 48)) - seed);
    return avalanche(n + reversed(low) + high + fold(low, high));
  }
  if (n >= 4) {
    seed ^= std::uint64_t{reversed(static_cast<std::uint32_t>(seed))} << 32;
    const std::uint64_t both =
        load<std::uint32_t>(data + n - 4) + (std::uint64_t{load<std::uint32_t>(data)} << 32);
    std::uint64_t h = both ^ ((secret_at(secret, 8) ^ secret_at(secret, 16)) - seed);
    h = (h ^ std::rotl(h, 49) ^ std::rotl(h, 24)) * 0x9FB21C651E98DF25;
    h = (h ^ ((h >> 35) + n)) * 0x9FB21C651E98DF25;
    return h ^ h >> 28;
  }
  if (n > 0) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(data[i]); };
    const std::uint32_t all =
        byte(0) << 16 | byte(n >> 1) << 24 | byte(n - 1) | static_cast<std::uint32_t>(n) << 8;
    const auto key = static_cast<std::uint32_t>(secret[0] ^ secret[0] >> 32);
    return avalanche_tiny(all ^ (key + seed));
  }
  return avalanche_tiny(seed ^ secret_at(secret, 56) ^ secret_at(secret, 64));
}

ATOMO_HD inline std::uint64_t mix_16(const std::uint64_t* secret, unsigned key_at,
                                     const std::byte* data, std::uint64_t seed) noexcept {
  return fold(load<std::uint64_t>(data) ^ (secret_at(secret, key_at) + seed),
              load<std::uint64_t>(data + 8) ^ (secret_at(secret, key_at + 8) - seed));
}

ATOMO_HD inline std::uint64_t hash_up_to_240(const std::uint64_t* secret, const std::byte* data,
                                             std::size_t n, std::uint64_t seed) noexcept {
  std::uint64_t sum = n * kPrime64_1;
  if (n <= 128) {
    // From both ends towards the middle.
    const auto pairs = static_cast<unsigned>((n - 1) / 32) + 1;
    for (unsigned i = 0; i < pairs; ++i) {
      sum += mix_16(secret, 32 * i, data + 16 * i, seed);
      sum += mix_16(secret, 32 * i + 16, data + n - 16 * (i + 1), seed);
    }
    return avalanche(sum);
  }
  const auto rounds = static_cast<unsigned>(n / 16);
  for (unsigned i = 0; i < 8; ++i) sum += mix_16(secret, 16 * i, data + 16 * i, seed);
  sum = avalanche(sum);
  for (unsigned i = 8; i < rounds; ++i)
    sum += mix_16(secret, 16 * (i - 8) + 3, data + 16 * i, seed);
  return avalanche(sum + mix_16(secret, 119, data + n - 16, seed));
}

// ---- longer inputs

/// The start value of accumulator i.
ATOMO_HD constexpr std::uint64_t initial(unsigned i) noexcept {
  switch (i) {
    case 0:
      return kPrime32_3;
    case 1:
      return kPrime64_1;
    case 2:
      return kPrime64_2;
    case 3:
      return kPrime64_3;
    case 4:
      return kPrime64_4;
    case 5:
      return kPrime32_2;
    case 6:
      return kPrime64_5;
    default:
      return kPrime32_1;
  }
}

/// What word i of a stripe adds to accumulator i, under its key. To accumulator i xor 1 it adds itself.
ATOMO_HD constexpr std::uint64_t product(std::uint64_t word, std::uint64_t key) noexcept {
  const std::uint64_t keyed = word ^ key;
  return std::uint64_t{static_cast<std::uint32_t>(keyed)} * static_cast<std::uint32_t>(keyed >> 32);
}

ATOMO_HD constexpr std::uint64_t scramble(std::uint64_t sum, std::uint64_t key) noexcept {
  return (sum ^ sum >> 47 ^ key) * kPrime32_1;
}

ATOMO_HD inline std::uint64_t hash_long(const std::uint64_t* secret, const std::byte* data,
                                        std::size_t n, std::uint64_t seed) noexcept {
  std::uint64_t sums[kAccumulators];
  for (unsigned i = 0; i < kAccumulators; ++i) sums[i] = initial(i);
  const auto add_stripe = [&](const std::byte* stripe, unsigned key_at) {
    for (unsigned i = 0; i < kAccumulators; ++i) {
      const auto word = load<std::uint64_t>(stripe + 8 * i);
      sums[i] += product(word, seeded_at(secret, key_at + 8 * i, seed));
      sums[i ^ 1] += word;
    }
  };
  const std::size_t stripes = (n - 1) / kStripeBytes;  // but for the last
  for (std::size_t s = 0; s < stripes; ++s) {
    const auto within = static_cast<unsigned>(s % kRegionStripes);
    add_stripe(data + kStripeBytes * s, 8 * within);
    if (within + 1 < kRegionStripes) continue;
    for (unsigned i = 0; i < kAccumulators; ++i)
      sums[i] = scramble(sums[i], seeded_at(secret, kScrambleKey + 8 * i, seed));
  }
  add_stripe(data + n - kStripeBytes, kLastKey);
  std::uint64_t end = n * kPrime64_1;
  for (unsigned i = 0; i < kAccumulators; i += 2) {
    end += fold(sums[i] ^ seeded_at(secret, kEndKey + 8 * i, seed),
                sums[i + 1] ^ seeded_at(secret, kEndKey + 8 * i + 8, seed));
  }
  return avalanche(end);
}

/// The hash of n bytes at any address.
ATOMO_HD inline std::uint64_t hash(const std::uint64_t* secret, const std::byte* data,
                                   std::size_t n, std::uint64_t seed) noexcept {
  if (n <= 16) return hash_up_to_16(secret, data, n, seed);
  return n <= kLongestShort ? hash_up_to_240(secret, data, n, seed)
                            : hash_long(secret, data, n, seed);
}

}  // namespace atomo::core::xxh3
