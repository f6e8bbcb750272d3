// SPDX-License-Identifier: Apache-2.0
/// The sketch of a matrix: what holds for any basis, and how good the basis is.
#include "cpu/sketch.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "support/sketch_support.hpp"

namespace atomo {

using namespace model;
namespace {

using test::gaussian_matrix;
using test::random_basis;
using test::Sketched;

std::string name_of(const MatrixShape& shape) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
}

/// The stated bound on the sum, in units of the norm of an entry's row, times the squared norm of a
/// basis that is no unit one; and that sigma is the norm of the second vectors.
void expect_whole(const std::vector<float>& g, const Sketched& s, double size_of_basis = 1) {
  const MatrixShape& shape = s.shape;
  const std::size_t m = shape.shorter();
  const auto sum = s.sum();
  std::vector<double> row(shape.rows);
  for (std::size_t i = 0; i < g.size(); ++i)
    row[i / shape.columns] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double bound =
        size_of_basis * static_cast<double>(s.rank + 2) * 0x1p-24 * std::sqrt(row[i / shape.columns]);
    // Half of the least f32: a residual below the normal ones is rounded once more.
    ASSERT_LE(std::fabs(sum[i] - static_cast<double>(g[i])), bound + 0x1p-150)
        << "entry " << i << " of " << name_of(shape) << ", rank " << s.rank;
  }
  for (std::size_t k = 0; k < s.rank; ++k) {
    double norm = 0;
    for (std::size_t j = 0; j < shape.longer(); ++j) norm += s.v(k, j) * s.v(k, j);
    ASSERT_NEAR(s.sigma[k], std::sqrt(norm), 1e-6 * std::sqrt(norm)) << k;
  }
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t k = 0; k < s.rank; ++k) ASSERT_TRUE(std::isfinite(s.u(k, i)));
  }
}

/// The rms of rows that the encoder draws with: never below what the row has, and little above.
void expect_rms(const std::vector<float>& g, const Sketched& s) {
  const std::size_t columns = s.shape.columns;
  for (std::size_t i = 0; i < s.shape.rows; ++i) {
    double left = 0, all = 0;
    for (std::size_t j = i * columns; j < (i + 1) * columns; ++j) {
      left += static_cast<double>(s.residual[j]) * static_cast<double>(s.residual[j]);
      all += static_cast<double>(g[j]) * static_cast<double>(g[j]);
    }
    const auto n = static_cast<double>(columns);
    const double rms = std::sqrt(left / n), of_row = std::sqrt(all / n);
    ASSERT_GE(s.residual_rms[i], rms * (1 - 1e-12)) << "row " << i << " of " << name_of(s.shape);
    ASSERT_LE(s.residual_rms[i],
              std::sqrt(left / n + 0x1p-17 * of_row * of_row) + 0x1p-19 * of_row + 0x1p-148)
        << "row " << i << " of " << name_of(s.shape);
  }
}

/// Pairwise inner products of the first vectors are 0, their norms 1 or 0. Those of a matrix with as
/// many columns are projections, divided by sigma: orthogonal to rounding of the largest.
void expect_orthonormal(const Sketched& s) {
  const bool wide = s.shape.rows <= s.shape.columns;
  for (std::size_t a = 0; a < s.rank; ++a) {
    const double norm = s.product_of_first(a, a);
    ASSERT_TRUE(norm == 0 || std::fabs(norm - 1) < 4e-6) << a << ": " << norm;
    const double grows = wide && s.sigma[a] > 0 ? s.sigma[0] / s.sigma[a] : 1;
    for (std::size_t b = 0; b < a; ++b)
      ASSERT_NEAR(s.product_of_first(a, b), 0, 4e-6 * grows) << a << b;
  }
}

/// No sigma is above the one before it but for rounding, which what is below 2^-11 of the largest
/// does not stand out of.
void expect_descending(const Sketched& s) {
  for (std::size_t k = 1; k < s.rank; ++k)
    ASSERT_LE(s.sigma[k], s.sigma[k - 1] * (1 + 1e-5) + 0x1p-11 * s.sigma[0]) << k;
}

