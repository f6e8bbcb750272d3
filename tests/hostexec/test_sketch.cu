// SPDX-License-Identifier: Apache-2.0
/// The decomposition of layers into a sketch's pairs and a residual, as an operation by itself:
/// against the decomposition through LAPACK, and against its own definition in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <numeric>
#include <random>

#include "core/philox.hpp"
#include "cpu/svd.hpp"
#include "sketch_layers.hpp"
#include "support/sketch_support.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

// ---- matrices

std::vector<float> normal(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& v : values) v = draw(engine);
  return values;
}

/// A sum of outer products of normal vectors, the k-th times weights[k].
Matrix sum_of_products(MatrixShape shape, std::uint32_t rank, const std::vector<double>& weights,
                       std::uint64_t seed = 1) {
  Matrix matrix{shape, rank, std::vector<float>(shape.rows * shape.columns), DType::f32};
  std::vector<double> sums(matrix.values.size());
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const auto left = normal(shape.rows, seed + 2 * k),
               right = normal(shape.columns, seed + 2 * k + 1);
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] += weights[k] * left[i / shape.columns] * right[i % shape.columns];
  }
  std::transform(sums.begin(), sums.end(), matrix.values.begin(),
                 [](double v) { return static_cast<float>(v); });
  return matrix;
}

/// A spectrum that falls, and noise beneath it.
Matrix falling(MatrixShape shape, std::uint32_t rank, std::uint64_t seed = 1) {
  std::vector<double> weights;
  for (int k = 0; k < 6; ++k) weights.push_back(std::ldexp(1.0, -k));
  Matrix matrix = sum_of_products(shape, rank, weights, seed);
  const auto noise = normal(matrix.values.size(), seed + 100);
  for (std::size_t i = 0; i < noise.size(); ++i) matrix.values[i] += 0.01f * noise[i];
  return matrix;
}

void scale(Matrix& matrix, float by) {
  for (float& v : matrix.values) v *= by;
}

// ---- what must hold of every sketch

/// Of the power of two that the largest row's norm is just below; 0 where nothing is sketched.
int exponent_of(const Matrix& matrix, const Sketch& sketch) {
  const double rms = *std::max_element(sketch.row_rms.begin(), sketch.row_rms.end());
  int exponent = 0;
  if (rms > 0)
    static_cast<void>(
        std::frexp(rms * std::sqrt(static_cast<double>(matrix.shape.columns)), &exponent));
  return exponent > 120 ? 0 : exponent;
}

/// The first vectors are orthonormal as far as f32 can say, or zero. Those of a matrix with as many
/// columns as rows are projections, divided by sigma: orthogonal to rounding of the largest.
void expect_orthonormal(const Matrix& matrix, const Sketch& sketch) {
  const double bound = 0x1p-23 * (1 + std::sqrt(matrix.rank));
  for (std::uint64_t k = 0; k < matrix.rank; ++k) {
    const bool grows = matrix.shape.rows <= matrix.shape.columns && sketch.sigma[k] > 0;
    const double apart = grows ? bound * sketch.sigma[0] / sketch.sigma[k] : bound;
    for (std::uint64_t l = 0; l <= k; ++l) {
      double product = 0;
      for (std::uint64_t i = 0; i < matrix.m(); ++i)
        product += static_cast<double>(sketch.shorter[k * matrix.m() + i]) *
                   sketch.shorter[l * matrix.m() + i];
      if (k == l && product == 0) continue;
      ASSERT_NEAR(product, k == l ? 1 : 0, k == l ? bound : apart)
          << "vectors " << k << " and " << l;
    }
  }
}

