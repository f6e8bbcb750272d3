// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Philox4x32-10, the counter-based generator behind every random draw (Salmon et al., "Parallel
/// random numbers: as easy as 1, 2, 3", 2011), and the one way in which a draw is addressed.
///
/// A draw is a pure function of the key, a purpose and an index: no state, no order, no thread. The
/// 128-bit counter is laid out by field and never hashed, from the low bit up:
///
///     index 40 | purpose 8 | channel 16 | step 32 | tensor 16 | worker 16
///
/// and Philox's own 64-bit key is `Key::seed`. Two draws of one message never share a (purpose,
/// index).
///
/// ```cpp
/// atomo::Philox draws(key, atomo::Purpose::select_row);
/// std::uint32_t u = draws(7)[0];  // first of the four words at index 7
/// ```

#include <array>
#include <cstdint>
#include <type_traits>

#include "atomo/types.hpp"
#include "core/host_device.hpp"
#include "core/namespaces.hpp"

namespace atomo::core {

/// What a draw is for. The numbers are part of the wire format (FORMAT.md): they are added to,
/// never changed.
enum class Purpose : std::uint8_t {
  select_block = 1,     ///< systematic selection of blocks, one draw a chunk
  select_row = 2,       ///< the same for rows
  select_pair = 3,      ///< the same for singular pairs
  pre_round_block = 4,  ///< 16 bits an entry, the encoder's alone
  pre_round_row = 5,
  pre_round_u = 6,   ///< of the shorter factor of a pair
  pre_round_v = 7,   ///< of the longer factor of a pair
  dither_block = 8,  ///< 4 bits a pair of entries, drawn by both ends
  dither_row = 9,
  dither_u = 10,
  dither_v = 11,
  select_coordinate = 12,
  qsgd = 13,
  qsgd_low = 14,  ///< further bits of a draw whose first bits tie
  ternary = 15,
  ternary_low = 16,
  output = 17,    ///< stochastic rounding of decoded values to half precision
  identity = 18,  ///< stochastic rounding of sent values to half precision
  random_k = 19,
  thinning = 20,
  sketch_omega = 21,
  natural = 23,
  output_low = 24,  ///< further bits, as of qsgd_low
  identity_low = 25,
  memory = 26,  ///< stochastic rounding of what a memory keeps, the sender's alone
  memory_low = 27,
  select_entry = 28,  ///< of a chunk, one draw a chunk
  round_entry = 29,   ///< the value of one that was kept, to a level
  own = 30,           ///< of codecs that are not the library's, for both ends
  minmax = 31,
  fp8 = 32,  ///< stochastic rounding of sent values to eight bits
};

/// The indices of one purpose: 40 bits.
inline constexpr std::uint64_t kMaxDrawIndex = (std::uint64_t{1} << 40) - 1;

/// A counter, or what it turns into.
using PhiloxWords = std::array<std::uint32_t, 4>;

/// Word i mod 4 of a block. The words are selected, not indexed, so that a kernel keeps them in registers.
[[nodiscard]] ATOMO_HD constexpr std::uint32_t word_of(const PhiloxWords& block,
                                                       std::uint64_t i) noexcept {
  const std::uint32_t low = (i & 1) == 0 ? block[0] : block[1];
  const std::uint32_t high = (i & 1) == 0 ? block[2] : block[3];
  return (i & 2) == 0 ? low : high;
}

/// The product of two words. A kernel is told the instruction: the compiler widens what rounds make of
/// halves of products, and would multiply 64 bits by 64.
[[nodiscard]] ATOMO_HD constexpr std::uint64_t wide_product(std::uint32_t a,
                                                            std::uint32_t b) noexcept {
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) {
    std::uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
  }
#endif
  return std::uint64_t{a} * b;
}

/// The generator itself: ten rounds over a counter of four words under a key of two.
[[nodiscard]] constexpr PhiloxWords philox4x32(PhiloxWords counter, std::uint32_t key0,
                                               std::uint32_t key1) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p = wide_product(counter[0], 0xD2511F53u);
    const std::uint64_t q = wide_product(counter[2], 0xCD9E8D57u);
    counter = {
        static_cast<std::uint32_t>(q >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(q),
        static_cast<std::uint32_t>(p >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(p)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// The draws of one key and purpose, addressed by index.
class Philox {
 public:
  /// The draws of `purpose` under `key`.
  constexpr Philox(const Key& key, Purpose purpose) noexcept
      : fields_((static_cast<std::uint32_t>(purpose) << 8) | (std::uint32_t{key.channel} << 16)),
        step_(key.step),
        place_(std::uint32_t{key.tensor} | (std::uint32_t{key.worker} << 16)),
        key0_(static_cast<std::uint32_t>(key.seed)),
        key1_(static_cast<std::uint32_t>(key.seed >> 32)) {}

  /// The counter of an index up to `kMaxDrawIndex`.
  [[nodiscard]] constexpr PhiloxWords counter(std::uint64_t index) const noexcept {
    return {static_cast<std::uint32_t>(index),
            fields_ | (static_cast<std::uint32_t>(index >> 32) & 0xFFu), step_, place_};
  }
  /// The four words at an index.
  [[nodiscard]] constexpr PhiloxWords operator()(std::uint64_t index) const noexcept {
    return philox4x32(counter(index), key0_, key1_);
  }

  /// The two keys of each of the ten rounds: for loops that run the rounds in lanes.
  [[nodiscard]] constexpr std::array<std::uint32_t, 20> round_keys() const noexcept {
    std::array<std::uint32_t, 20> keys{};
    for (std::uint32_t round = 0; round < 10; ++round) {
      keys[2 * round] = key0_ + round * 0x9E3779B9u;
      keys[2 * round + 1] = key1_ + round * 0xBB67AE85u;
    }
    return keys;
  }

  /// Lower word of the seed.
  [[nodiscard]] constexpr std::uint32_t key0() const noexcept { return key0_; }
  /// Upper word of the seed.
  [[nodiscard]] constexpr std::uint32_t key1() const noexcept { return key1_; }

 private:
  std::uint32_t fields_, step_, place_, key0_, key1_;
};

}  // namespace atomo::core
