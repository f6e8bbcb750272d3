// SPDX-License-Identifier: Apache-2.0
/// Random-k: the shares of segments and the draws of the loops, as the format states them.
/// statistics/random_k_checks.hpp has every outcome for small n.

#include "cpu/random_k.hpp"

#include <limits>
#include <set>

#include "core/philox.hpp"
#include "math/subset_sampling.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;

TEST(RandomKMath, SharesAddUpAndAreTheMeanRoundedDownOrUp) {
  for (const std::uint64_t n :
       {std::uint64_t{1}, std::uint64_t{4095}, std::uint64_t{4097}, std::uint64_t{100'003}}) {
    for (const std::uint64_t k : {std::uint64_t{1}, n / 5000 + 1, n / 10 + 1, n - n / 3, n}) {
      for (const std::uint64_t offset : {std::uint64_t{0}, n / 3, n - 1}) {
        const math::SampleShares<math::Wide> shares{n, k, offset};
        const math::SampleShares<std::uint64_t> narrow{n, k, offset};
        std::uint64_t kept = 0;
        for (std::uint64_t s = 0; s * math::kSampleSegment < n; ++s) {
          const math::SampledSegment segment = shares(s);
          EXPECT_EQ(segment.begin, s * math::kSampleSegment);
          EXPECT_EQ(segment.entries, std::min(math::kSampleSegment, n - segment.begin));
          EXPECT_EQ(segment.rank, kept);
          const std::uint64_t mean = k * segment.entries / n;
          EXPECT_TRUE(segment.keep == mean || segment.keep == mean + 1) << n << " " << k;
          EXPECT_LE(segment.keep, segment.entries);
          EXPECT_EQ(narrow(s).keep, segment.keep);
          EXPECT_EQ(narrow(s).rank, segment.rank);
          kept += segment.keep;
        }
        EXPECT_EQ(kept, k);
      }
    }
  }
}

/// Products of 80 bits, and of 64 where counts have 32.
TEST(RandomKMath, SharesOfTheLargestLayersDoNotOverflow) {
  const math::SampleShares<math::Wide> shares{kLargest, kLargest - 1, kLargest - 1};
  EXPECT_EQ(shares.before(kLargest), kLargest - 1);
  EXPECT_EQ(shares.before(kLargest - 1), kLargest - 1);  // the one left out is the last
  EXPECT_EQ(shares.before(1), 1u);
  constexpr std::uint64_t kNarrow = 0xFFFFFFFFu;
  const math::SampleShares<std::uint64_t> narrow{kNarrow, kNarrow, kNarrow - 1};
  EXPECT_EQ(narrow.before(kNarrow), kNarrow);
  EXPECT_EQ(narrow.before(kNarrow - 1), kNarrow - 1);
}

TEST(RandomKMath, ScaledDrawsCoverTheirRange) {
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  for (const std::uint64_t j : {0u, 1u, 6u, 4095u}) {
    EXPECT_EQ(math::scale_draw(0, j), 0u);
    EXPECT_EQ(math::scale_draw(kAll, j), j);
  }
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{7}, kLargest}) {
    EXPECT_EQ(math::scale_offset(0, 0, n), 0u);
    EXPECT_EQ(math::scale_offset(kAll, kAll, n), n - 1);
  }
  // The boundary of 3 equal parts of [0, 2^64) is 0x55...55 and a third; of [0, 2^128) the low half
  // decides.
  constexpr std::uint64_t kThird = 0x5555555555555555u;
  EXPECT_EQ(math::scale_draw(kThird, 2), 0u);
  EXPECT_EQ(math::scale_draw(kThird + 1, 2), 1u);
  EXPECT_EQ(math::scale_offset(kThird, kThird, 3), 0u);
  EXPECT_EQ(math::scale_offset(kThird + 1, kThird, 3), 1u);
}

/// floor(digits * range / 2^(32 count)), digits of 32 bits, by long multiplication.
std::uint64_t scaled(const std::uint32_t* digits, int count, std::uint64_t range) {
  math::Wide carry = 0;
  for (int i = 0; i < count; ++i) carry = math::Wide{digits[i]} * range + (carry >> 32);
  return static_cast<std::uint64_t>(carry >> 32);
}

/// The kept entries as the format states them.
std::vector<bool> reference_marks(std::uint64_t n, std::uint64_t k, Key key) {
  key.worker = 0;
  const Philox draws(key, Purpose::random_k);
  const math::Wide offset = scaled(draws(0).data(), 4, n);
  std::vector<bool> marks(n);
  for (std::uint64_t begin = 0; begin < n; begin += 4096) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + 4096, n), entries = end - begin;
    const auto keep = static_cast<std::uint64_t>((math::Wide{k} * end + offset) / n -
                                                 (math::Wide{k} * begin + offset) / n);
    const std::uint64_t m = std::min(keep, entries - keep);
    std::set<std::uint64_t> drawn;
    for (std::uint64_t d = 0; d < m; ++d) {
      const PhiloxWords block = draws(1 + 2048 * (begin / 4096) + d / 2);
      const std::uint64_t j = entries - m + d, t = scaled(block.data() + 2 * (d % 2), 2, j + 1);
      drawn.insert(drawn.count(t) != 0 ? j : t);
    }
    for (std::uint64_t i = 0; i < entries; ++i)
      marks[begin + i] = (drawn.count(i) != 0) == (keep <= entries / 2);
  }
  return marks;
}

