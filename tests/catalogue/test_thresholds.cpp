// SPDX-License-Identifier: Apache-2.0
/// Thresholds: what is kept, places at every density, DGC's second threshold, and the unbiased form by enumeration.
#include <cmath>

#include "catalogue/catalogue_support.hpp"
#include "catalogue/places.hpp"

namespace atomo::test {
namespace {

std::vector<std::uint64_t> through(std::size_t n, const std::vector<std::uint64_t>& places) {
  std::vector<std::byte> body(catalogue::places_bound(n, std::max<std::size_t>(1, places.size())));
  catalogue::Writer out(body);
  catalogue::put_places(out, n, places);
  catalogue::Reader in(ConstBytes(body).first(out.bytes()));
  const auto back = catalogue::get_places(in, n, places.size());
  in.end();
  return back;
}

TEST(Places, ComeBackAtEveryDensityWithinTheirBound) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{40}, std::size_t{1000}}) {
    for (std::size_t step = 1; step <= n; step = step < 5 ? step + 1 : 2 * step) {
      std::vector<std::uint64_t> even, first, last;
      for (std::size_t i = 0; i < n; i += step) even.push_back(i);
      for (std::size_t i = 0; i < n / step; ++i) first.push_back(i);
      for (std::size_t i = n - n / step; i < n; ++i) last.push_back(i);
      for (const auto& places : {even, first, last})
        EXPECT_EQ(through(n, places), places) << n << " " << step;
    }
  }
  const std::size_t most = Shape::kMaxElements;
  const std::vector<std::uint64_t> far{0, most / 3, most - 1};
  EXPECT_EQ(through(most, far), far);
  EXPECT_EQ(through(most, {}), std::vector<std::uint64_t>{});
}

TEST(Threshold, KeepsWhatIsNotBelow) {
  const std::vector<float> x{1, -2, 0, 1.99f, 2.5f, -0.1f};
  const TestDraws draws([](std::uint64_t) { return 0u; });
  EXPECT_EQ(arrives(*own_codec("threshold:above=2"), x, draws),
            (std::vector<float>{0, -2, 0, 0, 2.5f, 0}));
  // Its root mean square is 1.593.
  EXPECT_EQ(arrives(*own_codec("threshold:above=1.5,unit=rms"), x, draws),
            (std::vector<float>{0, 0, 0, 0, 2.5f, 0}));
}

TEST(Threshold, UnbiasedFormHasNoBias) {
  constexpr std::uint32_t kSteps = 512;
  const auto x = uneven(60, 4);
  for (const char* spec :
       {"threshold:above=3,form=unbiased", "dgc-threshold:keep=0.2,form=unbiased"}) {
    const auto mean = mean_over_words(*own_codec(spec), x, kSteps);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(mean[i], x[i], 5.0 / kSteps) << spec;
  }
}

std::size_t nonzero(const std::vector<float>& y) {
  return y.size() - static_cast<std::size_t>(std::ranges::count(y, 0.0f));
}

TEST(DgcThreshold, KeepsTheLargestWhereTheSampleIsAll) {
  const auto x = uneven(200, 6);
  const auto y = arrives(*own_codec("dgc-threshold:keep=0.1"), x, TestDraws::of({}));
  EXPECT_EQ(nonzero(y), 20u);
  float least_kept = INFINITY, most_left = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (y[i] != 0) {
      EXPECT_EQ(y[i], x[i]);
      least_kept = std::min(least_kept, std::fabs(x[i]));
    } else {
      most_left = std::max(most_left, std::fabs(x[i]));
    }
  }
  EXPECT_GE(least_kept, most_left);
}

TEST(DgcThreshold, IsMadeExactWhereFarTooManyPass) {
  std::vector<float> x(100, -1.0f);
  x[70] = 2;
  const auto y = arrives(*own_codec("dgc-threshold:keep=0.1"), x, TestDraws::of({}));
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(y[i], i < 9 ? -1.0f : i == 70 ? 2.0f : 0.0f) << i;
}

TEST(DgcThreshold, SendsAboutAsManyAsAskedFor) {
  const auto x = uneven(20000, 7);
  for (const char* form : {"published", "unbiased"}) {
    const auto codec = own_codec(std::string("dgc-threshold:keep=0.05,sample=0.05,form=") + form);
    EXPECT_NEAR(static_cast<double>(nonzero(arrives(*codec, x, TestDraws::of({})))), 1000, 250)
        << form;
  }
}

}  // namespace
}  // namespace atomo::test
