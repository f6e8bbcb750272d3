// SPDX-License-Identifier: Apache-2.0
/// Gram matrices and products in f32, their factors in f64; eigenvectors in f32, for whatever a basis
/// lacks is in the residual.
#include "cpu/sketch_basis.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

#include "core/run_tasks.hpp"

namespace atomo::cpu {
namespace {

using core::run_ranges;

/// First pass: on the diagonal of a Gram matrix of columns of norm 1, more than the rounding of its
/// f32 products. A column of which less is new comes out short instead of wrong; the second pass
/// sees what is left of it. Where there is one pass, a column of which less than `kLeastRest` is new
/// is rounding alone.
constexpr double kShift = 0x1p-18, kLeastRest = 0x1p-22;
/// Second pass: a column that is this short, or of which so little is new, is rounding alone.
constexpr double kLeastSquare = 0x1p-24, kLeastPivot = 0x1p-2;

int to_int(std::size_t n) noexcept { return static_cast<int>(n); }

/// Workspace of `ssyevd`, in f32 and integers.
constexpr std::size_t solver_floats(std::size_t r) noexcept { return 1 + 6 * r + 2 * r * r; }
constexpr std::size_t solver_integers(std::size_t r) noexcept { return 3 + 5 * r; }

/// small = the upper Gram matrix of the columns of x: sums of up to kGramParts stretches of rows, in
/// their order.
void find_gram(const BasisMemory& memory, const ThinMatrix& x) noexcept {
  const std::size_t square = x.r * x.r;
  const std::size_t rows = std::max(kGramRows, (x.n + kGramParts - 1) / kGramParts);
  run_ranges(x.executor, x.n, rows, [&](std::size_t begin, std::size_t end) {
    float* const part = begin == 0 ? memory.small.data() : &memory.parts[begin / rows * square];
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, to_int(x.r), to_int(end - begin), 1.0f,
                x.x + begin * x.r, to_int(x.r), 0.0f, part, to_int(x.r));
  });
  for (std::size_t begin = rows; begin < x.n; begin += rows) {
    const float* const part = &memory.parts[begin / rows * square];
    for (std::size_t i = 0; i < x.r; ++i) {
      for (std::size_t k = i; k < x.r; ++k) memory.small[i * x.r + k] += part[i * x.r + k];
    }
  }
}

/// The columns of x (n x r) made orthonormal by Cholesky factors of their Gram matrix, scaled to a
/// diagonal of ones (Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, "Roundoff error analysis of the
/// CholeskyQR2 algorithm", 2015; with a shift: Fukaya and others, "Shifted Cholesky QR for computing
/// the QR factorization of ill-conditioned matrices", 2020).
class Columns {
 public:
  Columns(const BasisMemory& memory, const ThinMatrix& x) noexcept
      : memory_(memory), x_(x), r_(x.r) {}

  [[nodiscard]] std::size_t count() const noexcept { return r_; }

  /// Finds the factor, with `shift` on the diagonal. Columns whose squared norm is not above
  /// `least_square`, or of which less than `least_pivot` is new, are dropped.
  void factor(double shift, double least_square, double least_pivot) noexcept {
    find_gram(memory_, {x_.x, x_.n, r_, x_.scratch, x_.executor});
    for (std::size_t k = 0; k < r_; ++k) {
      const double square = memory_.small[k * r_ + k];
      memory_.scale[k] = square > least_square ? 1 / std::sqrt(square) : 0;
    }
    while (!try_to_factor(shift, least_pivot)) {
    }
  }

  /// correction (r x r) = what makes the columns orthonormal, zero columns for the dropped.
  void invert() noexcept {
    for (std::size_t i = 0; i < r_ * r_; ++i) {
      memory_.small[i] = static_cast<float>(memory_.gram[i]);
      memory_.correction[i] = 0;
    }
    for (std::size_t i = 0; i < r_; ++i) memory_.correction[i * r_ + i] = dropped(i) ? 0 : 1;
    cblas_strsm(CblasRowMajor, CblasLeft, CblasUpper, CblasNoTrans, CblasNonUnit, to_int(r_),
                to_int(r_), 1.0f, memory_.small.data(), to_int(r_), memory_.correction.data(),
                to_int(r_));
    for (std::size_t i = 0; i < r_; ++i) {
      const auto scale = static_cast<float>(memory_.scale[i]);
      for (std::size_t k = i; k < r_; ++k) memory_.correction[i * r_ + k] *= scale;
    }
  }