void expect_sketch(const std::vector<float>& g, const MatrixShape& shape, std::size_t rank,
                   unsigned iterations = 1) {
  const Sketched s(g, shape, {rank, iterations}, {.seed = 5});
  ASSERT_EQ(s.status, Status::ok);
  expect_whole(g, s);
  expect_rms(g, s);
  expect_orthonormal(s);
  expect_descending(s);
}

TEST(Sketch, PairsAndResidualSumToTheMatrix) {
  for (const MatrixShape shape : {MatrixShape{1, 1},
                                  {1, 40},
                                  {40, 1},
                                  {2, 2},
                                  {2, 16},
                                  {7, 31},
                                  {33, 32},
                                  {64, 576},
                                  {576, 64},
                                  {100, 100}}) {
    for (const std::size_t rank : {std::size_t{1}, (shape.shorter() + 1) / 2, shape.shorter()}) {
      expect_sketch(gaussian_matrix(shape, 1, shape.rows + rank), shape, rank);
      expect_sketch(gaussian_matrix(shape, 1, shape.rows, 1), shape, rank);
      expect_sketch(std::vector<float>(shape.rows * shape.columns), shape, rank);
    }
  }
}

TEST(Sketch, EveryRankUpToTheLargest) {
  const MatrixShape shape{270, 300};
  const auto g = gaussian_matrix(shape, 1, 3);
  for (const std::size_t rank : {1, 2, 3, 5, 31, 64, 100, 255, 256}) expect_sketch(g, shape, rank);
  for (std::size_t rank = 1; rank <= 20; ++rank)
    expect_sketch(gaussian_matrix({20, 33}, 1, rank), {20, 33}, rank);
}

TEST(Sketch, AnyScale) {
  for (const double scale : {1e-45, 1e-40, 1e-38, 1e-23, 1e-8, 1.0, 1e8, 1e20, 1e35}) {
    for (const std::size_t rank_of_matrix : {0, 1, 3}) {
      expect_sketch(gaussian_matrix({12, 40}, scale, 5, rank_of_matrix), {12, 40}, 4);
      expect_sketch(gaussian_matrix({40, 12}, scale, 6, rank_of_matrix), {40, 12}, 5, 2);
    }
  }
}

/// Rows whose sums would leave f32 are left to the residual, as they are.
TEST(Sketch, HugeEntriesAreAllResidual) {
  for (const float largest : {0x1p120f, 3e38f, std::numeric_limits<float>::max()}) {
    auto g = gaussian_matrix({12, 40}, 1, 5);
    g[77] = -largest;
    const Sketched s(g, {12, 40}, {4, 1}, {});
    ASSERT_EQ(s.status, Status::ok);
    EXPECT_EQ(s.residual, g);
    for (std::size_t k = 0; k < 4; ++k) EXPECT_EQ(s.sigma[k], 0);
  }
  // Just below, they are sketched.
  auto g = gaussian_matrix({12, 40}, 0x1.fp116, 5, 1);
  const Sketched s(g, {12, 40}, {4, 1}, {});
  EXPECT_GT(s.sigma[0], 0x1p116);
  expect_whole(g, s);
}

