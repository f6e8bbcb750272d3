// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A sketch with memory of its own, matrices to sketch, and bases good and bad.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "coding/marks.hpp"
#include "cpu/dither_kernels.hpp"
#include "cpu/sketch.hpp"
#include "format/atom_layout.hpp"
#include "support/support.hpp"

namespace atomo::test {

using namespace model;

/// What cpu::sketch, or cpu::sketch_onto a basis, makes of a matrix, and all rows of what it leaves.
/// Checks that nothing behind the workspace is written.
struct Sketched {
  MatrixShape shape;
  std::size_t rank = 0;
  std::vector<float> shorter, longer, residual;
  std::vector<double> sigma, residual_rms;
  int exponent = 0;
  Status status = Status::ok;

  /// `shift`: bytes that the workspace is moved off alignment.
  Sketched(const std::vector<float>& g, const MatrixShape& of, const SketchOptions& options,
           const Key& key, std::size_t shift = 0)
      : Sketched(of, options.rank) {
    run(g, shift, [&](SingularPairs& pairs, Bytes workspace) {
      return cpu::sketch(g.data(), shape, options, key, residual_rms, pairs, residual, residual_rms,
                         nullptr, workspace);
    });
  }
  /// `basis` has as many rows as the matrix has columns.
  Sketched(const std::vector<float>& g, const MatrixShape& of, const std::vector<float>& basis)
      : Sketched(of, basis.size() / of.columns) {
    run(g, 0, [&](SingularPairs& pairs, Bytes workspace) {
      return cpu::sketch_onto(g.data(), shape, basis, residual_rms, pairs, residual, residual_rms,
                              nullptr, workspace);
    });
  }

  [[nodiscard]] double u(std::size_t k, std::size_t i) const {
    return static_cast<double>(shorter[k * shape.shorter() + i]);
  }
  [[nodiscard]] double v(std::size_t k, std::size_t j) const {
    return std::ldexp(static_cast<double>(longer[k * shape.longer() + j]), exponent);
  }
  /// The entry of the pairs' vectors that an entry of the matrix is made of.
  [[nodiscard]] std::size_t first_of(std::size_t entry) const {
    return shape.rows <= shape.columns ? entry / shape.columns : entry % shape.columns;
  }
  [[nodiscard]] std::size_t second_of(std::size_t entry) const {
    return shape.rows <= shape.columns ? entry % shape.columns : entry / shape.columns;
  }
  /// Pairs and residual, in f64.
  [[nodiscard]] std::vector<double> sum() const {
    std::vector<double> y(residual.begin(), residual.end());
    for (std::size_t i = 0; i < y.size(); ++i) {
      for (std::size_t k = 0; k < rank; ++k) y[i] += u(k, first_of(i)) * v(k, second_of(i));
    }
    return y;
  }
  [[nodiscard]] double product_of_first(std::size_t a, std::size_t b) const {
    double sum = 0;
    for (std::size_t i = 0; i < shape.shorter(); ++i) sum += u(a, i) * u(b, i);
    return sum;
  }
  [[nodiscard]] double residual_norm() const {
    double sum = 0;
    for (const float v : residual) sum += static_cast<double>(v) * static_cast<double>(v);
    return std::sqrt(sum);
  }
  /// The vectors along the columns as a basis: a row a column of the matrix.
  [[nodiscard]] std::vector<float> basis() const {
    const bool wide = shape.rows <= shape.columns;
    std::vector<float> columns(shape.columns * rank);
    for (std::size_t k = 0; k < rank; ++k) {
      const double unit = !wide ? 1 : sigma[k] > 0 ? 1 / sigma[k] : 0;
      for (std::size_t j = 0; j < shape.columns; ++j)
        columns[j * rank + k] = static_cast<float>(unit * (wide ? v(k, j) : u(k, j)));
    }
    return columns;
  }

