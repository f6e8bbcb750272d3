// SPDX-License-Identifier: Apache-2.0
/// The probabilities of pairs, and the sampling that keeps to them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "cpu/svd.hpp"
#include "format/factors_body.hpp"
#include "math/water_filling.hpp"

namespace atomo {
namespace {

using namespace model;

constexpr double kUnit = 0x1p-32;

std::vector<std::uint64_t> fill(const std::vector<double>& amplitudes, std::uint64_t keep) {
  std::vector<std::uint64_t> p(amplitudes.size());
  std::vector<std::uint32_t> order(amplitudes.size());
  cpu::water_fill(amplitudes, keep, p, order);
  return p;
}

/// Second moment of the sample, what water filling minimises.
double second_moment(const std::vector<double>& a, const std::vector<double>& p) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] > 0 ? a[i] * a[i] / p[i] : 0;
  return sum;
}

std::vector<double> shares(const std::vector<std::uint64_t>& p) {
  std::vector<double> q;
  for (const std::uint64_t x : p) q.push_back(static_cast<double>(x) * kUnit);
  return q;
}

/// The first mistake of published code: mass above 1 is cut off and not given to the others.
std::vector<double> cut_without_redistribution(const std::vector<double>& a, double keep) {
  double sum = 0;
  for (const double v : a) sum += v;
  std::vector<double> p;
  for (const double v : a) p.push_back(std::min(1.0, keep * v / sum));
  return p;
}

/// KKT: the sum is spent; one ratio p / a for all that are not certain, no larger for the certain.
bool satisfies_kkt(const std::vector<double>& a, const std::vector<double>& p, double keep) {
  double sum = 0, ratio = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += p[i];
    if (p[i] < 1 && a[i] > 1e-6) ratio = p[i] / a[i];
  }
  if (std::fabs(sum - keep) > 1e-12 * keep) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] <= 1e-6) continue;
    if (p[i] < 1 && std::fabs(p[i] / a[i] - ratio) > 1e-3 * ratio) return false;
    if (p[i] == 1 && ratio > 0 && a[i] * ratio < 1 - 1e-3) return false;
  }
  return true;
}

TEST(WaterFilling, SpendsTheCountAndIsOptimal) {
  std::mt19937_64 generator(3);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 200; ++round) {
    std::vector<double> a(1 + generator() % 40);
    for (double& v : a) v = generator() % 7 == 0 ? 0 : std::exp(2 * normal(generator));
    std::size_t positive = 0;
    for (const double v : a) positive += v > 0 ? 1 : 0;
    const std::uint64_t keep = 1 + generator() % (a.size() + 1);
    const auto p = fill(a, keep);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += p[i];
      EXPECT_LE(p[i], kCertainPair);
      EXPECT_EQ(p[i] > 0, a[i] > 0);
    }
    EXPECT_EQ(sum, std::min<std::uint64_t>(keep, positive) << 32);
    if (keep >= positive) continue;
    const auto share = shares(p);
    EXPECT_TRUE(satisfies_kkt(a, share, static_cast<double>(keep))) << round;
    const auto cut = cut_without_redistribution(a, static_cast<double>(keep));
    double spent = 0;
    for (const double q : cut) spent += q;
    if (spent < static_cast<double>(keep) - 1e-3) {
      EXPECT_FALSE(satisfies_kkt(a, cut, static_cast<double>(keep))) << round;
      EXPECT_GT(second_moment(a, cut), second_moment(a, share));
    }
  }
}