TEST(Sketch, PairsThatTheMatrixHasNotAreZero) {
  for (const MatrixShape shape : {MatrixShape{24, 60}, {60, 24}, {30, 30}}) {
    for (const std::size_t rank_of_matrix : {1, 2, 3}) {
      const auto g = gaussian_matrix(shape, 1, 40 + rank_of_matrix, rank_of_matrix);
      const Sketched s(g, shape, {8, 1}, {});
      expect_whole(g, s);
      expect_orthonormal(s);
      EXPECT_GT(s.sigma[rank_of_matrix - 1], 1e-3 * s.sigma[0]);
      // What rounding the matrix to f32 left.
      for (std::size_t k = rank_of_matrix; k < 8; ++k) EXPECT_LT(s.sigma[k], 1e-5 * s.sigma[0]);
      EXPECT_LT(s.residual_norm(), 1e-5 * s.sigma[0]);
    }
  }
  // One entry, exactly rank one: exact zeros behind it.
  std::vector<float> one(12 * 20);
  one[5 * 20 + 3] = -3;
  const Sketched s(one, {12, 20}, {4, 1}, {});
  EXPECT_NEAR(s.sigma[0], 3, 1e-6);
  for (std::size_t k = 1; k < 4; ++k) {
    EXPECT_LT(s.sigma[k], 1e-6);
    EXPECT_TRUE(s.product_of_first(k, k) == 0 || s.sigma[k] == 0);
  }
  const Sketched nothing(std::vector<float>(12 * 20), {12, 20}, {4, 1}, {});
  for (std::size_t k = 0; k < 4; ++k) EXPECT_EQ(nothing.product_of_first(k, k), 0);
  EXPECT_EQ(nothing.residual, std::vector<float>(12 * 20));
}

// ---- how good the basis is

TEST(Sketch, AmplitudesAreThoseOfTheMatrixWhereItHasNoMorePairs) {
  const MatrixShape shape{32, 90};
  const auto g = gaussian_matrix(shape, 1, 8, 6);
  const auto exact = test::singular_values(g, shape);
  const Sketched s(g, shape, {6, 1}, {.seed = 2});
  for (std::size_t k = 0; k < 6; ++k) EXPECT_NEAR(s.sigma[k], exact[k], 2e-6 * exact[0]) << k;
  const Sketched whole(gaussian_matrix({20, 33}, 1, 9), {20, 33}, {20, 1}, {});
  const auto all = test::singular_values(gaussian_matrix({20, 33}, 1, 9), {20, 33});
  for (std::size_t k = 0; k < 20; ++k) EXPECT_NEAR(whole.sigma[k], all[k], 5e-6 * all[0]) << k;
}

/// Singular values of a projection are not above those of the matrix; the first ones come near
/// where the spectrum falls. With s the values beyond the rank, one pass back and forth leaves of
/// sigma_k about (s / sigma_k)^4 of its square, times what the random start adds.
TEST(Sketch, AmplitudesComeNearTheSingularValues) {
  for (const MatrixShape shape : {MatrixShape{48, 130}, {130, 48}}) {
    const auto g = test::matrix_of_spectrum(
        shape, [](std::size_t k) { return std::exp2(-0.5 * static_cast<double>(k)); }, 4);
    const auto exact = test::singular_values(g, shape);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Sketched s(g, shape, {12, 1}, {.seed = seed});
      expect_descending(s);
      for (std::size_t k = 0; k < 12; ++k) EXPECT_LE(s.sigma[k], exact[k] * (1 + 1e-5)) << k;
      for (std::size_t k = 0; k < 3; ++k) EXPECT_GE(s.sigma[k], 0.9999 * exact[k]) << k;
      for (std::size_t k = 3; k < 6; ++k) EXPECT_GE(s.sigma[k], 0.99 * exact[k]) << k;
      EXPECT_GE(s.sigma[9], 0.7 * exact[9]);
    }
  }
}

/// A slow spectrum: pairs hold most of what the best ones of that rank would, and more passes hold
/// more.
TEST(Sketch, PassesImproveTheBasis) {
  const MatrixShape shape{64, 200};
  const auto g = test::matrix_of_spectrum(
      shape, [](std::size_t k) { return 1 / std::sqrt(1 + static_cast<double>(k)); }, 7);
  const auto exact = test::singular_values(g, shape);
  const double best = std::inner_product(exact.begin(), exact.begin() + 16, exact.begin(), 0.0);
  std::vector<double> held;
  for (const unsigned iterations : {1u, 2u, 4u, 8u}) {
    double sum = 0;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      const Sketched s(g, shape, {16, iterations}, {.seed = seed});
      sum += std::inner_product(s.sigma.begin(), s.sigma.end(), s.sigma.begin(), 0.0) / 10;
    }
    held.push_back(sum / best);
  }
  EXPECT_GT(held[0], 0.8);
  EXPECT_GT(held[1], held[0]);
  EXPECT_GT(held[2], held[1]);
  EXPECT_GT(held[3], 0.95);
  EXPECT_LE(held[3], 1 + 1e-5);
}

