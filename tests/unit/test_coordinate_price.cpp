// SPDX-License-Identifier: Apache-2.0
/// The step of coordinates: from a budget, from a count, as given.
#include "price/coordinate_price.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "core/bits.hpp"
#include "cpu/magnitudes.hpp"
#include "price/magnitude_histogram.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

using namespace model;

/// keep= spends its count where it saves most variance: sum x^2 / p is least under sum p = K.
TEST(CoordinatePrice, ProbabilitiesAreOptimal) {
  std::mt19937_64 generator(23);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 20; ++round) {
    const std::size_t n = 12;
    std::vector<float> x(n);
    for (float& v : x) v = static_cast<float>(std::exp(1.5 * normal(generator)));
    std::vector<std::byte> demand(magnitude_histogram_bytes(n)), scratch(magnitude_scratch_bytes(n));
    count_magnitudes(x.data(), n, demand, scratch, nullptr);
    const std::uint64_t keep = 1 + generator() % (n - 1);
    const double step = step_that_keeps(demand, keep);
    std::vector<double> p(n);
    double sum = 0, cost = 0;
    for (std::size_t i = 0; i < n; ++i) {
      p[i] = std::min(1.0, x[i] / step);
      sum += p[i];
      cost += x[i] * x[i] / p[i];
    }
    EXPECT_NEAR(sum, static_cast<double>(keep), 0.005 * static_cast<double>(keep));
    // No transfer of probability from one entry to another lowers it.
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = 0; b < n; ++b) {
        const double moved = std::min(0.01 * p[a], 1 - p[b]);
        if (a == b || moved <= 0) continue;
        const double other = cost - x[a] * x[a] / p[a] - x[b] * x[b] / p[b] +
                             x[a] * x[a] / (p[a] - moved) + x[b] * x[b] / (p[b] + moved);
        EXPECT_GE(other, cost * (1 - 1e-12)) << a << " to " << b;
      }
    }
  }
}

std::vector<float> laplace_mixture(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::exponential_distribution<float> magnitude(1.0f);
  std::normal_distribution<float> spread;
  std::vector<float> x(n);
  for (float& v : x) {
    const float size = magnitude(generator) * std::exp(0.8f * spread(generator));
    v = (generator() & 1) != 0 ? size : -size;
  }
  return x;
}

TEST(CoordinatePrice, BudgetsAreMet) {
  const std::size_t n = 1 << 20;
  const auto x = laplace_mixture(n, 2);
  for (const double bits : {0.125, 0.25, 0.5, 1.0, 2.0, 4.0}) {
    const Codec codec = Codec::parse("atomo:atoms=coordinate,bits=" + std::to_string(bits));
    const auto message = test::encode(codec, x, Shape{static_cast<std::int64_t>(n)});
    ASSERT_EQ(message.status, Status::ok);
    const double drawn = 8.0 * static_cast<double>(message.bytes.size()) / static_cast<double>(n);
    EXPECT_NEAR(drawn, bits, 0.01 * bits);
    RecordProperty("bits_" + std::to_string(bits), std::to_string(drawn));
  }
}

TEST(CoordinatePrice, ExpectedBitsFallAsTheStepRises) {
  const auto x = test::heavy_tailed(50000, 14);
  std::vector<std::byte> demand(magnitude_histogram_bytes(x.size())),
      scratch(magnitude_scratch_bytes(x.size()));
  count_magnitudes(x.data(), x.size(), demand, scratch, nullptr);
  std::uint64_t before = ~std::uint64_t{0};
  for (std::uint32_t code = 1; code < 0x7F80; code += 7) {
    const std::uint64_t bits =
        expected_on_grid(demand, std::bit_cast<float>(code << 16)).expected.bits_256;
    EXPECT_LE(bits, before + before / 200) << code;
    before = bits;
  }
}

