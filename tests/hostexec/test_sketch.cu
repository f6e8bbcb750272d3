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
#include "sound_sketches.hpp"
#include "support/sizes.hpp"
#include "support/sketch_support.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

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
/// several tiles, of two to four leaves, as large as the shorter side; sums of one stretch and of several.
INSTANTIATE_TEST_SUITE_P(
    All, SketchShapes,
    testing::Values(Case{{1, 1}, 1}, Case{{1, 70}, 1}, Case{{33, 1}, 1}, Case{{8, 9}, 4},
                    Case{{64, 64}, 16}, Case{{65, 129}, 17}, Case{{130, 67}, 33},
                    Case{{40, 2100}, 12}, Case{{1100, 31}, 8}, Case{{530, 600}, 4},
                    Case{{100, 96}, 64}, Case{{72, 80}, 66}, Case{{139, 131}, 131},
                    Case{{20, 24}, 20}, Case{{70, 66}, 65}, Case{{96, 120}, 96},
                    Case{{150, 128}, 128}, Case{{210, 230}, 200}, Case{{256, 260}, 256}),
    [](const auto& info) {
      const Case& c = info.param;
      return std::to_string(c.shape.rows) + "x" + std::to_string(c.shape.columns) + "_rank_" +
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
  // Six directions stand out, of which a small rank finds its last badly; a full one leaves
  // nothing.
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

/// One direction, the sums of which all have one sign, and noise that is left of it. By Pythagoras
/// the norms have digits while the noise is more than about 2^-8 of a row; below, rows are computed.
TEST(Sketches, NormsOfWhatIsLeftAreNeverTooSmall) {
  for (const MatrixShape shape : {MatrixShape{18, 40000}, {200, 2100}, {400, 24}}) {
    for (const int power : {-4, -6, -8, -9, -10, -14, -40}) {
      SCOPED_TRACE(std::to_string(shape.columns) + " columns, noise 2^" + std::to_string(power));
      Matrix matrix{shape, 3, normal(shape.rows * shape.columns, 9), DType::f32};
      for (float& v : matrix.values) v = 1 + std::ldexp(v, power);
      const Sketch sketch = decompose_all({matrix})[0];
      expect_rms(matrix, sketch);
      const auto measured = std::accumulate(sketch.measured.begin(), sketch.measured.end(), 0u);
      if (power > -7) {
        EXPECT_EQ(measured, 0u);
      } else if (power < -10) {
        EXPECT_EQ(measured, shape.rows);
      }
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

/// Products of bases, and how much farther from its definition they may leave a sketch than f32:
/// vectors that are rounded span another basis, as good a one.
struct Precision {
  TensorVectors taken;
  double factor;
};
constexpr Precision kPrecisions[] = {{TensorVectors::whole, 1}, {TensorVectors::rounded, 100}};

/// By its definition in FORMAT.md, step by step in f64: Y = T S, Q, Z = T^T Q, P, K = T P.
TEST(Sketches, FollowTheirDefinition) {
  for (const MatrixShape shape : {MatrixShape{30, 144}, {144, 30}, {30, 1400}}) {
    const Matrix matrix{shape, 7, normal(shape.rows * shape.columns, 3), DType::f32};
    const Key key{.seed = 0x123456789ull, .step = 5, .tensor = 9, .worker = 2, .channel = 1};
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
    for (const auto& [taken, factor] : kPrecisions) {
      const Sketch sketch = decompose_with(taken, matrix, key);
      for (std::uint64_t v = 0; v < rank; ++v)
        EXPECT_NEAR(sketch.sigma[v], sigma[v], factor * 3e-6 * sigma[0]) << v;
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
}

/// The same start makes the same sketch, but for the order of sums. Under a sanitizer on a commit one start a shape.
TEST(Sketches, AreTheCpus) {
  for (const MatrixShape shape :
       {MatrixShape{37, 80}, {80, 37}, {24, 1300}, {1300, 24}, {64, 64}, {20, 16}}) {
    for (const unsigned iterations : {1u, 2u}) {
      for (std::uint64_t seed = 0; seed < (test::in_turns() ? 1u : 4u); ++seed) {
        SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
        const Key key{.seed = seed, .step = 3, .tensor = 4};
        Matrix matrix{shape, 9, normal(shape.rows * shape.columns, 5), DType::f32, iterations};
        const test::Sketched own(matrix.values, shape, {matrix.rank, iterations}, key);
        ASSERT_EQ(own.status, Status::ok);
        for (const auto& [taken, factor] : kPrecisions) {
          const Sketch sketch = decompose_with(taken, matrix, key);
          for (std::uint32_t k = 0; k < matrix.rank; ++k)
            ASSERT_NEAR(sketch.sigma[k], own.sigma[k], factor * 4e-6 * own.sigma[0]) << k;
          for (std::uint64_t i = 0; i < shape.rows; ++i)
            ASSERT_NEAR(sketch.residual_rms[i], own.residual_rms[i],
                        factor * 4e-6 * sketch.row_rms[i])
                << i;
          for (std::size_t i = 0; i < matrix.values.size(); ++i)
            ASSERT_NEAR(sketch.residual[i], own.residual[i], factor * 2e-5) << i;
        }
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

/// The second vectors in the unit of the matrix times 2^-power.
std::vector<float> longer_in_unit(const Matrix& matrix, const Sketch& sketch, int power) {
  std::vector<float> longer = sketch.longer;
  for (float& v : longer) v = std::ldexp(v, exponent_of(matrix, sketch) - power);
  return longer;
}

/// A power of two changes units alone, however small or large it is, and whether the matrix is scaled.
TEST(Sketches, ScaleIsLeftOut) {
  const Matrix matrix = falling({30, 52}, 8);
  const Sketch one = decompose_all({matrix})[0];
  EXPECT_EQ(exponent_of(matrix, one), 0);
  for (const int power : {-100, -76, -20, 66, 110}) {
    Matrix scaled = matrix;
    scale(scaled, std::ldexp(1.0f, power));
    Sketch sketch = decompose_all({scaled})[0];
    EXPECT_EQ(exponent_of(scaled, sketch) != 0, std::abs(power) > 24);
    sketch.longer = longer_in_unit(scaled, sketch, power);
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
  const Matrix small = matrix;
  for (float& v : matrix.values) v = std::ldexp(v, 149);
  const Sketch larger = decompose_all({matrix})[0];
  EXPECT_EQ(sketch.shorter, larger.shorter);
  EXPECT_EQ(longer_in_unit(small, sketch, -149), longer_in_unit(matrix, larger, 0));
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

}  // namespace
}  // namespace atomo::cuda