/// What rounding left is given out, or taken, one unit at a
/// time from the last to the first. `amplitudes` descend.
std::vector<std::uint64_t> unit_by_unit(const std::vector<double>& amplitudes, std::uint64_t keep) {
  const auto level = find_water_level(amplitudes.size(), static_cast<double>(keep),
                                      [&](std::size_t i) { return amplitudes[i]; });
  std::vector<std::uint64_t> p;
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < amplitudes.size(); ++i) {
    const double share = amplitudes[i] * level.per_amplitude;
    const double q = i < level.certain || share > 1 ? 1.0 : share;
    p.push_back(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(q * 0x1p32)));
    used += p.back();
  }
  for (std::size_t i = amplitudes.size(); used != keep << 32;) {
    if (i == level.certain) i = amplitudes.size();
    std::uint64_t& own = p[--i];
    if (used < keep << 32 && own < kCertainPair) {
      ++own, ++used;
    } else if (used > keep << 32 && own > 1) {
      --own, --used;
    }
  }
  return p;
}

TEST(WaterFilling, RoundingIsSharedAUnitAtATime) {
  std::mt19937_64 generator(5);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 300; ++round) {
    // Few that count, and many that are next to nothing: each of these takes a unit of its own, so
    // that others, some of a few units, have to give theirs.
    const std::size_t count = 2 + generator() % 300, large = 1 + generator() % 4;
    std::vector<double> a(count);
    for (std::size_t i = 0; i < count; ++i) {
      const double scale = generator() % 4 != 0 ? 1e-14 : 5e-10;
      a[i] = std::exp(normal(generator)) * (i < large || round % 3 == 0 ? 1 : scale);
    }
    std::sort(a.rbegin(), a.rend());
    const std::uint64_t keep = 1 + generator() % (round % 3 == 1 ? large : count - 1);
    if (keep >= count) continue;
    EXPECT_EQ(fill(a, keep), unit_by_unit(a, keep)) << round << ": " << keep << " of " << count;
  }
}

/// Against every point of a grid on the simplex, three atoms.
TEST(WaterFilling, NoGridPointIsBetter) {
  for (const std::vector<double>& a :
       {std::vector<double>{1, 1, 1}, {10, 1, 1}, {5, 4, 0.1}, {100, 2, 1}}) {
    for (const std::uint64_t keep : {1, 2}) {
      const double best = second_moment(a, shares(fill(a, keep)));
      for (double p = 0.005; p <= 1; p += 0.005) {
        for (double q = 0.005; q <= 1; q += 0.005) {
          const double r = static_cast<double>(keep) - p - q;
          if (r <= 0 || r > 1) continue;
          EXPECT_GE(second_moment(a, {p, q, r}), best * (1 - 1e-9));
        }
      }
    }
  }
}

TEST(WaterFilling, TheTinyAreNeverLost) {
  std::vector<double> a{1e30, 1, 1e-30, 1e-300, 0};
  const auto p = fill(a, 2);
  EXPECT_EQ(p[0], kCertainPair);
  EXPECT_GE(p[2], 1u);
  EXPECT_GE(p[3], 1u);
  EXPECT_EQ(p[4], 0u);
}

// ---- sampling, over every outcome

/// Probabilities in sixteenths: 16 draws a chunk are all there are.
struct Sampled {
  std::vector<double> mean;
  double variance = 0;  ///< of a sum of orthonormal atoms of these amplitudes
};

template <typename Sample>
Sampled enumerate(const std::vector<double>& a, Sample sample) {
  Sampled found{std::vector<double>(a.size()), 0};
  for (std::uint32_t top = 0; top < 16; ++top) {
    const std::vector<double> estimate = sample(top << 28 | 0x01234567u);
    for (std::size_t k = 0; k < a.size(); ++k) {
      found.mean[k] += estimate[k] / 16;
      found.variance += (estimate[k] - a[k]) * (estimate[k] - a[k]) / 16;
    }
  }
  return found;
}

std::vector<double> sample_pairs(const std::vector<double>& a, const std::vector<std::uint64_t>& p,
                                 std::uint32_t u) {
  std::vector<std::uint32_t> kept(a.size());
  const std::size_t count = draw_pairs(
      p, [&](std::size_t) { return u; }, std::span(kept));
  std::vector<double> y(a.size());
  for (std::size_t i = 0; i < count; ++i) y[kept[i]] = a[kept[i]] * pair_scale(p[kept[i]]);
  return y;
}

