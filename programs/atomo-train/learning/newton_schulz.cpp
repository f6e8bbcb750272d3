// SPDX-License-Identifier: Apache-2.0
/// \file
/// X <- X / |X|, then five times: A = X X', B = b A + c A^2, X <- a X + B X, of the wide one of the
/// matrix and its transpose. Products go along rows, so the compiler makes vectors of them.

#include "learning/newton_schulz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace train {
namespace {

/// c = s c + a b, of m x k and k x n.
void multiply_add(float s, const float* a, const float* b, float* c, std::size_t m, std::size_t k,
                  std::size_t n) {
  for (std::size_t i = 0; i < m; ++i) {
    float* const row = c + i * n;
    for (std::size_t j = 0; j < n; ++j) row[j] *= s;
    for (std::size_t l = 0; l < k; ++l) {
      const float factor = a[i * k + l];
      const float* const other = b + l * n;
      for (std::size_t j = 0; j < n; ++j) row[j] += factor * other[j];
    }
  }
}

/// The dot product, in eight sums side by side.
float dot(const float* a, const float* b, std::size_t n) {
  float sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float rest = 0;
  for (; i < n; ++i) rest += a[i] * b[i];
  for (const float sum : sums) rest += sum;
  return rest;
}

/// a = x x', of m x n: the lower triangle and its image.
void square(const float* x, float* a, std::size_t m, std::size_t n) {
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j <= i; ++j) a[i * m + j] = a[j * m + i] = dot(x + i * n, x + j * n, n);
  }
}

void transpose(const float* from, float* to, std::size_t rows, std::size_t columns) {
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  }
}

/// x <- a x + (b A + c A^2) x, A = x x'. The two rooms hold m x m entries each, `next` m x n.
void iterate(float* x, float* next, float* first, float* second, std::size_t m, std::size_t n) {
  constexpr float kA = 3.4445F, kB = -4.7750F, kC = 2.0315F;
  square(x, first, m, n);
  square(first, second, m, m);  // A is its own transpose
  for (std::size_t i = 0; i < m * m; ++i) first[i] = kB * first[i] + kC * second[i];
  std::copy_n(x, m * n, next);
  multiply_add(kA, first, x, next, m, m, n);
}

}  // namespace

void orthogonalise(std::span<float> matrix, std::size_t rows, std::size_t columns,
                   std::vector<float>& work) {
  constexpr int kSteps = 5;
  double squares = 0;
  for (const double x : matrix) squares += x * x;
  if (squares == 0) return;
  const auto scale = static_cast<float>(1 / std::sqrt(squares));
  const bool tall = rows > columns;
  const std::size_t m = std::min(rows, columns), n = std::max(rows, columns);
  work.resize(2 * m * n + 2 * m * m);
  float *x = work.data(), *next = x + m * n;
  float *const first = next + m * n, *const second = first + m * m;
  for (float& value : matrix) value *= scale;
  if (tall) {
    transpose(matrix.data(), x, rows, columns);
  } else {
    std::ranges::copy(matrix, x);
  }
  for (int step = 0; step < kSteps; ++step) {
    iterate(x, next, first, second, m, n);
    std::swap(x, next);
  }
  if (tall) {
    transpose(x, matrix.data(), m, n);
  } else {
    std::copy_n(x, m * n, matrix.begin());
  }
}

}  // namespace train
