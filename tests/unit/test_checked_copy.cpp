// SPDX-License-Identifier: Apache-2.0
#include "cpu/checked_copy.hpp"

#include <cstring>
#include <limits>

#include "atomo/thread_pool.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

/// What a copy to `skew` bytes behind a cache line's start leaves there, with a byte on each side.
struct Copy {
  std::vector<std::byte> room;
  std::byte* out;
  format::HashedBlocks hashed;
  bool finite;

  Copy(const std::vector<float>& x, std::size_t skew, Executor* executor)
      : room(4 * x.size() + 192, std::byte{0xA5}) {
    const auto at = reinterpret_cast<std::uintptr_t>(room.data());
    out = room.data() + (64 - at % 64) % 64 + 64 + skew;
    finite = cpu::copy_checked(x.data(), x.size(), out, &hashed, executor);
  }
};

TEST(CheckedCopy, CopiesHashesAndStopsWhereTheLayerDoes) {
  ThreadPool pool(2);
  for (const std::size_t n : {1u, 15u, 16u, 33u, 1023u, 1024u, 1025u, 5000u, (1u << 22) - 1,
                              1u << 22, (1u << 22) + 1000}) {
    const auto x = normal_entries(n, n);
    for (const std::size_t skew : {0u, 1u, 4u, 60u, 62u}) {
      for (Executor* const executor :
           {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
        const Copy copy(x, skew, executor);
        EXPECT_TRUE(copy.finite) << n;
        ASSERT_EQ(std::memcmp(copy.out, x.data(), 4 * n), 0) << n << ", " << skew;
        EXPECT_EQ(copy.out[-1], std::byte{0xA5}) << n << ", " << skew;
        EXPECT_EQ(copy.out[4 * n], std::byte{0xA5}) << n << ", " << skew;
        EXPECT_EQ(copy.hashed.count, n / 1024);
        const ConstBytes body(copy.out, 4 * n);
        EXPECT_EQ(format::body_checksum(body, copy.hashed, executor),
                  format::body_checksum(body, {}, nullptr))
            << n << ", " << skew;
      }
    }
  }
}

TEST(CheckedCopy, FindsWhatIsNotFinite) {
  for (const std::size_t n : {1u, 40u, 1025u, (1u << 22) + 5}) {
    auto x = normal_entries(n, n);
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
        const float good = std::exchange(x[at], bad);
        EXPECT_FALSE(Copy(x, 4, nullptr).finite) << at << " of " << n;
        x[at] = good;
      }
    }
    x[n / 2] = std::numeric_limits<float>::max();
    EXPECT_TRUE(Copy(x, 4, nullptr).finite) << n;
  }
}

}  // namespace
}  // namespace atomo::test