struct Case {
  std::vector<double> amplitudes;
  std::vector<std::uint64_t> probabilities;
};

Case sixteenths(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  Case c;
  for (std::size_t i = 0; i < n; ++i) {
    c.probabilities.push_back((1 + generator() % 16) << 28);
    c.amplitudes.push_back(1 + static_cast<double>(generator() % 100));
  }
  return c;
}

double worst_bias(const std::vector<double>& a, const Sampled& found) {
  double worst = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    worst = std::max(worst, std::fabs(found.mean[k] / a[k] - 1));
  }
  return worst;
}

TEST(PairSampling, ExpectationAndVarianceAreExact) {
  for (const std::size_t n : {1, 2, 5, 64, 157, 255, 256, 300}) {
    const Case c = sixteenths(n, n);
    const auto found = enumerate(c.amplitudes, [&](std::uint32_t u) {
      return sample_pairs(c.amplitudes, c.probabilities, u);
    });
    EXPECT_LT(worst_bias(c.amplitudes, found), 1e-12) << n;
    double variance = 0;
    for (std::size_t k = 0; k < n; ++k) {
      variance += c.amplitudes[k] * c.amplitudes[k] * (pair_scale(c.probabilities[k]) - 1);
    }
    EXPECT_NEAR(found.variance, variance, 1e-12 * variance) << n;
  }
}

TEST(PairSampling, MutantsAreCaught) {
  // Drawing again when nothing was kept.
  const Case sparse{{3, 2, 1}, {2ull << 28, 1ull << 28, 1ull << 28}};
  const auto redrawn = enumerate(sparse.amplitudes, [&](std::uint32_t u) {
    auto y = sample_pairs(sparse.amplitudes, sparse.probabilities, u);
    while (y == std::vector<double>(3)) {
      u += 1u << 28;
      y = sample_pairs(sparse.amplitudes, sparse.probabilities, u);
    }
    return y;
  });
  EXPECT_GT(worst_bias(sparse.amplitudes, redrawn), 0.5);
  // Dividing by the ideal probability instead of the integer that was drawn with.
  const Case c = sixteenths(20, 4);
  const auto ideal = enumerate(c.amplitudes, [&](std::uint32_t u) {
    auto y = sample_pairs(c.amplitudes, c.probabilities, u);
    for (std::size_t k = 0; k < y.size(); ++k) {
      const double p = static_cast<double>(c.probabilities[k]) * kUnit;
      if (p < 1) y[k] *= p / (p + 1e-9);
    }
    return y;
  });
  EXPECT_GT(worst_bias(c.amplitudes, ideal), 1e-12);
  // The order of visits taken modulo a short chunk, of which it visits places twice.
  const Case shortened = sixteenths(157, 5);
  const auto scrambled = enumerate(shortened.amplitudes, [&](std::uint32_t u) {
    std::vector<double> y(157);
    std::uint32_t sum = u;
    for (std::size_t i = 0; i < 157; ++i) {
      const std::size_t k = (i % 8 * 32 + i / 8) % 157;
      const auto p = shortened.probabilities[k];
      const std::uint32_t next = sum + static_cast<std::uint32_t>(p);
      if (next < sum || p == kCertainPair) y[k] = shortened.amplitudes[k] * pair_scale(p);
      sum = next;
    }
    return y;
  });
  EXPECT_GT(worst_bias(shortened.amplitudes, scrambled), 0.5);
  // A pair whose probability was rounded to 0 is never sent.
  Case lost = sixteenths(8, 6);
  lost.probabilities[3] = 0;
  const auto missing = enumerate(lost.amplitudes, [&](std::uint32_t u) {
    return sample_pairs(lost.amplitudes, lost.probabilities, u);
  });
  EXPECT_GT(worst_bias(lost.amplitudes, missing), 0.5);
}

}  // namespace
}  // namespace atomo
