// SPDX-License-Identifier: Apache-2.0
/// Paths of a trellis: Viterbi's search against all paths, their bits, and the error of rotated blocks that are sent so.
#include <cmath>
#include <random>

#include "catalogue/catalogue_support.hpp"
#include "catalogue/viterbi.hpp"

namespace atomo::test {
namespace {

using catalogue::Trellis;
using Path = std::vector<Trellis::Code>;

std::vector<float> normal_entries(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

/// Every path of so many steps, in the order of its bits.
std::vector<Path> all_paths(const Trellis& trellis, std::size_t steps) {
  const std::size_t bits = trellis.state_bits() + (steps - 1) * trellis.step_bits();
  std::vector<Path> paths;
  for (std::size_t number = 0; number < std::size_t{1} << bits; ++number) {
    Path path(steps);
    std::size_t left = number;
    for (std::size_t t = 0; t < steps; ++t) {
      const unsigned width = t == 0 ? trellis.state_bits() : trellis.step_bits();
      path[t] = static_cast<Trellis::Code>(left & ((std::size_t{1} << width) - 1));
      left >>= width;
    }
    paths.push_back(path);
  }
  return paths;
}

/// |x - a q|^2, a^2 being the share of normal entries' energy that so many bits can hold, to a hundredth of it.
double distance(const Trellis& trellis, double bits, const Path& path,
                const std::vector<float>& x) {
  const double a = std::sqrt(1 - std::pow(4, -bits));
  std::vector<float> q(x.size());
  trellis.expand(path, q);
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - a * q[i]) * (x[i] - a * q[i]);
  return sum;
}

TEST(Trellis, FindsTheNearestOfAllPaths) {
  struct Case {
    std::size_t states;
    double bits;
    std::size_t entries;
  };
  // Paths of 4, 3, 2 and of 3 and 5 steps, of 10 to 12 bits in all; steps of one entry and of several, not all as many.
  for (const auto& [states, bits, entries] :
       {Case{256, 1, 4}, {256, 2, 3}, {256, 3, 2}, {256, 4, 2}, {512, 0.5, 23}, {256, 0.3, 40}}) {
    SCOPED_TRACE(testing::Message() << states << " states, " << bits << " bits");
    const Trellis trellis(states, bits, entries);
    const std::size_t steps = trellis.steps_of(entries);
    const auto paths = all_paths(trellis, steps);
    ASSERT_GT(steps, 1u);
    ASSERT_LE(paths.size(), 1u << 12);
    for (unsigned seed = 0; seed < 20; ++seed) {
      const auto x = normal_entries(entries, seed);
      std::vector<float> halves(x);
      for (float& v : halves) v *= 0.5f;
      Path found(steps);
      trellis.find(halves, 2, found);
      double least = 1e30;
      for (const Path& path : paths) least = std::min(least, distance(trellis, bits, path, x));
      EXPECT_LE(distance(trellis, bits, found, x), 1.002 * least) << seed;
    }
  }
}

TEST(Trellis, AStateAndThatWithoutItsTopBitAreOpposite) {
  const Trellis trellis(1024, 0.2, 4096);
  const auto rows = [&](Trellis::Code state) {
    std::vector<float> q(5);
    trellis.expand(Path{state}, q);
    return q;
  };
  double sum = 0, squares = 0, fourths = 0;
  for (Trellis::Code state = 0; state < 512; ++state) {
    const auto low = rows(state), high = rows(state + 512);
    for (std::size_t i = 0; i < low.size(); ++i) {
      EXPECT_EQ(low[i], -high[i]);
      sum += low[i] / 2560;
      squares += low[i] * low[i] / 2560;
      fourths += std::pow(low[i], 4) / 2560;
    }
  }
  // Standard errors are .02, .026 and .15. A sum of 8 uniform numbers has a fourth moment of 2.85.
  EXPECT_NEAR(sum, 0, 0.08);
  EXPECT_NEAR(squares, 1, 0.11);
  EXPECT_NEAR(fourths, 2.85, 0.6);
}

TEST(Trellis, PathsHaveTheBitsAskedFor) {
  for (const double bits : {0.02, 0.0625, 0.138, 0.21, 0.5, 0.999, 1.0, 2.0, 3.0, 4.0})
    for (const std::size_t states : {256, 4096}) {
      const auto codec =
          own_codec("trellis:bits=" + std::to_string(bits) + ",states=" + std::to_string(states));
      const std::size_t n = std::size_t{1} << 20;
      const double taken = 8.0 * static_cast<double>(codec->max_bytes({std::int64_t{1} << 20})) / n;
      EXPECT_LE(taken, bits + 0.0045)
          << bits;  // heads, a first state, and the last byte of a block
      EXPECT_GE(taken, bits * 0.99) << bits;
    }
}

TEST(Trellis, EveryLengthHasAPath) {
  for (const double bits : {0.02, 0.21, 0.9, 1.0, 4.0})
    for (std::size_t n = 1; n <= 1024; n *= 2) {
      const Trellis trellis(256, bits, 1024);
      const std::size_t steps = trellis.steps_of(n);
      EXPECT_GE(steps, 1u);
      EXPECT_LE(steps, n);
      EXPECT_LE((n + steps - 1) / steps, 64u) << bits << " " << n;
      const auto x = normal_entries(n, 7);
      Path path(steps);
      trellis.find(x, 1, path);
      std::vector<float> q(n);
      trellis.expand(path, q);
      double along = 0;
      for (std::size_t i = 0; i < n; ++i) along += x[i] * q[i];
      EXPECT_GT(along, 0) << bits << " " << n;
    }
}

/// Against the least error that any code of so many bits has, 4^-bits of normal entries (Shannon), and EDEN's.
TEST(Trellis, ErrsLittleMoreThanAnyCodeHasTo) {
  const auto x = normal_entries(1u << 16, 11);
  const auto draws = TestDraws::of({.seed = 9});
  double energy = 0;
  for (const float v : x) energy += double{v} * v;
  const auto error = [&](const std::string& spec) {
    return squared_error(x, arrives(*own_codec(spec), x, draws)) / energy;
  };
  struct Case {
    const char* bits;
    const char* states;
    double over;  ///< error over the least, as measured of other normal entries
  };
  for (const auto& [bits, states, over] : {Case{"0.138", "1024", 1.130},
                                           {"0.21", "256", 1.187},
                                           {"0.21", "1024", 1.132},
                                           {"0.5", "1024", 1.142},
                                           {"1", "256", 1.265},
                                           {"1", "1024", 1.180},
                                           {"2", "1024", 1.277},
                                           {"4", "4096", 1.36}}) {
    SCOPED_TRACE(testing::Message() << bits << " bits, " << states << " states");
    const auto spec = std::string("bits=") + bits, path = "trellis:" + spec + ",states=" + states;
    const auto steps =
        static_cast<double>(Trellis(std::stoul(states), std::stod(bits), 16384).steps_of(16384));
    const double of_path = std::stod(bits) < 1 ? steps + std::bit_width(std::stoul(states)) - 2
                                               : steps * std::stod(bits);
    const double rest = std::pow(4, -of_path / 16384);
    EXPECT_NEAR(error(path) / (rest / (1 - rest)), over, 0.025);
    EXPECT_NEAR(
        error(path + ",form=mse") / (over * rest / (1 - rest) / (1 + over * rest / (1 - rest))), 1,
        0.01);
    EXPECT_LT(error(path), 0.86 * error("eden:" + spec));
  }
}

/// Blocks whose few entries no path need be near, and zeros.
TEST(Trellis, ShortAndEmptyBlocksDecodeToFiniteNumbers) {
  const auto codec = own_codec("trellis:bits=0.05,states=256,block=64");
  for (unsigned seed = 0; seed < 50; ++seed) {
    const auto draws = TestDraws::of({.seed = seed});
    for (const std::size_t n : {1, 2, 5, 64, 70}) {
      const auto y = arrives(*codec, normal_entries(n, seed), draws);
      for (const float v : y) EXPECT_LT(std::fabs(v), 500);
      for (const float v : arrives(*codec, std::vector<float>(n), draws)) EXPECT_EQ(v, 0);
    }
  }
}

}  // namespace
}  // namespace atomo::test
