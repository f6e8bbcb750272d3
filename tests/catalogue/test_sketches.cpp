// SPDX-License-Identifier: Apache-2.0
/// SketchML and LSS: what their sketches may do to an entry, and the unbiased forms by enumeration.
#include <cmath>

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