  /// x times the correction.
  void apply() noexcept {
    run_ranges(x_.executor, x_.n, kBasisBlock, [&](std::size_t begin, std::size_t end) {
      float* const here = x_.x + begin * r_;
      float* const there = x_.scratch + begin * r_;
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, to_int(end - begin), to_int(r_),
                  to_int(r_), 1.0f, here, to_int(r_), memory_.correction.data(), to_int(r_), 0.0f,
                  there, to_int(r_));
      std::copy_n(there, (end - begin) * r_, here);
    });
  }

  /// Leaves the dropped columns out of x. Whether there were any.
  bool compact() noexcept {
    std::size_t kept = 0;
    for (std::size_t k = 0; k < r_; ++k) kept += dropped(k) ? 0 : 1;
    if (kept == r_) return false;
    float* to = x_.x;
    for (std::size_t i = 0; i < x_.n; ++i) {
      for (std::size_t k = 0; k < r_; ++k) {
        if (!dropped(k)) *to++ = x_.x[i * r_ + k];
      }
    }
    r_ = kept;
    return true;
  }

 private:
  [[nodiscard]] bool dropped(std::size_t k) const noexcept { return memory_.scale[k] == 0; }

  /// gram = the upper factor of the scaled Gram matrix; false when a column was dropped instead.
  bool try_to_factor(double shift, double least_pivot) noexcept {
    double* const gram = memory_.gram.data();
    for (std::size_t i = 0; i < r_; ++i) {
      for (std::size_t k = i + 1; k < r_; ++k)
        gram[i * r_ + k] = memory_.small[i * r_ + k] * memory_.scale[i] * memory_.scale[k];
      gram[i * r_ + i] = 1 + shift;
    }
    // Row-major upper is column-major lower.
    const lapack_int stuck =
        LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'L', to_int(r_), gram, to_int(r_));
    if (stuck > 0) {
      memory_.scale[static_cast<std::size_t>(stuck - 1)] = 0;
      return false;
    }
    for (std::size_t k = 0; k < r_; ++k) {
      if (dropped(k) || gram[k * r_ + k] * gram[k * r_ + k] - shift >= least_pivot) continue;
      memory_.scale[k] = 0;
      return false;
    }
    return true;
  }

  BasisMemory memory_;
  ThinMatrix x_;
  std::size_t r_;
};

}  // namespace

BasisMemory::BasisMemory(core::Carver& carver, std::size_t r) noexcept
    : block(carver.take<float>(r * r)),
      small(carver.take<float>(r * r)),
      correction(carver.take<float>(r * r)),
      parts(carver.take<float>(kGramParts * r * r)),
      gram(carver.take<double>(r * r)),
      scale(carver.take<double>(r)),
      values(carver.take<float>(r)),
      solver(carver.take<float>(solver_floats(r))),
      integers(carver.take<lapack_int>(solver_integers(r))) {}

std::size_t condition(const BasisMemory& memory, ThinMatrix x) noexcept {
  Columns columns(memory, x);
  columns.factor(kShift, 0, kLeastRest);
  columns.invert();
  columns.apply();
  columns.compact();
  return columns.count();
}

std::size_t find_basis(const BasisMemory& memory, ThinMatrix x) noexcept {
  Columns columns(memory, x);
  columns.factor(kShift, 0, 0);
  columns.invert();
  columns.apply();
  do {
    columns.factor(0, kLeastSquare, kLeastPivot);
  } while (columns.compact() && columns.count() > 0);
  if (columns.count() > 0) columns.invert();
  return columns.count();
}

void find_rotation(const BasisMemory& memory, const ThinMatrix& k) noexcept {
  const std::size_t r = k.r;
  const int size = to_int(r);
  float* const small = memory.small.data();
  float* const block = memory.block.data();
  const float* const correction = memory.correction.data();
  find_gram(memory, k);
  cblas_ssymm(CblasRowMajor, CblasLeft, CblasUpper, size, size, 1.0f, small, size, correction, size,
              0.0f, block, size);
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, size, size, size, 1.0f, correction, size,
              block, size, 0.0f, small, size);
  // Row-major upper is column-major lower; eigenvector k is then r consecutive values, the least
  // first.
  const lapack_int info = LAPACKE_ssyevd_work(
      LAPACK_COL_MAJOR, 'V', 'L', size, small, size, memory.values.data(), memory.solver.data(),
      to_int(memory.solver.size()), memory.integers.data(), to_int(memory.integers.size()));
  if (info != 0) {
    std::fill_n(small, r * r, 0.0f);
    for (std::size_t i = 0; i < r; ++i) small[i * r + i] = 1;
  } else {
    for (std::size_t i = 0; i < r / 2; ++i)
      std::swap_ranges(small + i * r, small + (i + 1) * r, small + (r - 1 - i) * r);
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size, size, size, 1.0f, small, size,
              correction, size, 0.0f, block, size);
}

}  // namespace atomo::cpu