/// The rms that rows are drawn with is never below what they have, and little above. Of those that
/// were computed the rms is added to it.
void expect_rms(const Matrix& matrix, const Sketch& sketch) {
  const std::uint64_t columns = matrix.shape.columns;
  const int exponent = exponent_of(matrix, sketch);
  for (std::uint64_t i = 0; i < matrix.shape.rows; ++i) {
    double left = 0;
    for (std::uint64_t j = i * columns; j < (i + 1) * columns; ++j)
      left += std::pow(std::ldexp(static_cast<double>(sketch.residual[j]), -exponent), 2);
    const double own = std::ldexp(std::sqrt(left / static_cast<double>(columns)), exponent);
    const double of_row = sketch.row_rms[i];
    const double rms = sketch.residual_rms[i] + (sketch.measured[i] != 0 ? own : 0.0);
    ASSERT_GE(rms, own * (1 - 1e-12)) << "row " << i;
    ASSERT_LE(rms, std::hypot(own, of_row * 0x1.7p-9) + 0x1p-19 * of_row + 0x1p-148) << "row " << i;
  }
}

/// The residual is, to the bit, what a decoder's sum of all pairs leaves of the matrix.
void expect_exact_residual(const Matrix& matrix, const Sketch& sketch) {
  const int exponent = exponent_of(matrix, sketch);
  for (std::uint64_t i = 0; i < matrix.m(); ++i) {
    for (std::uint64_t j = 0; j < matrix.n(); ++j) {
      float sum = 0;
      for (std::uint64_t k = 0; k < matrix.rank; ++k)
        sum = std::fma(sketch.shorter[k * matrix.m() + i], sketch.longer[k * matrix.n() + j], sum);
      const float entry = std::ldexp(matrix.at(matrix.values, i, j), -exponent);
      ASSERT_EQ(matrix.at(sketch.residual, i, j), std::ldexp(entry - sum, exponent))
          << i << ", " << j;
    }
  }
}

/// sigma is the norm of its second vector, and descends. What the pairs take and what they leave
/// are orthogonal, so the squares add up.
void expect_energy(const Matrix& matrix, const Sketch& sketch) {
  const int exponent = exponent_of(matrix, sketch);
  double all = 0, taken = 0, left = 0;
  for (const float v : matrix.values) all += std::pow(std::ldexp(v, -exponent), 2);
  for (const float v : sketch.residual) left += std::pow(std::ldexp(v, -exponent), 2);
  const double largest = sketch.sigma[0];
  for (std::uint64_t k = 0; k < matrix.rank; ++k) {
    double square = 0;
    for (std::uint64_t j = 0; j < matrix.n(); ++j)
      square += std::pow(static_cast<double>(sketch.longer[k * matrix.n() + j]), 2);
    const double sigma = std::ldexp(std::sqrt(square), exponent);
    ASSERT_NEAR(sketch.sigma[k], sigma, 1e-14 * sigma) << k;
    if (k > 0) {
      ASSERT_LE(sigma, sketch.sigma[k - 1] * (1 + 1e-6) + 1e-6 * largest) << k;
    }
    taken += square;
  }
  EXPECT_NEAR(taken + left, all, 4e-6 * all);
}

void expect_sound(const Matrix& matrix, const Sketch& sketch) {
  SCOPED_TRACE(std::to_string(matrix.shape.rows) + " x " + std::to_string(matrix.shape.columns) +
               ", rank " + std::to_string(matrix.rank));
  EXPECT_EQ(sketch.flags, 0u);
  expect_orthonormal(matrix, sketch);
  expect_exact_residual(matrix, sketch);
  expect_rms(matrix, sketch);
  expect_energy(matrix, sketch);
}

/// Of the matrix, by LAPACK.
std::vector<double> singular_values(const Matrix& matrix) {
  std::vector<float> shorter(matrix.m() * matrix.m()), longer(matrix.m() * matrix.n());
  std::vector<double> sigma(matrix.m());
  std::vector<std::byte> workspace(cpu::svd_workspace_bytes(matrix.shape));
  SingularPairs pairs{shorter, longer, sigma, 0};
  EXPECT_EQ(cpu::svd(matrix.values.data(), matrix.shape, pairs, workspace), Status::ok);
  return sigma;
}

