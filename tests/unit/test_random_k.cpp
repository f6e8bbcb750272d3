// SPDX-License-Identifier: Apache-2.0
/// Random-k: every outcome of its draws for small n, the draws of the loops, and mistakes that the
/// same checks catch.

#include "cpu/random_k.hpp"

#include <limits>
#include <map>

#include "core/philox.hpp"
#include "math/subset_sampling.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

struct BoolSet {
  std::vector<bool> marks;
  [[nodiscard]] bool test(std::uint64_t i) const { return marks[i]; }
  void mark(std::uint64_t i) { marks[i] = true; }
};

/// Sampling that draws again from all entries, and drops what it drew before.
struct WithReplacement {
  static std::uint64_t range(std::uint64_t, std::uint64_t n) { return n; }
  static void add(BoolSet& set, std::uint64_t, std::uint64_t t) { set.mark(t); }
};
/// Floyd's sampling with the draw taken from all entries instead of those up to j.
struct WideDraw {
  static std::uint64_t range(std::uint64_t, std::uint64_t n) { return n; }
  static void add(BoolSet& set, std::uint64_t j, std::uint64_t t) { set.mark(set.test(t) ? j : t); }
};

/// Calls visit(set) for every outcome, all equally likely.
template <typename Visit>
void for_each_draw(std::uint64_t n, std::uint64_t m, Visit visit) {
  std::uint64_t outcomes = 1;
  for (std::uint64_t j = n - m; j < n; ++j) outcomes *= j + 1;
  for (std::uint64_t outcome = 0; outcome < outcomes; ++outcome) {
    BoolSet set{std::vector<bool>(n)};
    std::uint64_t left = outcome;
    math::draw_subset(n, m, set, [&](std::uint64_t j, std::uint64_t) {
      const std::uint64_t t = left % (j + 1);
      left /= j + 1;
      return t;
    });
    visit(set);
  }
}

template <typename Mutant, typename Visit>
void for_each_mutant_draw(std::uint64_t n, std::uint64_t m, Visit visit) {
  std::uint64_t outcomes = 1;
  for (std::uint64_t d = 0; d < m; ++d) outcomes *= Mutant::range(n - m + d, n);
  for (std::uint64_t outcome = 0; outcome < outcomes; ++outcome) {
    BoolSet set{std::vector<bool>(n)};
    std::uint64_t left = outcome;
    for (std::uint64_t d = 0; d < m; ++d) {
      const std::uint64_t range = Mutant::range(n - m + d, n);
      Mutant::add(set, n - m + d, left % range);
      left /= range;
    }
    visit(set);
  }
}

/// The largest of |E - x|, and of the mean squared error's distance from (n/k - 1) ||x||^2.
template <typename Enumerate>
double worst_moment(std::uint64_t n, std::uint64_t k, double scale, Enumerate enumerate) {
  std::vector<double> x(n), mean(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = 1.0 - 0.375 * static_cast<double>(i);
  double outcomes = 0, error = 0, energy = 0;
  for (const double v : x) energy += v * v;
  enumerate([&](const BoolSet& set) {
    ++outcomes;
    for (std::size_t i = 0; i < n; ++i) {
      const double y = set.marks[i] ? x[i] * scale : 0;
      mean[i] += y;
      error += (y - x[i]) * (y - x[i]);
    }
  });
  double worst =
      std::abs(error / outcomes - energy * (static_cast<double>(n) / static_cast<double>(k) - 1));
  for (std::size_t i = 0; i < n; ++i) worst = std::max(worst, std::abs(mean[i] / outcomes - x[i]));
  return worst;
}

TEST(RandomKMath, ExpectationAndErrorAreExact) {
  for (std::uint64_t n = 1; n <= 7; ++n) {
    for (std::uint64_t k = 1; k <= n; ++k) {
      const double scale = static_cast<double>(n) / static_cast<double>(k);
      EXPECT_LT(worst_moment(n, k, scale, [&](auto visit) { for_each_draw(n, k, visit); }), 1e-12)
          << n << " " << k;
      if (k == n) continue;  // the entries left out are drawn
      const auto complement = [&](auto visit) {
        for_each_draw(n, n - k, [&](BoolSet set) {
          set.marks.flip();
          visit(set);
        });
      };
      EXPECT_LT(worst_moment(n, k, scale, complement), 1e-12) << n << " " << k;
    }
  }
}

TEST(RandomKMath, EverySubsetIsEquallyLikely) {
  std::map<std::vector<bool>, int> counts;
  for_each_draw(6, 3, [&](const BoolSet& set) { ++counts[set.marks]; });
  EXPECT_EQ(counts.size(), 20u);
  for (const auto& [marks, count] : counts)
    EXPECT_EQ(count, 6);  // 4 * 5 * 6 outcomes over 20 subsets
}

TEST(RandomKMath, MutantsAreCaught) {
  EXPECT_GT(worst_moment(5, 2, 1.0, [&](auto visit) { for_each_draw(5, 2, visit); }),
            0.1);  // unscaled
  EXPECT_GT(worst_moment(5, 2, 2.5,
                         [&](auto visit) { for_each_mutant_draw<WithReplacement>(5, 2, visit); }),
            0.01);
  EXPECT_GT(
      worst_moment(5, 2, 2.5, [&](auto visit) { for_each_mutant_draw<WideDraw>(5, 2, visit); }),
      0.01);
}

TEST(RandomKMath, ScaledDrawsCoverTheirRange) {
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  for (const std::uint64_t j :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, (std::uint64_t{1} << 40) - 1}) {
    EXPECT_EQ(math::scale_draw(0, 0, j), 0u);
    EXPECT_EQ(math::scale_draw(kAll, kAll, j), j);
  }
  // The boundary of 3 equal parts of [0, 2^128) is 0x55...55 and a third: the low half decides.
  constexpr std::uint64_t kThird = 0x5555555555555555u;
  EXPECT_EQ(math::scale_draw(kThird, kThird, 2), 0u);
  EXPECT_EQ(math::scale_draw(kThird + 1, kThird, 2), 1u);
}

