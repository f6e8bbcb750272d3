// SPDX-License-Identifier: Apache-2.0
/// Thin products through BLAS in f32; everything of the size of the sketch alone, where digits
/// count, in f64.
///
/// With A the matrix oriented m x n, m its shorter side: Y = A (A^T Omega); Q spans Y; B = Q^T A;
/// B B^T = W^T diag(s^2) W; u_k = Q w_k, sigma_k v_k = B^T w_k, without a division, so zero and
/// equal singular values need no care. A - sum_k u_k (sigma_k v_k)^T is what is left, whatever Q
/// is.

#include "cpu/sketch.hpp"

#include <cblas.h>
#include <lapacke.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "core/philox.hpp"
#include "core/workspace.hpp"

namespace atomo::cpu {
namespace {

using core::Carver;

constexpr std::size_t kMaxSide = std::size_t{1} << 22, kMaxShorter = std::size_t{1} << 14;
constexpr unsigned kMostIterations = 8;
/// Entries of at least 2 to this are left to the residual.
constexpr int kLargestExponent = 120;
/// Up to here, either way, fourth powers of entries are far from both ends of f32: no scaling.
constexpr int kPlainExponent = 24;
/// A pivot below this part of its column's squared norm is rounding: the columns of Y are f32.
constexpr double kLeastPivot = 1e-13;

int to_int(std::size_t n) noexcept { return static_cast<int>(n); }

/// Workspace of `dsyevd`, in doubles and integers.
constexpr std::size_t solver_doubles(std::size_t r) noexcept { return 1 + 6 * r + 2 * r * r; }
constexpr std::size_t solver_integers(std::size_t r) noexcept { return 3 + 5 * r; }

struct SketchMemory {
  std::span<float> shorter, longer;  ///< m x r and n x r, then r x n
  std::span<double> basis;           ///< m x r
  std::span<float> small;            ///< r x r
  std::span<double> gram;            ///< r x r
  std::span<double> values, solver;
  std::span<lapack_int> integers;
  std::span<std::size_t> order;  ///< r

  SketchMemory(Carver& carver, const MatrixShape& shape, std::size_t r) noexcept
      : shorter(carver.take<float>(shape.shorter() * r)),
        longer(carver.take<float>(shape.longer() * r)),
        basis(carver.take<double>(shape.shorter() * r)),
        small(carver.take<float>(r * r)),
        gram(carver.take<double>(r * r)),
        values(carver.take<double>(r)),
        solver(carver.take<double>(solver_doubles(r))),
        integers(carver.take<lapack_int>(solver_integers(r))),
        order(carver.take<std::size_t>(r)) {}
};

/// The matrix A, m x n, as it lies in memory: itself (wide), or its transpose.
class Matrix {
 public:
  Matrix(std::span<float> entries, const MatrixShape& shape) noexcept
      : a_(entries.data()),
        wide_(shape.rows <= shape.columns),
        m_(to_int(shape.shorter())),
        n_(to_int(shape.longer())),
        stride_(to_int(shape.columns)) {}

  /// z (n x r) = A^T x, x of m x r.
  void transposed_times(const float* x, int r, float* z) const noexcept {
    cblas_sgemm(CblasRowMajor, wide_ ? CblasTrans : CblasNoTrans, CblasNoTrans, n_, r, m_, 1.0f, a_,
                stride_, x, r, 0.0f, z, r);
  }
  /// y (m x r) = A z, z of n x r.
  void times(const float* z, int r, float* y) const noexcept {
    cblas_sgemm(CblasRowMajor, wide_ ? CblasNoTrans : CblasTrans, CblasNoTrans, m_, r, n_, 1.0f, a_,
                stride_, z, r, 0.0f, y, r);
  }
  /// b (r x n) = q^T A, q of m x r.
  void project(const float* q, int r, float* b) const noexcept {
    cblas_sgemm(CblasRowMajor, CblasTrans, wide_ ? CblasNoTrans : CblasTrans, r, n_, m_, 1.0f, q, r,
                a_, stride_, 0.0f, b, n_);
  }
  /// A -= u^T v, u of r x m, v of r x n.
  void subtract(const float* u, const float* v, int r) const noexcept {
    const float* const left = wide_ ? u : v;
    const float* const right = wide_ ? v : u;
    const int rows = wide_ ? m_ : n_;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, rows, stride_, r, -1.0f, left, rows, right,
                stride_, 1.0f, a_, stride_);
  }