/// Equal singular values are no difficulty: every basis is as good.
TEST(Sketch, EqualSingularValues) {
  const MatrixShape shape{16, 40};
  const auto g = test::matrix_of_spectrum(
      shape, [](std::size_t) { return 1.0; }, 11);
  const Sketched s(g, shape, {7, 1}, {});
  expect_whole(g, s);
  expect_orthonormal(s);
  for (const double sigma : s.sigma) EXPECT_NEAR(sigma, 1, 1e-5);
}

// ---- draws

TEST(Sketch, TheSameKeyGivesTheSameBits) {
  const MatrixShape shape{40, 90};
  const auto g = gaussian_matrix(shape, 1, 12);
  const Key key{.seed = 9, .step = 8, .tensor = 7, .worker = 6};
  const Sketched first(g, shape, {8, 1}, key), again(g, shape, {8, 1}, key, 1);
  EXPECT_EQ(first.shorter, again.shorter);
  EXPECT_EQ(first.longer, again.longer);
  EXPECT_EQ(first.residual, again.residual);
  EXPECT_EQ(first.sigma, again.sigma);
  for (const Key& other : {Key{.seed = 10, .step = 8, .tensor = 7, .worker = 6},
                           Key{.seed = 9, .step = 9, .tensor = 7, .worker = 6},
                           Key{.seed = 9, .step = 8, .tensor = 8, .worker = 6},
                           Key{.seed = 9, .step = 8, .tensor = 7, .worker = 7}}) {
    EXPECT_NE(Sketched(g, shape, {8, 1}, other).shorter, first.shorter);
  }
}

// ---- any basis

TEST(Sketch, AnyBasisWillDo) {
  for (const MatrixShape shape : {MatrixShape{2, 16}, {24, 60}, {60, 24}, {33, 33}}) {
    const std::size_t columns = shape.columns, rank = (shape.shorter() + 1) / 2;
    for (const double scale : {1e-40, 1e-23, 1.0, 1e20}) {
      const auto g = gaussian_matrix(shape, scale, 13);
      // Pairs of random directions are not orthogonal to each other, only the directions are.
      const Sketched random(g, shape, random_basis(columns, rank, 14));
      ASSERT_EQ(random.status, Status::ok);
      expect_whole(g, random);
      expect_rms(g, random);
      // Of another matrix, as one kept from an earlier step is.
      const Sketched other(gaussian_matrix(shape, 1, 15, 3), shape, {rank, 1}, {});
      const Sketched stale(g, shape, other.basis());
      expect_whole(g, stale);
      expect_rms(g, stale);
      auto degenerate = random_basis(columns, rank, 16);
      for (std::size_t i = 0; i < columns; ++i) degenerate[i * rank + rank / 2] = 0;
      const Sketched fewer(g, shape, degenerate);
      expect_whole(g, fewer);
      expect_rms(g, fewer);
      // No orthonormal columns at all: still a split of the matrix.
      std::vector<float> wild(columns * rank, 0.25f);
      expect_whole(g, Sketched(g, shape, wild), 1 + static_cast<double>(columns * rank) / 16);
      expect_whole(g, Sketched(g, shape, std::vector<float>(columns * rank)));
    }
  }
}

