// SPDX-License-Identifier: Apache-2.0
/// SketchML and LSS: what their sketches may do to an entry, and the unbiased forms by enumeration.
#include <cmath>
#include <cstring>

#include "catalogue/catalogue_support.hpp"
#include "catalogue/codebook_levels.hpp"

namespace atomo::test {
namespace {

std::vector<float> sparse(std::size_t n, std::uint64_t seed) {
  auto x = uneven(n, seed);
  for (std::size_t i = 0; i < n; ++i)
    if (i % 3 == 1) x[i] = 0;
  return x;
}

TEST(SketchMl, MagnitudesDecayWithinTheirGroup) {
  const auto x = sparse(3000, 3);
  const auto y = arrives(*own_codec("sketchml:buckets=64,groups=4"), x, TestDraws::of({.seed = 1}));
  std::array<std::vector<float>, 2> sides;
  for (const float v : x)
    if (v != 0) sides[v < 0 ? 1 : 0].push_back(std::fabs(v));
  std::size_t exact = 0, decayed = 0;
  for (auto& side : sides) std::ranges::sort(side);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == 0) {
      EXPECT_EQ(y[i], 0);
      continue;
    }
    const auto levels = catalogue::quantile_means(sides[x[i] < 0 ? 1 : 0], 32);
    const std::size_t place = catalogue::Nearest(levels)(std::fabs(x[i]));
    EXPECT_EQ(std::signbit(y[i]), std::signbit(x[i]));
    EXPECT_LE(std::fabs(y[i]), levels[place]);
    EXPECT_GE(std::fabs(y[i]), levels[place / 8 * 8]);
    (std::fabs(y[i]) == levels[place] ? exact : decayed) += 1;
  }
  EXPECT_GT(exact, 200u);
  EXPECT_GT(decayed, 200u);
}

TEST(SketchMl, WiderSketchesErrLess) {
  const auto x = sparse(3000, 4);
  const auto draws = TestDraws::of({.seed = 1});
  const auto error = [&](const char* keys) {
    return squared_error(x, arrives(*own_codec(std::string("sketchml:") + keys), x, draws));
  };
  EXPECT_LT(error("columns=1,rows=4"), error("columns=0.2"));
  EXPECT_LT(error("groups=16"), error("groups=2"));
}

TEST(Lss, EntriesArriveAsMeansOfTheirCells) {
  const auto x = sparse(4000, 5);
  const auto draws = TestDraws::of({.seed = 1});
  const auto y = arrives(*own_codec("lss:clusters=3,cells=0.05"), x, draws);
  double sent = 0, arrived = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(x[i] == 0 ? y[i] == 0 : std::signbit(x[i]) == std::signbit(y[i]));
    sent += x[i];
    arrived += y[i];
  }
  EXPECT_NEAR(arrived, sent, 1e-2);
  const auto error = [&](const char* keys) {
    return squared_error(x, arrives(*own_codec(std::string("lss:") + keys), x, draws));
  };
  EXPECT_LT(error("clusters=8,cells=0.05"), error("clusters=2,cells=0.05"));
  EXPECT_LT(error("clusters=3,cells=0.5"), error("clusters=3,cells=0.01"));
}

/// Mean and mean squared error over all columns and signs of `words` words.
void enumerate(const OwnCodec& codec, const std::vector<float>& x, unsigned words, bool columns,
               std::vector<double>& mean, double& error) {
  const unsigned bits = columns ? 2 : 1;
  const auto outcomes = std::uint32_t{1} << (bits * words);
  mean.assign(x.size(), 0);
  error = 0;
  for (std::uint32_t outcome = 0; outcome < outcomes; ++outcome) {
    const TestDraws draws([=](std::uint64_t i) {
      if (i >= words) return 0u;
      const std::uint32_t word = outcome >> (bits * i) & ((1u << bits) - 1);
      return (word & 1) | (word >> 1) << 31;
    });
    const auto y = arrives(codec, x, draws);
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / static_cast<double>(outcomes);
    error += squared_error(x, y) / static_cast<double>(outcomes);
  }
}

TEST(CountSketch, HasNoBiasAndTheErrorThatIsClaimed) {
  std::vector<double> mean;
  double error = 0;
  const std::vector<float> three{4, -1, 2};
  enumerate(*own_codec("countsketch:cells=0.5,rows=1"), three, 3, true, mean, error);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(mean[i], three[i], 1e-6);
  EXPECT_NEAR(error, 2 * 21 / 2.0, 1e-5);  // each pair shares a cell in half of the outcomes
  for (const char* estimate : {"median", "mean"}) {
    const auto codec = own_codec(std::string("countsketch:cells=0.2,rows=3,estimate=") + estimate);
    enumerate(*codec, three, 9, false, mean, error);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(mean[i], three[i], 1e-6) << estimate;
    EXPECT_LE(error, *codec->traits().omega * 21);
  }
}

TEST(CountSketch, CellsAddUpWhereHashesAreShared) {
  const auto codec = own_codec("countsketch:cells=0.3,hash=shared,top=0.1");
  std::vector<float> a(200), b(200), sum(200);
  for (std::size_t i = 0; i < 200; ++i) {
    a[i] = static_cast<float>(i * 37 % 64) - 32;
    b[i] = static_cast<float>(i * 11 % 16);
    sum[i] = a[i] + b[i];
  }
  const auto cells = [&](const std::vector<float>& x, std::uint64_t seed) {
    const auto body = body_of(*codec, x, TestDraws::of({.seed = seed}));
    std::vector<float> read(body.size() / 4);
    std::memcpy(read.data(), body.data(), body.size());
    return read;
  };
  auto added = cells(a, 1);
  const auto other = cells(b, 2);
  for (std::size_t k = 0; k < added.size(); ++k) added[k] += other[k];
  EXPECT_EQ(added, cells(sum, 3));
}

TEST(CountSketch, FindsTheHeavyEntries) {
  std::vector<float> x(2000, 0.0f);
  x[3] = 1000;
  x[700] = -1200;
  x[1500] = 900;
  EXPECT_EQ(arrives(*own_codec("countsketch:cells=0.5,rows=9,top=0.0015"), x, TestDraws::of({})),
            x);
  EXPECT_FALSE(own_codec("countsketch:cells=0.5,rows=9,top=0.0015")->traits().unbiased);
}

TEST(Sketches, UnbiasedFormsHaveNoBias) {
  constexpr std::uint32_t kSteps = 256;
  const auto x = sparse(150, 6);
  for (const char* spec : {"sketchml:buckets=16,form=unbiased", "lss:clusters=2,form=unbiased"}) {
    const auto mean = mean_over_words(*own_codec(spec), x, kSteps);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(mean[i], x[i], 20.0 / kSteps) << spec;
  }
}

}  // namespace
}  // namespace atomo::test
