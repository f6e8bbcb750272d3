// SPDX-License-Identifier: Apache-2.0
/// The linear algebra of PowerSGD on one rank: which layers are factored, orthonormal columns,
/// matrices of a low rank, of zeros and of what is not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "learning/low_rank.hpp"

namespace train {
namespace {

constexpr std::uint64_t kSeed = 3;
constexpr std::size_t kRows = 12, kColumns = 30;

/// A sum of `rank` outer products, whose columns are those of the same `seed`.
std::vector<float> matrix_of_rank(std::size_t rank, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> matrix(kRows * kColumns);
  for (std::size_t r = 0; r < rank; ++r) {
    std::vector<float> left(kRows), right(kColumns);
    for (float& x : left) x = normal(random);
    for (float& x : right) x = normal(random);
    for (std::size_t i = 0; i < kRows; ++i) {
      for (std::size_t j = 0; j < kColumns; ++j) matrix[i * kColumns + j] += left[i] * right[j];
    }
  }
  return matrix;
}

struct Factors {
  explicit Factors(std::size_t rank)
      : of(layers_to_factor(std::vector<atomo::LayerSpec>{{"m", {kRows, kColumns}}}, rank, 0.1)),
        p(of.p_elements()),
        q(of.q_elements()) {}

  /// What a step makes of `matrix`.
  std::vector<float> step(const std::vector<float>& matrix, std::uint32_t number) {
    of.find_p(matrix, kSeed, number, p);
    of.orthonormalise(p);
    of.find_q(matrix, p, q);
    of.keep(q);
    std::vector<float> product(matrix.size());
    of.add_products(1, p, q, product);
    return product;
  }

  LowRank of;
  std::vector<float> p, q;
};

/// |a - b|^2 / |b|^2
double error_of(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    whole += std::pow(static_cast<double>(b[i]), 2);
  }
  return difference / whole;
}

TEST(LowRank, LayersAreFactoredThatGetSmaller) {
  const std::vector<atomo::LayerSpec> layers = {
      {"bias", {40}},    {"wide", {8, 100}}, {"row", {1, 900}},    {"kernel", {16, 4, 3, 3}},
      {"small", {4, 4}}, {"scalar", {}},     {"empty", {0, 1000}}, {"tall", {50, 3}}};
  const auto found = layers_to_factor(layers, 2, 2);
  std::vector<std::size_t> which;
  for (const auto& of : found) which.push_back(of.layer);
  EXPECT_EQ(which, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(found[0].offset, 40u);
  EXPECT_EQ(found[1].offset, 40u + 800 + 900);
  EXPECT_EQ(found[1].columns, 36u);
  EXPECT_EQ(found[1].p_at, 2 * 8u);
  EXPECT_EQ(found[1].q_at, 2 * 100u);
  EXPECT_EQ(layers_to_factor(layers, 100, 0.1)[0].rank, 8u);
  EXPECT_TRUE(layers_to_factor(layers, 2, 100).empty());
}

TEST(LowRank, ColumnsAreOrthonormal) {
  // Columns that are nearly the same: a single pass of Gram-Schmidt in f32 would not do.
  Factors factors(4);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < kRows; ++i) {
    const float common = normal(random);
    for (std::size_t r = 0; r < 4; ++r) factors.p[r * kRows + i] = common + 1e-4F * normal(random);
  }
  factors.of.orthonormalise(factors.p);
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t s = 0; s <= r; ++s) {
      double product = 0;
      for (std::size_t i = 0; i < kRows; ++i)
        product += static_cast<double>(factors.p[r * kRows + i]) * factors.p[s * kRows + i];
      EXPECT_NEAR(product, r == s ? 1 : 0, 1e-6) << r << " " << s;
    }
  }
}

TEST(LowRank, WhatHasTheRankIsExactInAStep) {
  for (const std::size_t rank : {1u, 3u, 12u}) {
    Factors factors(rank);
    const auto matrix = matrix_of_rank(rank);
    EXPECT_LT(error_of(factors.step(matrix, 0), matrix), 1e-10) << rank;
  }
}

TEST(LowRank, StepsOnOneMatrixComeToItsBestFactors) {
  Factors factors(2);
  auto matrix = matrix_of_rank(2, 1);
  const auto small = matrix_of_rank(12, 7);
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] += 0.2F * small[i];
  const double first = error_of(factors.step(matrix, 0), matrix);
  double last = 0;
  for (std::uint32_t step = 1; step < 20; ++step)
    last = error_of(factors.step(matrix, step), matrix);
  EXPECT_LT(last, first);
  const double settled = error_of(factors.step(matrix, 20), matrix);
  EXPECT_NEAR(settled, last, 1e-4);
}

TEST(LowRank, ZerosAndDeficientMatricesAreExactAndDirectionsComeBack) {
  Factors factors(3);
  for (const float x : factors.step(std::vector<float>(kRows * kColumns), 0)) EXPECT_EQ(x, 0);
  const auto poor = matrix_of_rank(1);
  EXPECT_LT(error_of(factors.step(poor, 1), poor), 1e-10);
  EXPECT_LT(error_of(factors.step(poor, 2), poor), 1e-10);
  const auto rich = matrix_of_rank(3);
  EXPECT_LT(error_of(factors.step(rich, 3), rich), 1e-8);
}

TEST(LowRank, WhatIsNotFiniteIsNaNAndLeavesQ) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Factors factors(2);
    auto matrix = matrix_of_rank(4);
    (void)factors.step(matrix, 0);
    const auto kept = factors.of.kept();
    matrix[kColumns + 1] = bad;
    for (const float x : factors.step(matrix, 1)) EXPECT_TRUE(std::isnan(x));
    EXPECT_EQ(factors.of.kept(), kept);
  }
}

TEST(LowRank, DrawsFollowFromSeedAndStep) {
  const auto matrix = matrix_of_rank(12);
  const auto p_of = [&](std::uint64_t seed, std::uint32_t step) {
    Factors factors(2);
    factors.of.find_p(matrix, seed, step, factors.p);
    return factors.p;
  };
  EXPECT_EQ(p_of(1, 5), p_of(1, 5));
  EXPECT_NE(p_of(1, 5), p_of(1, 6));
  EXPECT_NE(p_of(1, 5), p_of(std::uint64_t{1} << 32 | 1, 5));
}

}  // namespace
}  // namespace train
