// SPDX-License-Identifier: Apache-2.0
/// Sketches of ranks above 64, whose small matrices several blocks have: their pairs, and matrices that leave little to find.
#include "sound_sketches.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

double along(const std::vector<float>& vectors, std::uint64_t length, std::uint32_t k,
             std::uint32_t l) {
  double sum = 0;
  for (std::uint64_t i = 0; i < length; ++i)
    sum += static_cast<double>(vectors[k * length + i]) * vectors[l * length + i];
  return sum;
}

/// Both sides' vectors are orthogonal, each by its share of sigma, to the rounding of the largest eigenvalue.
void expect_diagonal(const Matrix& matrix, const Sketch& sketch) {
  expect_sound(matrix, sketch);
  const double bound = 0x1p-18 * sketch.sigma[0] * sketch.sigma[0];
  for (std::uint32_t k = 0; k < matrix.rank; ++k) {
    for (std::uint32_t l = 0; l < k; ++l) {
      const double scale = sketch.sigma[k] * sketch.sigma[l];
      ASSERT_NEAR(scale * along(sketch.shorter, matrix.m(), k, l), 0, bound) << k << ", " << l;
      const double norms = std::sqrt(along(sketch.longer, matrix.n(), k, k) *
                                     along(sketch.longer, matrix.n(), l, l));
      if (norms > 0) {
        ASSERT_NEAR(scale / norms * along(sketch.longer, matrix.n(), k, l), 0, bound)
            << k << ", " << l;
      }
    }
  }
}

double norm_of(const std::vector<float>& values) {
  double square = 0;
  for (const float v : values) square += static_cast<double>(v) * v;
  return std::sqrt(square);
}

/// Spectra that fall slowly, quickly, in a step, and not at all.
TEST(LargeRanks, PairsAreOrthogonalWhateverTheSpectrum) {
  struct Case {
    MatrixShape shape;
    std::uint32_t rank;
    double power;
  };
  for (const auto& [shape, rank, power] : {Case{{140, 160}, 65, -0.5},
                                           {{160, 140}, 96, 0.0},
                                           {{160, 140}, 96, -2.0},
                                           {{140, 160}, 130, 0.0},
                                           {{160, 140}, 130, -0.5},
                                           {{140, 160}, 130, -2.0}}) {
    SCOPED_TRACE(power);
    std::vector<double> weights;
    for (int k = 1; k <= 140; ++k) weights.push_back(std::pow(k, power));
    const Matrix matrix = sum_of_products(shape, rank, weights);
    expect_diagonal(matrix, decompose_all({matrix})[0]);
  }
}

TEST(LargeRanks, EqualSingularValuesAreKept) {
  for (const std::uint32_t rank : {72u, 136u}) {
    Matrix identity{{rank, rank + 4}, rank, std::vector<float>(rank * (rank + 4)), DType::f32};
    for (std::size_t i = 0; i < rank; ++i) identity.values[(rank + 5) * i] = -3;
    const Sketch sketch = decompose_all({identity})[0];
    expect_diagonal(identity, sketch);
    for (const double sigma : sketch.sigma) EXPECT_NEAR(sigma, 3, 1e-5);
    for (const float v : sketch.residual) ASSERT_NEAR(v, 0, 1e-5);
  }
}

/// Most pivots of all panels are refused.
TEST(LargeRanks, MatricesOfLowRankAreTakenWhole) {
  for (const MatrixShape shape : {MatrixShape{140, 150}, {150, 140}}) {
    for (const std::size_t rank : {1, 5, 70}) {
      const Matrix matrix = sum_of_products(shape, 130, std::vector<double>(rank, 1.0), rank);
      const Sketch sketch = decompose_all({matrix})[0];
      expect_sound(matrix, sketch);
      for (std::uint32_t k = static_cast<std::uint32_t>(rank); k < 130; ++k)
        EXPECT_LE(sketch.sigma[k], 1e-3 * sketch.sigma[0]) << k;
      EXPECT_LE(norm_of(sketch.residual), 1e-5 * norm_of(matrix.values));
    }
  }
}

TEST(LargeRanks, ZerosHaveZeroPairs) {
  const Matrix matrix{{90, 80}, 70, std::vector<float>(7200), DType::f32};
  const Sketch sketch = decompose_all({matrix})[0];
  EXPECT_EQ(sketch.flags, 0u);
  for (const auto* values : {&sketch.shorter, &sketch.longer, &sketch.residual})
    for (const float v : *values) ASSERT_EQ(v, 0);
  for (const double sigma : sketch.sigma) EXPECT_EQ(sigma, 0);
}

/// What has no rounding leaves zero vectors, wherever they stand among the others.
TEST(LargeRanks, FewEntriesAreFewPairs) {
  for (const MatrixShape shape : {MatrixShape{140, 150}, {150, 140}}) {
    Matrix matrix{shape, 132, std::vector<float>(21000), DType::f32};
    const std::vector<double> entries{8, 5, 3, 2, 1};
    for (std::size_t i = 0; i < entries.size(); ++i)
      matrix.values[(7 + 20 * i) * shape.columns + 3 + 25 * i] = static_cast<float>(entries[i]);
    const Sketch sketch = decompose_all({matrix})[0];
    expect_sound(matrix, sketch);
    for (std::uint32_t k = 0; k < 132; ++k)
      EXPECT_NEAR(sketch.sigma[k], k < entries.size() ? entries[k] : 0, 1e-5) << k;
    for (std::uint64_t i = entries.size() * matrix.m(); i < 132 * matrix.m(); ++i)
      ASSERT_EQ(sketch.shorter[i], 0);
  }
}

/// Small ranks among large ones, all numbers of leaves in one launch.
TEST(LargeRanks, LayersOfManyRanksDoNotDependOnEachOther) {
  std::vector<Matrix> matrices;
  for (const std::uint32_t rank : {5u, 130u, 33u, 65u, 194u, 129u})
    matrices.push_back(falling({200, 196}, rank, rank));
  const std::vector<Sketch> together = decompose_all(matrices);
  for (std::uint16_t i = 0; i < matrices.size(); ++i) {
    expect_sound(matrices[i], together[i]);
    EXPECT_TRUE(same_bits(together[i], decompose_all({matrices[i]}, {.seed = 7, .tensor = i})[0]))
        << i;
  }
}

TEST(LargeRanks, LaunchesFollowTheLargestRank) {
  const auto launches_of = [](const std::vector<std::uint32_t>& ranks) {
    std::vector<Matrix> matrices;
    for (const std::uint32_t rank : ranks) matrices.push_back(falling({210, 204}, rank));
    SketchLayers layers(matrices);
    static_cast<void>(layers.decompose({}));
    return layers.launches();
  };
  const std::size_t small = launches_of({5});
  EXPECT_EQ(launches_of({65, 5}), small + 2 * 2 + 7);
  EXPECT_EQ(launches_of({129}), small + 2 * 3 + 10);
  EXPECT_EQ(launches_of({200, 65}), small + 2 * 4 + 10);
}

}  // namespace
}  // namespace atomo::cuda