TEST(RandomK, KeepsTheStatedEntriesScaled) {
  const Key key{.seed = 42, .step = 3, .tensor = 7, .worker = 5};
  for (const std::size_t n : {1u, 2u, 5u, 64u, 65u, 1009u, 4096u, 4097u, 70'001u}) {
    for (const std::uint64_t k : {std::size_t{1}, n / 10 + 1, n / 2, n / 2 + 1, n - n / 7, n}) {
      if (k == 0) continue;
      const RandomKConfig config{k};
      std::vector<float> x(n);
      for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i + 1);
      std::vector<std::byte> body(cpu::max_encoded_bytes(config, n));
      std::size_t bytes = 0;
      BackwardExecutor executor;
      ASSERT_EQ(cpu::encode(config, x.data(), n, key, &executor, body, bytes), Status::ok);
      ASSERT_EQ(bytes, 4 * k);
      std::vector<float> y(n);
      ASSERT_EQ(cpu::decode(config, body, y.data(), n, key, nullptr), Status::ok);
      const auto marks = reference_marks(n, k, key);
      EXPECT_EQ(std::count(marks.begin(), marks.end(), true), static_cast<std::ptrdiff_t>(k));
      const auto scale = static_cast<float>(static_cast<double>(n) / static_cast<double>(k));
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_EQ(y[i], marks[i] ? x[i] * scale : 0.0f) << n << " " << k << " " << i;
    }
  }
}

TEST(RandomK, WorkersShareTheirEntriesAndPayloadsAdd) {
  const auto method = codec::parse_spec("randomk:keep=0.1");
  EXPECT_TRUE(method.traits().linear);
  EXPECT_FALSE(method.traits().averages_over_workers);
  const std::size_t n = 1000;
  const auto kind = kind_of(method, n);
  const auto x = normal_entries(n, 1), z = normal_entries(n, 2);
  const Key first{.seed = 4, .worker = 0}, second{.seed = 4, .worker = 1};
  const auto a = encode_body(method, x, first).bytes, b = encode_body(method, z, second).bytes;
  std::vector<float> both(n);
  for (std::size_t i = 0; i < n; ++i) both[i] = x[i] + z[i];
  std::vector<std::byte> sum(a.size());
  for (std::size_t i = 0; i < a.size(); i += 4) {
    float p, q;
    std::memcpy(&p, a.data() + i, 4);
    std::memcpy(&q, b.data() + i, 4);
    p += q;
    std::memcpy(sum.data() + i, &p, 4);
  }
  EXPECT_EQ(sum, encode_body(method, both, first).bytes);
  EXPECT_EQ(decode_body(kind, sum, first).y, decode_body(kind, sum, second).y);
  EXPECT_NE(a, encode_body(method, x, {.seed = 4, .step = 1}).bytes);
}

/// Entries of one segment, and of three that keep fewer than one entry each.
TEST(RandomK, EveryEntryIsKeptEquallyOften) {
  constexpr int kKeys = 20'000;
  for (const auto& [n, k] : {std::pair<std::size_t, std::size_t>{130, 13}, {8500, 2}}) {
    std::vector<double> kept(130);  // as many groups of neighbours
    const std::size_t group = (n + 129) / 130;
    for (std::uint32_t step = 0; step < kKeys; ++step) {
      const auto marks = reference_marks(n, k, {.seed = 8, .step = step});
      for (std::size_t i = 0; i < n; ++i) kept[i / group] += marks[i];
    }
    // 130 counts, of each draw a binomial variance at most: beyond 5.5 deviations with a probability
    // below 1e-5 in all.
    for (std::size_t g = 0; g * group < n; ++g) {
      const double share = static_cast<double>(std::min(group, n - g * group)) *
                           static_cast<double>(k) / static_cast<double>(n);
      EXPECT_NEAR(kept[g], kKeys * share, 5.5 * std::sqrt(kKeys * share)) << n << " " << g;
    }
  }
}

TEST(RandomK, OverflowIsReported) {
  const auto method = codec::parse_spec("randomk:keep=0.5");
  const std::vector<float> x(100, 3e38f);
  const Values values = decode_body(kind_of(method, x.size()), encode_body(method, x).bytes);
  EXPECT_EQ(values.status, Status::overflow);
  EXPECT_EQ(std::count(values.y.begin(), values.y.end(), std::numeric_limits<float>::infinity()),
            50);
}

TEST(RandomK, ValuesMustBeFinite) {
  const auto method = codec::parse_spec("randomk:keep=3");
  auto bytes = encode_body(method, normal_entries(50, 1)).bytes;
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + 4, &bad, 4);
  EXPECT_EQ(decode_body(kind_of(method, 50), bytes).status, Status::corrupt);
}

TEST(RandomK, ErrorStaysUnderOmega) {
  for (const char* spec : {"randomk:keep=0.01", "randomk:keep=0.7"}) {
    const auto method = codec::parse_spec(spec);
    for (const std::uint64_t n : {1u, 2u, 149u, 5000u}) {
      const auto k = kind_of(method, n).params;
      EXPECT_LE(static_cast<double>(n) / k - 1, *method.traits().omega) << spec << " " << n;
    }
  }
}

}  // namespace
}  // namespace atomo::test