// ---- shapes

struct Case {
  MatrixShape shape;
  std::uint32_t rank;
};
class SketchShapes : public testing::TestWithParam<Case> {};

/// Tall, wide and square; lines that are no multiple of four; ranks of every tile's width, of
/// several tiles, as large as the shorter side; sums of one stretch and of several.
INSTANTIATE_TEST_SUITE_P(All, SketchShapes,
                         testing::Values(Case{{1, 1}, 1}, Case{{1, 70}, 1}, Case{{33, 1}, 1},
                                         Case{{8, 9}, 4}, Case{{64, 64}, 16}, Case{{65, 129}, 17},
                                         Case{{130, 67}, 33}, Case{{40, 2100}, 12},
                                         Case{{1100, 31}, 8}, Case{{530, 600}, 4},
                                         Case{{100, 96}, 64}, Case{{72, 80}, 66},
                                         Case{{139, 131}, 131}, Case{{20, 24}, 20}),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return std::to_string(c.shape.rows) + "x" +
                                  std::to_string(c.shape.columns) + "_rank_" +
                                  std::to_string(c.rank);
                         });

/// Of the largest singular value: Y, in which they are squared, has directions below it only as
/// rounding.
constexpr double kLost = 0x1p-11;

TEST_P(SketchShapes, PairsAndResidualAreTheMatrix) {
  const auto [shape, rank] = GetParam();
  const Matrix matrix = falling(shape, rank);
  const Sketch sketch = decompose_all({matrix})[0];
  expect_sound(matrix, sketch);
  // Six directions stand out, of which a small rank finds its last badly; a full one leaves nothing.
  const std::vector<double> sigma = singular_values(matrix);
  const bool full = rank == shape.shorter();
  for (std::uint32_t k = 0; k < std::min(full ? rank : rank - 1, 4u); ++k)
    EXPECT_NEAR(sketch.sigma[k], sigma[k], (rank < 8 && !full ? 0.05 : 2e-3) * sigma[k]) << k;
  const test::Sketched own(matrix.values, shape, {rank, 1}, {.seed = 7});
  for (std::uint32_t k = 0; k < std::min(rank, 6u); ++k)
    EXPECT_NEAR(sketch.sigma[k], own.sigma[k], 1e-5 * own.sigma[0]) << k;
  if (rank < shape.shorter()) return;
  for (std::uint32_t k = 0; k < rank; ++k)
    EXPECT_NEAR(sketch.sigma[k], sigma[k], kLost * sigma[0]) << k;
  for (const float v : sketch.residual) ASSERT_NEAR(v, 0, kLost * sigma[0]);
}

// ---- spectra

TEST(Sketches, MatricesOfLowRankAreTakenWhole) {
  for (const MatrixShape shape : {MatrixShape{48, 90}, {90, 48}, {50, 50}}) {
    for (const std::size_t rank : {1, 3, 8}) {
      const Matrix matrix = sum_of_products(shape, 8, std::vector<double>(rank, 1.0), rank);
      const Sketch sketch = decompose_all({matrix})[0];
      expect_sound(matrix, sketch);
      const std::vector<double> sigma = singular_values(matrix);
      for (std::uint32_t k = 0; k < rank; ++k)
        EXPECT_NEAR(sketch.sigma[k], sigma[k], 2e-6 * sigma[k]) << k;
      for (std::uint32_t k = static_cast<std::uint32_t>(rank); k < 8; ++k)
        EXPECT_LE(sketch.sigma[k], 1e-5 * sigma[0]) << k;
      for (const float v : sketch.residual) ASSERT_NEAR(v, 0, 1e-5 * sigma[0]);
    }
  }
}

