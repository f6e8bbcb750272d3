// SPDX-License-Identifier: Apache-2.0
/// Votes are counted bit by bit: plane p of 512 entries has bit p of how many messages say minus, a
/// bit an entry. A message costs three operations a plane and 64 entries, and reads an eighth of a byte
/// an entry; the result is written once.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/run_tasks.hpp"
#include "cpu/sign.hpp"

namespace atomo::cpu {
namespace {

constexpr std::size_t kWords = 8, kEntries = 64 * kWords;  ///< that are counted together
constexpr std::size_t kGrain = std::size_t{1} << 16;       ///< entries a task
static_assert(kGrain % kEntries == 0);

using Words = std::array<std::uint64_t, kWords>;

/// Of 512 entries: how many messages say minus.
class Counters {
 public:
  explicit Counters(std::size_t messages) noexcept
      : planes_(static_cast<std::size_t>(std::bit_width(messages))) {
    for (std::size_t p = 0; p < planes_; ++p) plane_[p] = {};
  }

  void add(Words carry) noexcept {
    for (std::size_t p = 0; p < planes_; ++p) {
      for (std::size_t w = 0; w < kWords; ++w) {
        const std::uint64_t both = plane_[p][w] & carry[w];
        plane_[p][w] ^= carry[w];
        carry[w] = both;
      }
    }
  }

  /// Where a count is above `half`, and where it is that.
  void compare(std::size_t half, Words& above, Words& equal) const noexcept {
    above = {};
    equal.fill(~std::uint64_t{0});
    for (std::size_t p = planes_; p-- > 0;) {
      const std::uint64_t bit = ((half >> p) & 1) != 0 ? ~std::uint64_t{0} : 0;
      for (std::size_t w = 0; w < kWords; ++w) {
        above[w] |= equal[w] & plane_[p][w] & ~bit;
        equal[w] &= ~(plane_[p][w] ^ bit);
      }
    }
  }

 private:
  std::size_t planes_;
  std::array<Words, 32> plane_;
};

}  // namespace

void count_votes(std::span<const std::byte* const> bits, float* y, std::size_t n,
                 Executor* executor) noexcept {
  const std::size_t half = bits.size() / 2;
  const bool even = bits.size() % 2 == 0;
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t first = begin; first < end; first += kEntries) {
      const std::size_t count = std::min(kEntries, end - first), bytes = (count + 7) / 8;
      Counters counters(bits.size());
      for (const std::byte* const message : bits) {
        Words words{};
        std::memcpy(words.data(), message + first / 8, bytes);
        counters.add(words);
      }
      Words minus, tied;
      counters.compare(half, minus, tied);
      if (!even) tied = {};
      for (std::size_t i = 0; i < count; ++i) {
        const auto negative = static_cast<int>((minus[i / 64] >> (i % 64)) & 1),
                   none = static_cast<int>((tied[i / 64] >> (i % 64)) & 1);
        y[first + i] = static_cast<float>(1 - 2 * negative - none);
      }
    }
  });
}

}  // namespace atomo::cpu