 private:
  float* a_;
  bool wide_;
  int m_, n_, stride_;
};

/// x 2^exponent, exact unless it leaves the range of f32; in two steps, for the power may leave it.
void scale_by(std::span<float> x, int exponent) noexcept {
  if (exponent == 0) return;
  const float first = std::ldexp(1.0f, exponent / 2);
  const float second = std::ldexp(1.0f, exponent - exponent / 2);
  for (float& value : x) value = value * first * second;
}

/// Copies g 2^-exponent, its largest entry far from both ends of f32. False when the pairs must be
/// zero.
bool copy_scaled(const float* g, std::span<float> scaled, int& exponent) noexcept {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    bits = std::max(bits, std::bit_cast<std::uint32_t>(g[i]) & 0x7FFFFFFFu);
    scaled[i] = g[i];
  }
  const auto largest = std::bit_cast<float>(bits);
  exponent = 0;
  if (largest > 0) std::frexp(largest, &exponent);
  const bool sketches = largest > 0 && exponent <= kLargestExponent;
  if (!sketches || std::abs(exponent) <= kPlainExponent) exponent = 0;
  scale_by(scaled, -exponent);
  return sketches;
}

/// Entries uniform in [-1, 1).
void draw_start(const Key& key, std::span<float> omega) noexcept {
  const Philox draws(key, Purpose::sketch_omega);
  for (std::size_t i = 0; i < omega.size(); i += 4) {
    const PhiloxWords words = draws(i / 4);
    for (std::size_t k = 0; k < 4 && i + k < omega.size(); ++k)
      omega[i + k] = static_cast<float>(static_cast<std::int32_t>(words[k])) * 0x1p-31f;
  }
}

/// Upper Cholesky factor of a Gram matrix, in place. A column that depends on those before it gets
/// a row and a column of the identity, and `rank_deficient(column)` is called.
template <typename Visit>
void cholesky(std::span<double> gram, std::span<double> diagonal, std::size_t r,
              Visit rank_deficient) noexcept {
  for (std::size_t k = 0; k < r; ++k) diagonal[k] = gram[k * r + k];
  for (std::size_t j = 0; j < r; ++j) {
    double* const row = gram.data() + j * r;
    if (!(row[j] > kLeastPivot * diagonal[j])) {
      std::fill(row + j, row + r, 0.0);
      row[j] = 1;
      rank_deficient(j);
      continue;
    }
    row[j] = std::sqrt(row[j]);
    for (std::size_t k = j + 1; k < r; ++k) row[k] /= row[j];
    for (std::size_t i = j + 1; i < r; ++i) {
      double* const below = gram.data() + i * r;
      for (std::size_t k = i; k < r; ++k) below[k] -= row[i] * row[k];
    }
  }
}

/// Makes the columns of the basis orthonormal, those that depend on others zero. Once leaves
/// 1e-16 times the squared condition number (at most 1e14 here), twice the f64 unit.
void orthonormalise(const SketchMemory& memory, std::size_t m, std::size_t r) noexcept {
  double* const basis = memory.basis.data();
  for (int pass = 0; pass < 2; ++pass) {
    cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, to_int(r), to_int(m), 1.0, basis, to_int(r),
                0.0, memory.gram.data(), to_int(r));
    for (std::size_t k = 0; k < r; ++k) memory.solver[k] = 1;
    cholesky(memory.gram, memory.values, r, [&](std::size_t k) { memory.solver[k] = 0; });
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasUpper, CblasNoTrans, CblasNonUnit, to_int(m),
                to_int(r), 1.0, memory.gram.data(), to_int(r), basis, to_int(r));
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t k = 0; k < r; ++k) basis[i * r + k] *= memory.solver[k];
    }
  }
}

/// order = 0..r-1, the directions that B has something of first. Returns how many these are.
std::size_t order_directions(const SketchMemory& memory, std::size_t r) noexcept {
  std::size_t held = 0, last = r;
  for (std::size_t i = 0; i < r; ++i)
    memory.order[memory.small[i * r + i] > 0 ? held++ : --last] = i;
  return held;
}

/// small = the eigenvectors of B B^T, one a row, the largest eigenvalue first; the identity when
/// the solver fails, which costs variance alone. Zero rows of B stay out of the solver, whose
/// rounding would mix them with others of next to nothing.
void rotate(const SketchMemory& memory, const float* b, std::size_t n, std::size_t r) noexcept {
  const std::span<float> small = memory.small;
  const std::span<double> gram = memory.gram;
  cblas_ssyrk(CblasRowMajor, CblasUpper, CblasNoTrans, to_int(r), to_int(n), 1.0f, b, to_int(n),
              0.0f, small.data(), to_int(r));
  const std::size_t held = order_directions(memory, r);
  for (std::size_t i = 0; i < held; ++i) {
    for (std::size_t k = i; k < held; ++k)
      gram[i * held + k] = small[memory.order[i] * r + memory.order[k]];
  }
  // Row-major upper is column-major lower; eigenvector k is then `held` consecutive values.
  const lapack_int info =
      held == 0 ? 0
                : LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', to_int(held), gram.data(),
                                      to_int(held), memory.values.data(), memory.solver.data(),
                                      to_int(memory.solver.size()), memory.integers.data(),
                                      to_int(memory.integers.size()));
  std::fill(small.begin(), small.end(), 0.0f);
  for (std::size_t k = 0; k < r; ++k) {
    if (info != 0 || k >= held) {
      small[k * r + memory.order[k]] = 1;
      continue;
    }
    const double* const vector = gram.data() + (held - 1 - k) * held;
    for (std::size_t i = 0; i < held; ++i)
      small[k * r + memory.order[i]] = static_cast<float>(vector[i]);
  }
}