/// What has no rounding leaves no directions behind it.
TEST(Sketches, OneEntryIsOnePair) {
  for (const MatrixShape shape : {MatrixShape{12, 20}, {20, 12}}) {
    Matrix matrix{shape, 4, std::vector<float>(240), DType::f32};
    matrix.values[103] = -3;
    const Sketch sketch = decompose_all({matrix})[0];
    expect_sound(matrix, sketch);
    EXPECT_NEAR(sketch.sigma[0], 3, 1e-6);
    for (std::uint32_t k = 1; k < 4; ++k) EXPECT_EQ(sketch.sigma[k], 0);
    for (std::uint64_t i = matrix.m(); i < 4 * matrix.m(); ++i) ASSERT_EQ(sketch.shorter[i], 0);
    for (std::uint64_t i = matrix.n(); i < 4 * matrix.n(); ++i) ASSERT_EQ(sketch.longer[i], 0);
  }
}

/// Eight powers of ten between the first and the last: the leading ones must not suffer.
TEST(Sketches, SteepSpectraKeepTheirLeadingValues) {
  std::vector<double> weights;
  for (int k = 0; k < 24; ++k) weights.push_back(std::pow(10.0, -k / 3.0));
  for (const MatrixShape shape : {MatrixShape{60, 80}, {200, 50}}) {
    const Matrix matrix = sum_of_products(shape, 12, weights);
    const Sketch sketch = decompose_all({matrix})[0];
    expect_sound(matrix, sketch);
    const std::vector<double> sigma = singular_values(matrix);
    for (std::uint32_t k = 0; k < 8; ++k)
      EXPECT_NEAR(sketch.sigma[k], sigma[k], 1e-3 * sigma[k]) << k;
  }
}

TEST(Sketches, EqualSingularValuesAreKept) {
  Matrix identity{{32, 40}, 32, std::vector<float>(32 * 40), DType::f32};
  for (std::size_t i = 0; i < 32; ++i) identity.values[41 * i] = -3;
  const Sketch sketch = decompose_all({identity})[0];
  expect_sound(identity, sketch);
  for (const double sigma : sketch.sigma) EXPECT_NEAR(sigma, 3, 1e-5);
  for (const float v : sketch.residual) ASSERT_NEAR(v, 0, 1e-5);
}

/// Vectors made orthonormal one after the other.
std::vector<std::vector<double>> orthonormal(std::vector<std::vector<double>> vectors) {
  for (std::size_t k = 0; k < vectors.size(); ++k) {
    auto& y = vectors[k];
    for (int time = 0; time < 2; ++time) {
      for (std::size_t before = 0; before < k; ++before) {
        const auto& q = vectors[before];
        const double along = std::inner_product(y.begin(), y.end(), q.begin(), 0.0);
        for (std::size_t i = 0; i < y.size(); ++i) y[i] -= along * q[i];
      }
    }
    const double norm = std::sqrt(std::inner_product(y.begin(), y.end(), y.begin(), 0.0));
    for (double& v : y) v /= norm;
  }
  return vectors;
}