/// The kept entries as the format states them.
std::vector<bool> reference_marks(std::uint64_t n, std::uint64_t k, Key key) {
  key.worker = 0;
  const Philox draws(key, Purpose::random_k);
  const bool complement = k > n / 2;
  BoolSet set{std::vector<bool>(n)};
  math::draw_subset(n, complement ? n - k : k, set, [&](std::uint64_t j, std::uint64_t d) {
    const PhiloxWords w = draws(d);
    math::Wide r = 0;
    for (int i = 3; i >= 0; --i) r = (r << 32) | w[static_cast<std::size_t>(i)];
    // floor(r * (j + 1) / 2^128), by long multiplication in 32-bit digits
    math::Wide carry = 0;
    for (int i = 0; i < 4; ++i)
      carry = ((r >> (32 * i)) & 0xFFFFFFFFu) * (math::Wide{j} + 1) + (carry >> 32);
    return static_cast<std::uint64_t>(carry >> 32);
  });
  if (complement) set.marks.flip();
  return set.marks;
}

TEST(RandomK, KeepsTheStatedEntriesScaled) {
  const Key key{.seed = 42, .step = 3, .tensor = 7, .worker = 5};
  for (const std::size_t n : {1u, 2u, 5u, 64u, 65u, 1009u, 70'001u}) {
    for (const std::uint64_t k : {std::size_t{1}, n / 10 + 1, n / 2 + 1, n}) {
      const RandomKConfig config{k};
      std::vector<float> x(n);
      for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i + 1);
      std::vector<std::byte> body(cpu::max_encoded_bytes(config, n)),
          workspace(cpu::workspace_bytes(config, n));
      std::size_t bytes = 0;
      ASSERT_EQ(cpu::encode(config, x.data(), n, key, workspace, nullptr, body, bytes), Status::ok);
      ASSERT_EQ(bytes, 4 * k);
      std::vector<float> y(n);
      ASSERT_EQ(cpu::decode(config, body, y.data(), n, key, workspace, nullptr), Status::ok);
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

TEST(RandomK, EveryEntryIsKeptEquallyOften) {
  constexpr std::size_t kN = 130, kK = 13, kKeys = 20'000;
  std::vector<double> kept(kN);
  for (std::uint32_t step = 0; step < kKeys; ++step) {
    const auto marks = reference_marks(kN, kK, {.seed = 8, .step = step});
    for (std::size_t i = 0; i < kN; ++i) kept[i] += marks[i];
  }
  // 130 binomial counts of mean 2,000 and deviation 42.4: beyond 5.5 deviations with a probability
  // below 1e-5 in all.
  for (std::size_t i = 0; i < kN; ++i) EXPECT_NEAR(kept[i], 2000, 5.5 * 42.5) << i;
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