void multiply_small(const float* left, CBLAS_TRANSPOSE transpose, const float* right,
                    std::size_t columns, std::size_t r, float* out) noexcept {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose, to_int(r), to_int(columns), to_int(r), 1.0f,
              left, to_int(r), right, to_int(transpose == CblasNoTrans ? columns : r), 0.0f, out,
              to_int(columns));
}

double norm(const float* x, std::size_t n) noexcept {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::sqrt(sum);
}

bool supports(const MatrixShape& shape, const SketchOptions& options) noexcept {
  return shape.shorter() >= 1 && shape.shorter() <= kMaxShorter && shape.longer() <= kMaxSide &&
         options.rank >= 1 && options.rank <= std::min(shape.shorter(), kMaxSketchRank) &&
         options.iterations >= 1 && options.iterations <= kMostIterations;
}

void clear(SingularPairs& pairs) noexcept {
  std::fill(pairs.shorter.begin(), pairs.shorter.end(), 0.0f);
  std::fill(pairs.longer.begin(), pairs.longer.end(), 0.0f);
  std::fill(pairs.sigma.begin(), pairs.sigma.end(), 0.0);
}

/// From the basis in memory.shorter to pairs, and to what they leave of the matrix.
void split(const Matrix& matrix, const MatrixShape& shape, std::size_t r,
           const SketchMemory& memory, SingularPairs& pairs) noexcept {
  const std::size_t n = shape.longer();
  float* const b = memory.longer.data();
  matrix.project(memory.shorter.data(), to_int(r), b);
  rotate(memory, b, n, r);
  multiply_small(memory.small.data(), CblasTrans, memory.shorter.data(), shape.shorter(), r,
                 pairs.shorter.data());
  multiply_small(memory.small.data(), CblasNoTrans, b, n, r, pairs.longer.data());
  matrix.subtract(pairs.shorter.data(), pairs.longer.data(), to_int(r));
  for (std::size_t k = 0; k < r; ++k)
    pairs.sigma[k] = std::ldexp(norm(pairs.longer.data() + k * n, n), pairs.exponent);
}

}  // namespace

std::size_t sketch_workspace_bytes(const MatrixShape& shape, std::size_t rank) noexcept {
  Carver carver;
  SketchMemory(carver, shape, rank);
  return carver.bytes();
}

Status sketch_onto(const float* g, const MatrixShape& shape, std::span<const float> basis,
                   SingularPairs& pairs, std::span<float> residual, Bytes workspace) noexcept {
  const std::size_t r = shape.shorter() == 0 ? 0 : basis.size() / shape.shorter();
  if (!supports(shape, {r, 1}) || basis.size() != r * shape.shorter()) return Status::unsupported;
  Carver carver(workspace);
  const SketchMemory memory(carver, shape, r);
  if (!carver.fits()) return Status::workspace_too_small;
  if (copy_scaled(g, residual, pairs.exponent)) {
    std::copy(basis.begin(), basis.end(), memory.shorter.begin());
    split(Matrix(residual, shape), shape, r, memory, pairs);
    scale_by(residual, pairs.exponent);
  } else {
    clear(pairs);
  }
  return Status::ok;
}

Status sketch(const float* g, const MatrixShape& shape, const SketchOptions& options,
              const Key& key, SingularPairs& pairs, std::span<float> residual,
              Bytes workspace) noexcept {
  if (!supports(shape, options)) return Status::unsupported;
  const std::size_t r = options.rank;
  Carver carver(workspace);
  const SketchMemory memory(carver, shape, r);
  if (!carver.fits()) return Status::workspace_too_small;
  if (!copy_scaled(g, residual, pairs.exponent)) {
    clear(pairs);
    return Status::ok;
  }
  const Matrix matrix(residual, shape);
  draw_start(key, memory.shorter);
  for (unsigned i = 0; i < options.iterations; ++i) {
    matrix.transposed_times(memory.shorter.data(), to_int(r), memory.longer.data());
    matrix.times(memory.longer.data(), to_int(r), memory.shorter.data());
    std::copy(memory.shorter.begin(), memory.shorter.end(), memory.basis.begin());
    orthonormalise(memory, shape.shorter(), r);
    std::transform(memory.basis.begin(), memory.basis.end(), memory.shorter.begin(),
                   [](double q) { return static_cast<float>(q); });
  }
  split(matrix, shape, r, memory, pairs);
  scale_by(residual, pairs.exponent);
  return Status::ok;
}

}  // namespace atomo::cpu