/// By its definition in FORMAT.md, step by step in f64: Y = T S, Q, Z = T^T Q, P, K = T P.
TEST(Sketches, FollowTheirDefinition) {
  for (const MatrixShape shape : {MatrixShape{30, 144}, {144, 30}, {30, 1400}}) {
    const Matrix matrix{shape, 7, normal(shape.rows * shape.columns, 3), DType::f32};
    const Key key{.seed = 0x123456789ull, .step = 5, .tensor = 9, .worker = 2, .channel = 1};
    const Sketch sketch = decompose_all({matrix}, key)[0];
    const std::uint64_t rows = shape.rows, columns = shape.columns, rank = matrix.rank;
    const Philox draws(key, Purpose::sketch_omega);
    const std::uint64_t width = 70, first_shift = (columns + 3) / 4;
    std::vector<std::vector<double>> y(rank, std::vector<double>(rows)), z(rank), k(rank);
    for (std::uint64_t c = 0; c < columns; ++c) {
      const std::uint64_t group = c / width;
      const std::uint64_t word = draws(first_shift + group / 4)[group % 4];
      const double weight = std::ldexp(static_cast<std::int32_t>(draws(c / 4)[c % 4]), -31);
      for (std::uint64_t i = 0; i < rows; ++i)
        y[(c + (word * width >> 32)) % rank][i] += weight * matrix.values[i * columns + c];
    }
    const auto q = orthonormal(y);
    for (std::uint64_t v = 0; v < rank; ++v) {
      z[v].resize(columns);
      for (std::uint64_t i = 0; i < rows * columns; ++i)
        z[v][i % columns] += q[v][i / columns] * matrix.values[i];
    }
    const auto p = orthonormal(z);
    Matrix inner{{rank, rows}, 1, std::vector<float>(rank * rows), DType::f32};
    for (std::uint64_t v = 0; v < rank; ++v) {
      k[v].resize(rows);
      for (std::uint64_t i = 0; i < rows * columns; ++i)
        k[v][i / columns] += p[v][i % columns] * matrix.values[i];
      for (std::uint64_t i = 0; i < rows; ++i)
        inner.values[v * rows + i] = static_cast<float>(k[v][i]);
    }
    const std::vector<double> sigma = singular_values(inner);
    for (std::uint64_t v = 0; v < rank; ++v)
      EXPECT_NEAR(sketch.sigma[v], sigma[v], 3e-6 * sigma[0]) << v;
    // The vectors along the columns span what the basis does.
    const auto& vectors = shape.rows <= shape.columns ? sketch.longer : sketch.shorter;
    for (std::uint64_t v = 0; v < rank; ++v) {
      double within = 0, all = 0;
      for (std::uint64_t j = 0; j < columns; ++j)
        all += std::pow(static_cast<double>(vectors[v * columns + j]), 2);
      for (const std::vector<double>& basis : p) {
        double along = 0;
        for (std::uint64_t j = 0; j < columns; ++j) along += basis[j] * vectors[v * columns + j];
        within += along * along;
      }
      EXPECT_NEAR(within / all, 1, 1e-5) << v;
    }
  }
}

/// The same start makes the same sketch, but for the order of sums.
TEST(Sketches, AreTheCpus) {
  for (const MatrixShape shape :
       {MatrixShape{37, 80}, {80, 37}, {24, 1300}, {1300, 24}, {64, 64}, {20, 16}}) {
    for (const unsigned iterations : {1u, 2u}) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
        const Key key{.seed = seed, .step = 3, .tensor = 4};
        Matrix matrix{shape, 9, normal(shape.rows * shape.columns, 5), DType::f32, iterations};
        const Sketch sketch = decompose_all({matrix}, key)[0];
        const test::Sketched own(matrix.values, shape, {matrix.rank, iterations}, key);
        ASSERT_EQ(own.status, Status::ok);
        for (std::uint32_t k = 0; k < matrix.rank; ++k)
          ASSERT_NEAR(sketch.sigma[k], own.sigma[k], 4e-6 * own.sigma[0]) << k;
        for (std::uint64_t i = 0; i < shape.rows; ++i)
          ASSERT_NEAR(sketch.residual_rms[i], own.residual_rms[i], 4e-6 * sketch.row_rms[i]) << i;
        for (std::size_t i = 0; i < matrix.values.size(); ++i)
          ASSERT_NEAR(sketch.residual[i], own.residual[i], 2e-5) << i;
      }
    }
  }
}

// ---- magnitudes

TEST(Sketches, ZerosHaveZeroPairs) {
  const Matrix matrix{{12, 20}, 4, std::vector<float>(240), DType::f32};
  const Sketch sketch = decompose_all({matrix})[0];
  EXPECT_EQ(sketch.flags, 0u);
  for (const auto* values : {&sketch.shorter, &sketch.longer, &sketch.residual})
    for (const float v : *values) ASSERT_EQ(v, 0);
  for (const double sigma : sketch.sigma) EXPECT_EQ(sigma, 0);
}