 private:
  Sketched(const MatrixShape& of, std::size_t of_rank)
      : shape(of),
        rank(of_rank),
        shorter(rank * of.shorter()),
        longer(rank * of.longer()),
        residual(of.rows * of.columns),
        sigma(rank),
        residual_rms(of.rows) {}

  template <typename Call>
  void run(const std::vector<float>& g, std::size_t shift, Call call) {
    constexpr std::size_t kGuard = 32;
    const std::size_t bytes = cpu::sketch_workspace_bytes(shape, rank);
    std::vector<std::byte> memory(bytes + shift + kGuard, std::byte{0x5A});
    const Bytes workspace = Bytes(memory).subspan(shift, bytes);
    SingularPairs pairs{shorter, longer, sigma};
    cpu::atom_amplitudes(g.data(), format::AtomLayout::rows(shape.rows, shape.columns),
                         residual_rms.data(), nullptr);
    status = call(pairs, workspace);
    std::vector<std::uint64_t> marks(coding::marks_words(shape.rows));
    for (std::size_t i = 0; i < shape.rows; ++i) marks[i / 64] |= std::uint64_t{1} << (i % 64);
    if (!failed(status))
      status =
          cpu::residual_rows(g.data(), shape, pairs, marks, residual.data(), nullptr, workspace);
    for (std::size_t i = 0; i < kGuard; ++i)
      EXPECT_EQ(memory[bytes + shift + i], std::byte{0x5A}) << "behind the workspace";
    exponent = pairs.exponent;
  }
};

/// `rank` orthonormal columns of `m` entries, as m rows.
inline std::vector<float> random_basis(std::size_t m, std::size_t rank, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> columns(rank, std::vector<double>(m));
  for (std::size_t k = 0; k < rank; ++k) {
    for (double& v : columns[k]) v = normal(generator);
    for (int twice = 0; twice < 2; ++twice) {
      for (std::size_t before = 0; before < k; ++before) {
        double product = 0;
        for (std::size_t i = 0; i < m; ++i) product += columns[k][i] * columns[before][i];
        for (std::size_t i = 0; i < m; ++i) columns[k][i] -= product * columns[before][i];
      }
    }
    double norm = 0;
    for (const double v : columns[k]) norm += v * v;
    for (double& v : columns[k]) v /= std::sqrt(norm);
  }
  std::vector<float> basis(m * rank);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t k = 0; k < rank; ++k) basis[i * rank + k] = static_cast<float>(columns[k][i]);
  }
  return basis;
}

/// A matrix whose singular values are sigma(0), sigma(1), ...: a diagonal between random bases.
template <typename Sigma>
std::vector<float> matrix_of_spectrum(const MatrixShape& shape, Sigma sigma, std::uint64_t seed) {
  const std::size_t m = shape.shorter();
  const auto left = random_basis(shape.rows, m, seed),
             right = random_basis(shape.columns, m, seed + 1);
  std::vector<float> g(shape.rows * shape.columns);
  for (std::size_t i = 0; i < shape.rows; ++i) {
    for (std::size_t j = 0; j < shape.columns; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < m; ++k)
        sum +=
            sigma(k) * static_cast<double>(left[i * m + k]) * static_cast<double>(right[j * m + k]);
      g[i * shape.columns + j] = static_cast<float>(sum);
    }
  }
  return g;
}

/// Of the exact decomposition, descending.
inline std::vector<double> singular_values(const std::vector<float>& g, const MatrixShape& shape) {
  const std::size_t m = shape.shorter();
  std::vector<float> shorter(m * m), longer(m * shape.longer());
  std::vector<double> sigma(m);
  std::vector<std::byte> workspace(cpu::svd_workspace_bytes(shape));
  SingularPairs pairs{shorter, longer, sigma};
  EXPECT_EQ(cpu::svd(g.data(), shape, pairs, workspace), Status::ok);
  return sigma;
}

}  // namespace atomo::test
