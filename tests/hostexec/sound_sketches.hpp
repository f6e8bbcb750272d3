// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Matrices to sketch on a device, and what must hold of every sketch.

#include <cmath>
#include <random>

#include "math/residual_rms.hpp"
#include "sketch_layers.hpp"

namespace atomo::cuda {

// ---- matrices

inline std::vector<float> normal(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& v : values) v = draw(engine);
  return values;
}

/// A sum of outer products of normal vectors, the k-th times weights[k].
inline Matrix sum_of_products(MatrixShape shape, std::uint32_t rank,
                              const std::vector<double>& weights, std::uint64_t seed = 1) {
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
inline Matrix falling(MatrixShape shape, std::uint32_t rank, std::uint64_t seed = 1) {
  std::vector<double> weights;
  for (int k = 0; k < 6; ++k) weights.push_back(std::ldexp(1.0, -k));
  Matrix matrix = sum_of_products(shape, rank, weights, seed);
  const auto noise = normal(matrix.values.size(), seed + 100);
  for (std::size_t i = 0; i < noise.size(); ++i) matrix.values[i] += 0.01f * noise[i];
  return matrix;
}

inline void scale(Matrix& matrix, float by) {
  for (float& v : matrix.values) v *= by;
}

// ---- what must hold of every sketch

/// Of the power of two that the largest row's norm is just below; 0 where nothing is sketched or scaled.
inline int exponent_of(const Matrix& matrix, const Sketch& sketch) {
  const double rms = *std::max_element(sketch.row_rms.begin(), sketch.row_rms.end());
  int exponent = 0;
  if (rms > 0)
    static_cast<void>(
        std::frexp(rms * std::sqrt(static_cast<double>(matrix.shape.columns)), &exponent));
  return exponent > 120 || std::abs(exponent) <= 24 ? 0 : exponent;
}

/// The first vectors are orthonormal as far as f32 can say, or zero. Those of a matrix with as many
/// columns as rows are projections, divided by sigma, along the eigenvectors of their Gram matrix in
/// f32: before the division, orthogonal to the rounding of its largest entry. The bound is 1.3 times
/// what 62 other matrices came to.
inline void expect_orthonormal(const Matrix& matrix, const Sketch& sketch) {
  const double bound = 0x1.8p-23 * (1 + std::sqrt(matrix.rank));
  for (std::uint64_t k = 0; k < matrix.rank; ++k) {
    const bool grows = matrix.shape.rows <= matrix.shape.columns && sketch.sigma[k] > 0;
    const double ratio = grows ? sketch.sigma[0] / sketch.sigma[k] : 1;
    for (std::uint64_t l = 0; l <= k; ++l) {
      const double apart = bound * (grows ? ratio * sketch.sigma[0] / sketch.sigma[l] : 1);
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
inline void expect_rms(const Matrix& matrix, const Sketch& sketch) {
  const std::uint64_t columns = matrix.shape.columns;
  const int exponent = exponent_of(matrix, sketch);
  const double added = std::sqrt(2 * math::square_error(columns));
  for (std::uint64_t i = 0; i < matrix.shape.rows; ++i) {
    double left = 0;
    for (std::uint64_t j = i * columns; j < (i + 1) * columns; ++j)
      left += std::pow(std::ldexp(static_cast<double>(sketch.residual[j]), -exponent), 2);
    const double own = std::ldexp(std::sqrt(left / static_cast<double>(columns)), exponent);
    const double of_row = sketch.row_rms[i];
    const double rms = sketch.residual_rms[i] + (sketch.measured[i] != 0 ? own : 0.0);
    ASSERT_GE(rms, own * (1 - 1e-12)) << "row " << i;
    ASSERT_LE(rms, std::hypot(own, added * of_row) + 0x1p-19 * of_row + 0x1p-148) << "row " << i;
  }
}

/// The residual is, to the bit, what a decoder's sum of all pairs leaves of the matrix.
inline void expect_exact_residual(const Matrix& matrix, const Sketch& sketch) {
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

/// sigma is the norm of its second vector, and descends as far as the rounding of eigenvalues, the squares, to f32 can
/// say. What the pairs take and what they leave
/// are orthogonal, so the squares add up.
inline void expect_energy(const Matrix& matrix, const Sketch& sketch) {
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
      const double last = sketch.sigma[k - 1];
      const double same = matrix.rank > kSharedRank ? 0x1p-20 * largest * largest : 0;
      ASSERT_LE(sigma, std::sqrt(last * last + same) * (1 + 1e-6) + 1e-6 * largest) << k;
    }
    taken += square;
  }
  EXPECT_NEAR(taken + left, all, 4e-6 * all);
}

inline void expect_sound(const Matrix& matrix, const Sketch& sketch) {
  SCOPED_TRACE(std::to_string(matrix.shape.rows) + " x " + std::to_string(matrix.shape.columns) +
               ", rank " + std::to_string(matrix.rank));
  EXPECT_EQ(sketch.flags, 0u);
  expect_orthonormal(matrix, sketch);
  expect_exact_residual(matrix, sketch);
  expect_rms(matrix, sketch);
  expect_energy(matrix, sketch);
}

}  // namespace atomo::cuda