/// A power of two changes units alone, however small or large it is.
TEST(Sketches, ScaleIsLeftOut) {
  const Matrix matrix = falling({30, 52}, 8);
  const Sketch one = decompose_all({matrix})[0];
  for (const int power : {-100, -76, -20, 66, 110}) {
    Matrix scaled = matrix;
    scale(scaled, std::ldexp(1.0f, power));
    Sketch sketch = decompose_all({scaled})[0];
    for (double& sigma : sketch.sigma) sigma = std::ldexp(sigma, -power);
    for (float& v : sketch.residual) v = std::ldexp(v, -power);
    for (std::size_t i = 0; i < one.residual_rms.size(); ++i) {
      const double rms = std::ldexp(sketch.residual_rms[i], -power);
      EXPECT_NEAR(rms, one.residual_rms[i], std::ldexp(1.0, -140 - power)) << i;
    }
    sketch.residual_rms = one.residual_rms;
    EXPECT_TRUE(same_bits(one, sketch)) << power;
  }
}

TEST(Sketches, TinyAndHugeMatricesAreSound) {
  for (const float factor : {1e-23f, 1e20f, 1e34f}) {
    Matrix matrix = falling({26, 44}, 8);
    scale(matrix, factor);
    expect_sound(matrix, decompose_all({matrix})[0]);
  }
}

/// Whose residual is rounded to a multiple of the smallest number.
TEST(Sketches, SubnormalEntriesAloneAreSound) {
  Matrix matrix{{5, 6}, 2, std::vector<float>(30), DType::f32};
  for (int i = 0; i < 30; ++i) matrix.values[static_cast<std::size_t>(i)] = std::ldexp(i % 7, -149);
  const Sketch sketch = decompose_all({matrix})[0];
  expect_orthonormal(matrix, sketch);
  expect_exact_residual(matrix, sketch);
  for (float& v : matrix.values) v = std::ldexp(v, 149);
  const Sketch larger = decompose_all({matrix})[0];
  EXPECT_EQ(sketch.shorter, larger.shorter);
  EXPECT_EQ(sketch.longer, larger.longer);
}

TEST(Sketches, EntriesNearTheLargestFloatAreAllResidual) {
  Matrix matrix = falling({26, 44}, 8);
  scale(matrix, 1e37f);
  const Sketch sketch = decompose_all({matrix})[0];
  EXPECT_EQ(sketch.residual, matrix.values);
  for (const auto* values : {&sketch.shorter, &sketch.longer})
    for (const float v : *values) ASSERT_EQ(v, 0);
  for (const double sigma : sketch.sigma) EXPECT_EQ(sigma, 0);
}

TEST(Sketches, HalvesAreDecomposedAsTheirValues) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Matrix matrix = falling({21, 35}, 6);
    bool overflow = false;
    for (float& v : matrix.values)
      v = dtype == DType::f16 ? from_f16(to_f16(v, overflow)) : from_bf16(to_bf16(v, overflow));
    const Sketch wide = decompose_all({matrix})[0];
    matrix.dtype = dtype;
    const std::vector<Matrix> shifted(4, matrix);  // the first stands where `wide` did
    EXPECT_TRUE(same_bits(wide, decompose_all(shifted)[0]));
  }
}

// ---- several layers

std::vector<Matrix> many_matrices() {
  std::vector<Matrix> matrices;
  for (std::size_t i = 0; i < 24; ++i) {
    const MatrixShape shape{3 + 7 * (i % 9), 2 + 11 * (i % 7)};
    matrices.push_back(falling(shape, static_cast<std::uint32_t>(1 + i * 5 % shape.shorter()), i));
    matrices.back().iterations = 1 + i % 3;
  }
  return matrices;
}

TEST(Sketches, LayersDoNotDependOnEachOther) {
  const std::vector<Matrix> matrices = many_matrices();
  const std::vector<Sketch> together = decompose_all(matrices);
  for (std::uint16_t i = 0; i < matrices.size(); ++i) {
    expect_sound(matrices[i], together[i]);
    EXPECT_TRUE(same_bits(together[i], decompose_all({matrices[i]}, {.seed = 7, .tensor = i})[0]))
        << i;
  }
}