TEST(CoordinatePrice, BothWaysOfCountingAgree) {
  const auto few = test::heavy_tailed(4096, 15);
  auto many = few;
  many.resize(8192, 0.0f);
  std::vector<std::byte> a(magnitude_histogram_bytes(4096)), b(magnitude_histogram_bytes(8192));
  std::vector<std::byte> scratch(magnitude_scratch_bytes(8192));
  count_magnitudes(few.data(), few.size(), a, scratch, nullptr);
  count_magnitudes(many.data(), many.size(), b, scratch, nullptr);
  EXPECT_EQ(load_le<std::uint64_t>(a.data()), load_le<std::uint64_t>(b.data()));
  EXPECT_EQ(largest_magnitude(a), largest_magnitude(b));
  EXPECT_EQ(std::memcmp(a.data() + 24, b.data() + 24, 8 * load_le<std::uint64_t>(a.data())), 0);
}

TEST(CoordinatePrice, KeepMeetsItsCount) {
  const auto x = test::heavy_tailed(200000, 16);
  const Shape shape{200000};
  for (const char* spec : {"keep=2000", "keep=0.1", "keep=50000"}) {
    const Codec codec = Codec::parse(std::string("atomo:atoms=coordinate,") + spec);
    const auto y = test::decode(codec, test::encode(codec, x, shape).bytes, shape).values;
    double kept = 0;
    for (const float v : y) kept += v != 0 ? 1 : 0;
    const double wanted = std::string(spec) == "keep=2000"  ? 2000
                          : std::string(spec) == "keep=0.1" ? 20000
                                                            : 50000;
    EXPECT_NEAR(kept, wanted, 0.01 * wanted) << spec;
  }
  const Codec all = Codec::parse("atomo:atoms=coordinate,keep=1.0");
  const auto y = test::decode(all, test::encode(all, x, shape).bytes, shape).values;
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i] != 0, x[i] != 0) << x[i];
}

TEST(CoordinatePrice, DeltaIsTheStepAndIsRaisedWhereItCannotBeSent) {
  const std::vector<float> x{1.0f, -0.5f, 0.3f};
  const Codec codec = Codec::parse("atomo:atoms=coordinate,delta=0.123");
  const auto y = test::decode(codec, test::encode(codec, x, Shape{3}).bytes, Shape{3}).values;
  for (const float v : y) {
    const double levels = v / static_cast<double>(0.123f);
    EXPECT_NEAR(levels, std::round(levels), 1e-6);
  }
  const Codec fine = Codec::parse("atomo:atoms=coordinate,delta=1e-30");
  const auto exact = test::decode(fine, test::encode(fine, x, Shape{3}).bytes, Shape{3});
  EXPECT_EQ(exact.status, Status::ok);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(exact.values[i], x[i], 1e-8);
}

/// Monte Carlo through the codec. By Bernstein's inequality the sum of N errors of variance v, none
/// above the step, exceeds t with probability at most 2 exp(-t^2 / (2 N v + 2 t step / 3)); t is
/// set for 1e-9 an entry, so 600 entries raise a false alarm in fewer than one run in a million.
TEST(CoordinatePrice, DrawsAverageToTheInput) {
  const Shape shape{600};
  const auto x = test::heavy_tailed(600, 33, 20);
  const Codec codec = Codec::parse("atomo:atoms=coordinate,delta=0.0625");
  constexpr double kStep = 0.0625, kDraws = 4000, kLog = 21.5;  // ln(2e9)
  std::vector<double> sum(600);
  for (std::uint32_t s = 0; s < kDraws; ++s) {
    const auto message = test::encode(codec, x, shape, {.seed = 1, .step = s});
    const auto y = test::decode(codec, message.bytes, shape).values;
    for (std::size_t i = 0; i < 600; ++i) sum[i] += static_cast<double>(y[i]) - x[i];
  }
  for (std::size_t i = 0; i < 600; ++i) {
    const double f = std::fabs(x[i]) / kStep - std::floor(std::fabs(x[i]) / kStep);
    const double spread = 2 * kDraws * kStep * kStep * f * (1 - f) * kLog, reach = kLog * kStep / 3;
    EXPECT_LE(std::fabs(sum[i]), reach + std::sqrt(reach * reach + spread) + 1e-6)
        << i << " " << x[i];
  }
}

}  // namespace
}  // namespace atomo