TEST(Sketch, AZeroBasisLeavesTheMatrix) {
  const auto g = gaussian_matrix({20, 40}, 1, 17);
  const Sketched s(g, {20, 40}, std::vector<float>(40 * 4));
  EXPECT_EQ(s.residual, g);
  for (const double sigma : s.sigma) EXPECT_EQ(sigma, 0);
}

// ---- what it refuses

TEST(Sketch, RefusesWhatItCannotDo) {
  std::vector<float> g(20 * 30), residual(20 * 30), a(20 * 20), b(20 * 30);
  std::vector<double> sigma(20), rms(300);
  std::vector<std::byte> workspace(std::size_t{1} << 20);
  SingularPairs pairs{a, b, sigma};
  const auto status = [&](const MatrixShape& shape, const SketchOptions& options) {
    return cpu::sketch(g.data(), shape, options, {}, rms, pairs, residual, rms, nullptr, workspace);
  };
  EXPECT_EQ(status({20, 30}, {4, 1}), Status::ok);
  EXPECT_EQ(status({20, 30}, {20, 8}), Status::ok);
  EXPECT_EQ(status({20, 30}, {0, 1}), Status::unsupported);
  EXPECT_EQ(status({20, 30}, {21, 1}), Status::unsupported);
  EXPECT_EQ(status({20, 30}, {4, 0}), Status::unsupported);
  EXPECT_EQ(status({20, 30}, {4, 9}), Status::unsupported);
  EXPECT_EQ(status({0, 30}, {1, 1}), Status::unsupported);
  EXPECT_EQ(status({300, 300}, {257, 1}), Status::unsupported);
  EXPECT_EQ(status({4, (std::size_t{1} << 22) + 1}, {4, 1}), Status::unsupported);
  EXPECT_EQ(status({20000, 20000}, {4, 1}), Status::unsupported);
  const std::vector<float> basis(30 * 4);
  const auto onto = [&](const MatrixShape& shape, std::size_t entries, std::size_t room) {
    return cpu::sketch_onto(g.data(), shape, std::span(basis).first(entries), rms, pairs, residual,
                            rms, nullptr, Bytes(workspace).first(room));
  };
  EXPECT_EQ(onto({20, 30}, 120, workspace.size()), Status::ok);
  EXPECT_EQ(onto({20, 30}, 119, workspace.size()), Status::unsupported);
  EXPECT_EQ(onto({20, 30}, 0, workspace.size()), Status::unsupported);
  EXPECT_EQ(onto({0, 30}, 0, workspace.size()), Status::unsupported);
  const std::size_t needed = cpu::sketch_workspace_bytes({20, 30}, 4);
  EXPECT_EQ(onto({20, 30}, 120, needed), Status::ok);
  EXPECT_EQ(onto({20, 30}, 120, 0), Status::workspace_too_small);
  EXPECT_EQ(onto({20, 30}, 120, needed / 2), Status::workspace_too_small);
  EXPECT_EQ(cpu::sketch(g.data(), {20, 30}, {4, 1}, {}, rms, pairs, residual, rms, nullptr, {}),
            Status::workspace_too_small);
  EXPECT_EQ(cpu::residual_rows(g.data(), {20, 30}, pairs, {}, residual.data(), nullptr, {}),
            Status::workspace_too_small);
}

TEST(Sketch, DefaultRanks) {
  EXPECT_EQ(default_sketch_rank({2, 16}), 2u);
  EXPECT_EQ(default_sketch_rank({4, 16}), 4u);
  EXPECT_EQ(default_sketch_rank({15, 16}), 4u);
  EXPECT_EQ(default_sketch_rank({16, 16}), 8u);
  EXPECT_EQ(default_sketch_rank({30, 16}), 8u);
  EXPECT_EQ(default_sketch_rank({100, 99}), 48u);
  EXPECT_EQ(default_sketch_rank({127, 1000}), 60u);
  EXPECT_EQ(default_sketch_rank({128, 1000}), 64u);
  EXPECT_EQ(default_sketch_rank({4000, 4000}), 64u);
}

}  // namespace
}  // namespace atomo