TEST(Sketches, LayersThatAreNotFiniteAreLeftOut) {
  const std::vector<Matrix> sound = many_matrices();
  const std::vector<Sketch> before = decompose_all(sound);
  std::vector<Matrix> matrices = sound;
  matrices[3].values.back() = INFINITY;
  matrices[10].values[1] = -INFINITY;
  matrices[17].values[0] = NAN;
  const std::vector<Sketch> after = decompose_all(matrices);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (i % 7 != 3) {
      EXPECT_TRUE(same_bits(before[i], after[i])) << i;
      continue;
    }
    EXPECT_EQ(after[i].flags, std::uint32_t{format::LayerRecord::kNonFinite}) << i;
    for (const auto* values : {&after[i].shorter, &after[i].longer, &after[i].residual})
      for (const float v : *values) ASSERT_EQ(v, 0) << i;
    for (const double sigma : after[i].sigma) EXPECT_EQ(sigma, 0) << i;
  }
}

/// Each iteration takes more of what a spectrum without a gap has to give.
TEST(Sketches, IterationsComeCloserToTheMatrix) {
  Matrix matrix{{120, 160}, 10, normal(120 * 160, 11), DType::f32};
  double last = 1e30;
  for (const unsigned iterations : {1u, 2u, 5u}) {
    matrix.iterations = iterations;
    const Sketch sketch = decompose_all({matrix})[0];
    expect_sound(matrix, sketch);
    double left = 0;
    for (const float v : sketch.residual) left += static_cast<double>(v) * v;
    EXPECT_LT(left, 0.995 * last) << iterations;
    last = left;
  }
}

TEST(Sketches, ManyLayersTakeAsManyLaunchesAsOne) {
  for (const unsigned iterations : {1u, 3u}) {
    Matrix large = falling({1100, 1030}, 1);
    std::vector<Matrix> several = many_matrices();
    large.iterations = iterations;
    for (Matrix& matrix : several) matrix.iterations = std::min(matrix.iterations, iterations);
    const auto launches_of = [](const std::vector<Matrix>& matrices) {
      SketchLayers layers(matrices);
      static_cast<void>(layers.decompose({}));
      return layers.launches();
    };
    const std::size_t without_folds = launches_of(several);
    several.push_back(large);
    const std::size_t many = launches_of(several);
    EXPECT_EQ(launches_of({large}), many);
    EXPECT_EQ(many, 28 + 16 * (iterations - 1));
    EXPECT_LT(without_folds, many);
    std::cout << "[ launches ] " << iterations << " iterations: " << many << " to decompose, "
              << without_folds << " where no sum has several stretches\n";
  }
}

TEST(Sketches, GraphsReplay) {
  const std::vector<Matrix> matrices = many_matrices();
  const std::vector<Sketch> sketches = decompose_all(matrices);
  const std::vector<Sketch> replayed = SketchLayers(matrices).decompose({.seed = 7}, true);
  for (std::size_t i = 0; i < matrices.size(); ++i)
    EXPECT_TRUE(same_bits(sketches[i], replayed[i])) << i;
}

TEST(Sketches, BlocksOfWarpsDoNotMatter) {
  const std::vector<Matrix> matrices{falling({40, 1300}, 5), falling({70, 30}, 9)};
  const std::vector<Sketch> sketches = decompose_all(matrices);
  const unsigned usual = warps_per_block;
  for (const unsigned warps : {1u, 8u}) {
    warps_per_block = warps;
    const std::vector<Sketch> again = decompose_all(matrices);
    for (std::size_t i = 0; i < matrices.size(); ++i)
      EXPECT_TRUE(same_bits(sketches[i], again[i])) << warps;
  }
  warps_per_block = usual;
}

}  // namespace
}  // namespace atomo::cuda
