// SPDX-License-Identifier: Apache-2.0
/// The exact decomposition through LAPACK, and water filling over its amplitudes.
///
/// Everything is done in f64 on the matrix scaled by a power of two to below 1: squares of f32 have
/// at least 2^-298 there, so nothing overflows or vanishes. W (orthonormal rows, shorter x shorter)
/// comes from LAPACK; the second vectors are W times the matrix, without a division, so that the
/// sum of the pairs is W^T W times the matrix, which is the matrix to 2^-44 whatever its rank.
/// Small singular values of the Gram matrix lose digits below 1e-8 of the largest, where f32
/// entries hold nothing.

#include "cpu/svd.hpp"

#include <cblas.h>
#include <lapacke.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/workspace.hpp"
#include "math/water_filling.hpp"

namespace atomo::cpu {
namespace {

using core::Carver;

constexpr std::size_t kMaxSide = std::size_t{1} << 22, kMaxShorter = std::size_t{1} << 14;
/// Up to here the Gram matrix is both cheaper and exact enough.
constexpr std::size_t kGramSide = 512, kGramAspect = 4;

struct SvdMemory {
  std::span<double> matrix, basis, products, values;

  SvdMemory(Carver& carver, const MatrixShape& shape) noexcept
      : matrix(carver.take<double>(shape.rows * shape.columns)),
        basis(carver.take<double>(shape.shorter() * shape.shorter())),
        products(carver.take<double>(shape.rows * shape.columns)),
        values(carver.take<double>(shape.shorter())) {}
};

bool uses_gram(const MatrixShape& shape) noexcept {
  return shape.shorter() <= kGramSide || shape.longer() >= kGramAspect * shape.shorter();
}

lapack_int to_int(std::size_t n) noexcept { return static_cast<lapack_int>(n); }

/// Copies g 2^-exponent, the largest entry in [1/2, 1). False when all entries are zero.
bool scale_matrix(const float* g, std::span<double> matrix, int& exponent) noexcept {
  float largest = 0;
  for (std::size_t i = 0; i < matrix.size(); ++i) largest = std::max(largest, std::fabs(g[i]));
  exponent = 0;
  if (largest == 0) return false;
  std::frexp(static_cast<double>(largest), &exponent);
  const double scale = std::ldexp(1.0, -exponent);
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<double>(g[i]) * scale;
  return true;
}

/// How the rows of the basis lie in memory.
struct Basis {
  bool found = false;
  bool transposed = false;  ///< row k is every shorter()-th value from k on
};

Basis gram_basis(const MatrixShape& shape, const SvdMemory& memory) noexcept {
  const bool wide = shape.rows <= shape.columns;
  const int side = to_int(shape.shorter()), inner = to_int(shape.longer());
  cblas_dsyrk(CblasRowMajor, CblasUpper, wide ? CblasNoTrans : CblasTrans, side, inner, 1.0,
              memory.matrix.data(), to_int(shape.columns), 0.0, memory.basis.data(), side);
  // Row-major upper is column-major lower; eigenvector k is then `side` consecutive values.
  const lapack_int info = LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'L', side, memory.basis.data(),
                                         side, memory.values.data());
  // Eigenvalues ascend: the largest comes last.
  for (std::size_t k = 0; info == 0 && k < shape.shorter() / 2; ++k) {
    double* const low = memory.basis.data() + k * shape.shorter();
    double* const high = memory.basis.data() + (shape.shorter() - 1 - k) * shape.shorter();
    std::swap_ranges(low, low + shape.shorter(), high);
  }
  return {info == 0, false};
}

/// The matrix, read column-major, is its transpose: columns x rows.
Basis full_basis(const MatrixShape& shape, const SvdMemory& memory) noexcept {
  const bool wide = shape.rows <= shape.columns;
  std::copy(memory.matrix.begin(), memory.matrix.end(), memory.products.begin());
  double* const basis = memory.basis.data();
  double unused = 0;
  const lapack_int info = LAPACKE_dgesdd(
      LAPACK_COL_MAJOR, 'O', to_int(shape.columns), to_int(shape.rows), memory.products.data(),
      to_int(shape.columns), memory.values.data(), wide ? &unused : basis, to_int(shape.columns),
      wide ? basis : &unused, to_int(shape.shorter()));
  return {info == 0, wide};
}

/// products row k = basis row k times the matrix (or its transpose).
void multiply(const MatrixShape& shape, const SvdMemory& memory, bool transposed) noexcept {
  const bool wide = shape.rows <= shape.columns;
  const int side = to_int(shape.shorter()), length = to_int(shape.longer());
  cblas_dgemm(CblasRowMajor, transposed ? CblasTrans : CblasNoTrans,
              wide ? CblasNoTrans : CblasTrans, side, length, side, 1.0, memory.basis.data(), side,
              memory.matrix.data(), to_int(shape.columns), 0.0, memory.products.data(), length);
}

void write_pairs(const MatrixShape& shape, const SvdMemory& memory, bool transposed,
                 SingularPairs& pairs) noexcept {
  const std::size_t side = shape.shorter(), length = shape.longer();
  const std::size_t next_vector = transposed ? 1 : side, next_entry = transposed ? side : 1;
  for (std::size_t k = 0; k < side; ++k) {
    const double* const vector = memory.basis.data() + k * next_vector;
    for (std::size_t i = 0; i < side; ++i) {
      pairs.shorter[k * side + i] = static_cast<float>(vector[i * next_entry]);
    }
    double sum = 0;
    for (std::size_t j = 0; j < length; ++j) {
      const double v = memory.products[k * length + j];
      pairs.longer[k * length + j] = static_cast<float>(v);
      sum += v * v;
    }
    pairs.sigma[k] = std::ldexp(std::sqrt(sum), pairs.exponent);
  }
}

}  // namespace

