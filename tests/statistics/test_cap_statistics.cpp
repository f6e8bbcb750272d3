// SPDX-License-Identifier: Apache-2.0
/// `cap=`: estimates stay unbiased while it binds.
#include <gtest/gtest.h>

#include "support/cap_support.hpp"

namespace atomo {
namespace {

using test::gain_of;
using test::kCapShape;
using test::low_rank;

/// Messages under a cap that binds, against their input.
struct Capped {
  std::vector<double> sum, square;  ///< of errors, an entry
  double projection = 0, projection_square = 0, ungained = 0;
  int bound = 0;

  Capped(const Codec& codec, const std::vector<float>& x, const Shape& shape, std::uint32_t draws)
      : sum(x.size()), square(x.size()) {
    const double energy = test::squared_norm(x);
    for (std::uint32_t step = 0; step < draws; ++step) {
      const auto m = test::encode(codec, x, shape, {.seed = 77, .step = step});
      const auto d = test::decode(codec, m.bytes, shape);
      EXPECT_EQ(d.status, Status::ok);
      const double gain = gain_of(m.bytes);
      bound += gain > 1 ? 1 : 0;
      double dot = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double e = double{d.values[i]} - x[i];
        sum[i] += e;
        square[i] += e * e;
        dot += e * x[i] / energy;
      }
      projection += dot;
      projection_square += dot * dot;
      ungained += (1 + dot) / gain - 1;  // what a decoder that forgets the gain would see
    }
  }
};

/// Every entry's mean over draws against its input, the cap binding in most messages: the largest
/// of the z-values stays below what as many normals reach with probability 1e-9, and a decoder
/// without the gain is far above.
void expect_unbiased(const char* spec, const std::vector<float>& x, const Shape& shape,
                     std::uint32_t draws) {
  const Capped capped(Codec::parse(spec), x, shape, draws);
  EXPECT_GT(capped.bound, static_cast<int>(draws / 4));
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (capped.square[i] > 0)
      largest = std::max(largest, std::fabs(capped.sum[i]) / std::sqrt(capped.square[i]));
  }
  const double error = std::sqrt(capped.projection_square);
  std::printf(
      "[ bias     ] %s: cap bound in %d of %u, largest z of %zu entries %.2f; along the "
      "gradient %.2f, without the gain %.2f\n",
      spec, capped.bound, draws, x.size(), largest, capped.projection / error,
      capped.ungained / error);
  EXPECT_LT(largest, 8.1);
  EXPECT_LT(std::fabs(capped.projection) / error, 6.2);
  EXPECT_GT(std::fabs(capped.ungained) / error, 6.2) << "the mutant without the gain must be seen";
}

TEST(CapStatistics, UnbiasedWhileItBinds) {
  expect_unbiased("atomo:bits=1,cap=1,atoms=rows", test::heavy_tailed(kCapShape.elements(), 6, 64),
                  kCapShape, 1500);
}

/// Of a sketch pairs and rows are left out alike.
TEST(CapStatistics, SketchesAreUnbiasedWhileItBinds) {
  expect_unbiased("atomo:bits=2,cap=2,atoms=sketch", low_rank({256, 100}), Shape{256, 100}, 3000);
}

}  // namespace
}  // namespace atomo