bool svd_supports(const MatrixShape& shape) noexcept {
  return shape.shorter() >= 1 && shape.shorter() <= kMaxShorter && shape.longer() <= kMaxSide;
}

std::size_t svd_workspace_bytes(const MatrixShape& shape) noexcept {
  Carver carver;
  SvdMemory(carver, shape);
  return carver.bytes();
}

Status svd(const float* g, const MatrixShape& shape, SingularPairs& pairs,
           Bytes workspace) noexcept {
  if (!svd_supports(shape)) return Status::unsupported;
  Carver carver(workspace);
  const SvdMemory memory(carver, shape);
  if (!carver.fits()) return Status::workspace_too_small;
  if (!scale_matrix(g, memory.matrix, pairs.exponent)) {
    std::fill(pairs.shorter.begin(), pairs.shorter.end(), 0.0f);
    std::fill(pairs.longer.begin(), pairs.longer.end(), 0.0f);
    std::fill(pairs.sigma.begin(), pairs.sigma.end(), 0.0);
    return Status::ok;
  }
  const Basis basis = uses_gram(shape) ? gram_basis(shape, memory) : full_basis(shape, memory);
  if (!basis.found) return Status::external;
  multiply(shape, memory, basis.transposed);
  write_pairs(shape, memory, basis.transposed, pairs);
  double energy = 0;
  for (const double sigma : pairs.sigma) energy += sigma;
  return std::isfinite(energy) ? Status::ok : Status::external;
}

void water_fill(std::span<const double> amplitudes, std::uint64_t keep,
                std::span<std::uint64_t> probabilities, std::span<std::uint32_t> order) noexcept {
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return amplitudes[a] != amplitudes[b] ? amplitudes[a] > amplitudes[b] : a < b;
  });
  std::fill(probabilities.begin(), probabilities.end(), 0);
  std::size_t count = 0;
  while (count < order.size() && amplitudes[order[count]] > 0) ++count;
  math::fill_water(
      count, keep, [&](std::size_t i) { return amplitudes[order[i]]; },
      [&](std::size_t i) -> std::uint64_t& { return probabilities[order[i]]; });
}

}  // namespace atomo::cpu
