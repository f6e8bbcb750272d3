// SPDX-License-Identifier: Apache-2.0
/// Thin products through BLAS in f32, cut into blocks that depend on the shape alone, so that an
/// executor's threads change no bit; factors of small matrices in f64.
///
/// With T the matrix as it lies, and S sparse and random: Y = T S; Q spans Y; Z = T^T Q; P spans Z;
/// K = T P; K^T K = W^T diag(sigma^2) W; the pairs are K w_k and P w_k. Two products with the whole
/// matrix. P is a basis of rows, so by Pythagoras the squared norm of row i of T - K P^T is
/// |t_i|^2 - |k_i|^2: rows are needed only where they are kept. Where almost nothing is left of a
/// row, the difference has no digits and the row is computed.

#include "cpu/sketch.hpp"

#include <cblas.h>
#include <lapacke.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "coding/marks.hpp"
#include "core/philox.hpp"
#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "cpu/reduce.hpp"
#include "cpu/sketch_start.hpp"

namespace atomo::cpu {
namespace {

using core::Carver;
using core::run_ranges;

constexpr std::size_t kMaxSide = std::size_t{1} << 22, kMaxShorter = std::size_t{1} << 14;
constexpr unsigned kMostIterations = 8;
/// Rows whose norm is at least 2 to this are left to the residual.
constexpr int kLargestExponent = 120;
/// Up to here, either way, fourth powers of entries are far from both ends of f32: no scaling.
constexpr int kPlainExponent = 24;

/// Rows and columns of the products that one task takes.
constexpr std::size_t kRowBlock = 128, kColumnBlock = 256;

/// First pass: on the diagonal of a Gram matrix of columns of norm 1, more than the rounding of its
/// f32 products. A column of which less is new comes out short instead of wrong; the second pass
/// sees what is left of it. Where there is one pass, a column of which less than `kLeastRest` is new
/// is rounding alone.
constexpr double kShift = 0x1p-18, kLeastRest = 0x1p-22;
/// Second pass: a column that is this short, or of which so little is new, is rounding alone.
constexpr double kLeastSquare = 0x1p-24, kLeastPivot = 0x1p-2;

/// What f32 products make the squared norm of a row's residual wrong by, in units of the row's own:
/// twice the largest error seen. Sums of more than 2^14 products are less exact.
double square_error(std::size_t columns) noexcept {
  return 0x1p-18 * std::max(1.0, std::sqrt(static_cast<double>(columns) * 0x1p-14));
}
/// Of a row's norm: the rounding of a computed residual; and that of subnormal ones.
constexpr double kResidualError = 0x1p-20, kLeastResidual = 0x1p-149;

int to_int(std::size_t n) noexcept { return static_cast<int>(n); }

/// Workspace of `ssyevd`, in f32 and integers.
constexpr std::size_t solver_floats(std::size_t r) noexcept { return 1 + 6 * r + 2 * r * r; }
constexpr std::size_t solver_integers(std::size_t r) noexcept { return 3 + 5 * r; }

struct SketchMemory {
  std::span<float> left, right;  ///< rows x r and columns x r
  SparseStart start;
  std::span<float> block;              ///< kRowBlock x r, and at least r x r
  std::span<float> small, correction;  ///< r x r
  std::span<double> gram, scale;       ///< r x r and r
  std::span<float> values, solver;
  std::span<lapack_int> integers;
  std::span<double> squares;           ///< a row
  std::span<std::uint64_t> marks;      ///< a bit a row
  std::span<std::uint32_t> kept_rows;  ///< of `subtract_pairs`, which also uses `left`

  SketchMemory(Carver& carver, const MatrixShape& shape, std::size_t r) noexcept
      : left(carver.take<float>(shape.rows * r)),
        right(carver.take<float>(shape.columns * r)),
        start{shape.columns, r, carver.take<float>(shape.columns),
              carver.take<std::uint32_t>(SparseStart::groups(shape.columns, r))},
        block(carver.take<float>(std::max(kRowBlock, r) * r)),
        small(carver.take<float>(r * r)),
        correction(carver.take<float>(r * r)),
        gram(carver.take<double>(r * r)),
        scale(carver.take<double>(r)),
        values(carver.take<float>(r)),
        solver(carver.take<float>(solver_floats(r))),
        integers(carver.take<lapack_int>(solver_integers(r))),
        squares(carver.take<double>(shape.rows)),
        marks(carver.take<std::uint64_t>(coding::marks_words(shape.rows))),
        kept_rows(carver.take<std::uint32_t>(shape.rows)) {}
};

/// The matrix T as it lies in memory.
struct Matrix {
  const float* entries;
  MatrixShape shape;
  Executor* executor;

  /// z (columns x r) = T^T y, y of rows x r.
  void transposed_times(const float* y, std::size_t r, float* z) const noexcept {
    run_ranges(executor, shape.columns, kColumnBlock, [&](std::size_t begin, std::size_t end) {
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, to_int(end - begin), to_int(r),
                  to_int(shape.rows), 1.0f, entries + begin, to_int(shape.columns), y, to_int(r),
                  0.0f, z + begin * r, to_int(r));
    });
  }
  /// k (rows x r) = T p, p of columns x r.
  void times(const float* p, std::size_t r, float* k) const noexcept {
    run_ranges(executor, shape.rows, kRowBlock, [&](std::size_t begin, std::size_t end) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, to_int(end - begin), to_int(r),
                  to_int(shape.columns), 1.0f, entries + begin * shape.columns,
                  to_int(shape.columns), p, to_int(r), 0.0f, k + begin * r, to_int(r));
    });
  }
  /// y (rows x rank) = T S.
  void times(const SparseStart& start, float* y) const noexcept {
    run_ranges(executor, shape.rows, kRowBlock, [&](std::size_t begin, std::size_t end) {
      multiply_start(entries + begin * shape.columns, end - begin, start, y + begin * start.rank);
    });
  }
};

/// x 2^exponent, exact unless it leaves the range of f32; in two steps, for the power may leave it.
void scale_by(std::span<float> x, int exponent) noexcept {
  if (exponent == 0) return;
  const float first = std::ldexp(1.0f, exponent / 2);
  const float second = std::ldexp(1.0f, exponent - exponent / 2);
  for (float& value : x) value = value * first * second;
}

/// The exponent of the power of two that the largest row's norm is just below, 0 where nothing needs
/// scaling. False when the pairs must be zero.
bool choose_exponent(std::span<const double> rms, const MatrixShape& shape,
                     int& exponent) noexcept {
  exponent = 0;
  const double largest = *std::max_element(rms.begin(), rms.end());
  if (!(largest > 0)) return false;
  std::frexp(largest * std::sqrt(static_cast<double>(shape.columns)), &exponent);
  const bool sketches = exponent <= kLargestExponent;
  if (!sketches || std::abs(exponent) <= kPlainExponent) exponent = 0;
  return sketches;
}

/// The columns of x (n x r) made orthonormal by Cholesky factors of their Gram matrix, scaled to a
/// diagonal of ones (Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, "Roundoff error analysis of the
/// CholeskyQR2 algorithm", 2015; with a shift: Fukaya and others, "Shifted Cholesky QR for computing
/// the QR factorization of ill-conditioned matrices", 2020).
class Columns {
 public:
  Columns(const SketchMemory& memory, float* x, std::size_t n, std::size_t r) noexcept
      : memory_(memory), x_(x), n_(n), r_(r) {}

  [[nodiscard]] std::size_t count() const noexcept { return r_; }

  /// Finds the factor, with `shift` on the diagonal. Columns whose squared norm is not above
  /// `least_square`, or of which less than `least_pivot` is new, are dropped.
  void factor(double shift, double least_square, double least_pivot) noexcept {
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, to_int(r_), to_int(n_), 1.0f, x_, to_int(r_),
                0.0f, memory_.small.data(), to_int(r_));
    for (std::size_t k = 0; k < r_; ++k) {
      const double square = memory_.small[k * r_ + k];
      memory_.scale[k] = square > least_square ? 1 / std::sqrt(square) : 0;
    }
    while (!try_to_factor(shift, least_pivot)) {
    }
  }

  /// correction (r x r) = what makes the columns orthonormal, zero columns for the dropped.
  void invert() noexcept {
    double* const gram = memory_.gram.data();
    static_cast<void>(
        LAPACKE_dtrtri_work(LAPACK_COL_MAJOR, 'L', 'N', to_int(r_), gram, to_int(r_)));
    for (std::size_t i = 0; i < r_; ++i) {
      for (std::size_t k = 0; k < r_; ++k) {
        const bool zero = k < i || dropped(k);
        memory_.correction[i * r_ + k] =
            zero ? 0.0f : static_cast<float>(memory_.scale[i] * gram[i * r_ + k]);
      }
    }
  }

  /// x times the correction.
  void apply() noexcept {
    for (std::size_t begin = 0; begin < n_; begin += kRowBlock) {
      const std::size_t rows = std::min(kRowBlock, n_ - begin);
      float* const here = x_ + begin * r_;
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, to_int(rows), to_int(r_), to_int(r_),
                  1.0f, here, to_int(r_), memory_.correction.data(), to_int(r_), 0.0f,
                  memory_.block.data(), to_int(r_));
      std::copy_n(memory_.block.data(), rows * r_, here);
    }
  }

  /// Leaves the dropped columns out of x. Whether there were any.
  bool compact() noexcept {
    std::size_t kept = 0;
    for (std::size_t k = 0; k < r_; ++k) kept += dropped(k) ? 0 : 1;
    if (kept == r_) return false;
    float* to = x_;
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t k = 0; k < r_; ++k) {
        if (!dropped(k)) *to++ = x_[i * r_ + k];
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

  SketchMemory memory_;
  float* x_;
  std::size_t n_, r_;
};

/// Makes the columns of x (n x r) nearly orthonormal: one pass. Columns of which little is new come
/// out short, and none stands for those of which nothing is. Returns how many there are.
std::size_t condition(const SketchMemory& memory, float* x, std::size_t n, std::size_t r) noexcept {
  Columns columns(memory, x, n, r);
  columns.factor(kShift, 0, kLeastRest);
  columns.invert();
  columns.apply();
  columns.compact();
  return columns.count();
}

/// The first of two passes over the columns of x (n x r), and the correction of the second: x times
/// it is a basis. Returns the columns of both.
std::size_t find_basis(const SketchMemory& memory, float* x, std::size_t n,
                       std::size_t r) noexcept {
  Columns columns(memory, x, n, r);
  columns.factor(kShift, 0, 0);
  columns.invert();
  columns.apply();
  do {
    columns.factor(0, kLeastSquare, kLeastPivot);
  } while (columns.compact() && columns.count() > 0);
  if (columns.count() > 0) columns.invert();
  return columns.count();
}

/// block = the rotation W (C w_k, one a row) that makes pairs of the columns of k (n x r) and of the
/// basis, with C the correction: w_k are the eigenvectors of (k C)^T (k C), the largest eigenvalue
/// first, and those of the identity when the solver fails, which costs variance alone.
void find_rotation(const SketchMemory& memory, const float* k, std::size_t n,
                   std::size_t r) noexcept {
  const int size = to_int(r);
  float* const small = memory.small.data();
  float* const block = memory.block.data();
  const float* const correction = memory.correction.data();
  cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, size, to_int(n), 1.0f, k, size, 0.0f, small,
              size);
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

/// out (r x n) = W x^T, x of n x r.
void rotate(const float* w, const float* x, std::size_t n, std::size_t r, float* out) noexcept {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, to_int(r), to_int(n), to_int(r), 1.0f, w,
              to_int(r), x, to_int(r), 0.0f, out, to_int(n));
}

bool supports(const MatrixShape& shape, const SketchOptions& options) noexcept {
  return shape.shorter() >= 1 && shape.shorter() <= kMaxShorter && shape.longer() <= kMaxSide &&
         options.rank >= 1 && options.rank <= std::min(shape.shorter(), kMaxSketchRank) &&
         options.iterations >= 1 && options.iterations <= kMostIterations;
}

bool is_wide(const MatrixShape& shape) noexcept { return shape.rows <= shape.columns; }
/// The vectors of the pairs along the rows' side and along the columns'.
std::span<float> of_rows(const MatrixShape& shape, const SingularPairs& pairs) noexcept {
  return is_wide(shape) ? pairs.shorter : pairs.longer;
}
std::span<float> of_columns(const MatrixShape& shape, const SingularPairs& pairs) noexcept {
  return is_wide(shape) ? pairs.longer : pairs.shorter;
}

void clear(SingularPairs& pairs) noexcept {
  std::fill(pairs.shorter.begin(), pairs.shorter.end(), 0.0f);
  std::fill(pairs.longer.begin(), pairs.longer.end(), 0.0f);
  std::fill(pairs.sigma.begin(), pairs.sigma.end(), 0.0);
}

/// From a basis, memory.right (columns x r) times the correction, and from T times it, of which
/// memory.left has what memory.right has of the basis, to pairs; the others are none. Leaves the
/// squared norms of the rows of T P in memory.squares.
void make_pairs(const MatrixShape& shape, std::size_t r, const SketchMemory& memory,
                SingularPairs& pairs) noexcept {
  const std::size_t m = shape.shorter(), n = shape.longer();
  std::fill(pairs.shorter.begin() + static_cast<std::ptrdiff_t>(r * m), pairs.shorter.end(), 0.0f);
  std::fill(pairs.longer.begin() + static_cast<std::ptrdiff_t>(r * n), pairs.longer.end(), 0.0f);
  std::fill(pairs.sigma.begin() + static_cast<std::ptrdiff_t>(r), pairs.sigma.end(), 0.0);
  std::fill(memory.squares.begin(), memory.squares.end(), 0.0);
  if (r == 0) return;
  find_rotation(memory, memory.left.data(), shape.rows, r);
  float* const of_row = of_rows(shape, pairs).data();
  rotate(memory.block.data(), memory.left.data(), shape.rows, r, of_row);
  rotate(memory.block.data(), memory.right.data(), shape.columns, r,
         of_columns(shape, pairs).data());
  for (std::size_t k = 0; k < r; ++k) {
    for (std::size_t i = 0; i < shape.rows; ++i) {
      const auto entry = static_cast<double>(of_row[k * shape.rows + i]);
      memory.squares[i] += entry * entry;
    }
    float* const u = pairs.shorter.data() + k * m;
    float* const v = pairs.longer.data() + k * n;
    // Of a wide matrix sigma is still with u.
    const double norm = std::sqrt(sum_squares(u, m)), inverse = norm > 0 ? 1 / norm : 0;
    for (std::size_t i = 0; i < m; ++i)
      u[i] = static_cast<float>(static_cast<double>(u[i]) * inverse);
    for (std::size_t j = 0; j < n; ++j) v[j] *= static_cast<float>(norm);
    pairs.sigma[k] = std::ldexp(std::sqrt(sum_squares(v, n)), pairs.exponent);
  }
}

/// The marked rows of what the pairs leave, one behind the other. Overwrites `left` and `kept_rows`.
void subtract_pairs(const Matrix& g, const SingularPairs& pairs,
                    std::span<const std::uint64_t> marks, const SketchMemory& memory,
                    float* residual) noexcept {
  const std::size_t columns = g.shape.columns, rows = g.shape.rows;
  std::size_t r = pairs.sigma.size(), count = 0;
  while (r > 0 && pairs.sigma[r - 1] == 0) --r;
  coding::for_each_mark(marks, [&](std::uint64_t row) {
    memory.kept_rows[count++] = static_cast<std::uint32_t>(row);
    return true;
  });
  const float* const along_rows = of_rows(g.shape, pairs).data();
  const float* const along_columns = of_columns(g.shape, pairs).data();
  run_ranges(g.executor, count, kRowBlock, [&](std::size_t begin, std::size_t end) {
    float* const out = residual + begin * columns;
    float* const left = memory.left.data() + begin * r;
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t row = memory.kept_rows[i];
      std::copy_n(g.entries + row * columns, columns, residual + i * columns);
      for (std::size_t k = 0; k < r; ++k) left[(i - begin) * r + k] = along_rows[k * rows + row];
    }
    if (r == 0) return;
    const std::span<float> block(out, (end - begin) * columns);
    scale_by(block, -pairs.exponent);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, to_int(end - begin), to_int(columns),
                to_int(r), -1.0f, left, to_int(r), along_columns, to_int(columns), 1.0f, out,
                to_int(columns));
    scale_by(block, pairs.exponent);
  });
}

/// The rms of each row of what the pairs leave: by Pythagoras from memory.squares, or computed.
void measure_residual(const Matrix& g, std::span<const double> rms, const SingularPairs& pairs,
                      const SketchMemory& memory, std::span<float> residual,
                      std::span<double> residual_rms) noexcept {
  const std::size_t columns = g.shape.columns;
  const auto entries = static_cast<double>(columns);
  const double unit = std::ldexp(1.0, 2 * pairs.exponent), error = square_error(columns);
  std::fill(memory.marks.begin(), memory.marks.end(), std::uint64_t{0});
  for (std::size_t i = 0; i < g.shape.rows; ++i) {
    const double square = rms[i] * rms[i] * entries;
    const double left = square - unit * memory.squares[i];
    const bool has_digits = left >= 2 * error * square;
    const double smallest = rms[i] > 0 ? kLeastResidual : 0;
    residual_rms[i] = smallest + (has_digits ? std::sqrt((left + error * square) / entries)
                                             : kResidualError * rms[i]);
    if (!has_digits) memory.marks[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  subtract_pairs(g, pairs, memory.marks, memory, residual.data());
  std::size_t place = 0;
  coding::for_each_mark(memory.marks, [&](std::uint64_t row) {
    const double square = sum_squares(residual.data() + place++ * columns, columns);
    residual_rms[row] += std::sqrt(square / entries);
    return true;
  });
}

/// Calls `find(matrix)`, which finds a basis of the matrix, scaled where it has to be: memory.right
/// and the correction; it returns the rank. Splits the matrix.
template <typename Find>
void sketch_matrix(const Matrix& g, std::span<const double> rms, const SketchMemory& memory,
                   SingularPairs& pairs, std::span<float> residual, std::span<double> residual_rms,
                   Find find) noexcept {
  if (!choose_exponent(rms, g.shape, pairs.exponent)) {
    clear(pairs);
    std::copy(rms.begin(), rms.end(), residual_rms.begin());
    return;
  }
  Matrix scaled = g;
  if (pairs.exponent != 0) {
    std::copy_n(g.entries, residual.size(), residual.begin());
    scale_by(residual, -pairs.exponent);
    scaled.entries = residual.data();
  }
  const std::size_t r = find(scaled);
  if (r > 0) scaled.times(memory.right.data(), r, memory.left.data());
  make_pairs(g.shape, r, memory, pairs);
  measure_residual(g, rms, pairs, memory, residual, residual_rms);
}

}  // namespace

std::size_t sketch_workspace_bytes(const MatrixShape& shape, std::size_t rank) noexcept {
  Carver carver;
  SketchMemory(carver, shape, rank);
  return carver.bytes();
}

Status sketch(const float* g, const MatrixShape& shape, const SketchOptions& options,
              const Key& key, std::span<const double> rms, SingularPairs& pairs,
              std::span<float> residual, std::span<double> residual_rms, Executor* executor,
              Bytes workspace) noexcept {
  if (!supports(shape, options)) return Status::unsupported;
  Carver carver(workspace);
  const SketchMemory memory(carver, shape, options.rank);
  if (!carver.fits()) return Status::workspace_too_small;
  sketch_matrix({g, shape, executor}, rms, memory, pairs, residual, residual_rms,
                [&](const Matrix& matrix) {
                  float* const left = memory.left.data();
                  float* const right = memory.right.data();
                  memory.start.draw(Philox(key, Purpose::sketch_omega));
                  matrix.times(memory.start, left);
                  std::size_t r = options.rank;
                  for (unsigned i = 0; i < options.iterations; ++i) {
                    if (i > 0) matrix.times(right, r, left);
                    r = condition(memory, left, shape.rows, r);
                    if (r == 0) break;
                    matrix.transposed_times(left, r, right);
                    r = find_basis(memory, right, shape.columns, r);
                    if (r == 0) break;
                  }
                  return r;
                });
  return Status::ok;
}

Status sketch_onto(const float* g, const MatrixShape& shape, std::span<const float> basis,
                   std::span<const double> rms, SingularPairs& pairs, std::span<float> residual,
                   std::span<double> residual_rms, Executor* executor, Bytes workspace) noexcept {
  const std::size_t r = shape.columns == 0 ? 0 : basis.size() / shape.columns;
  if (!supports(shape, {r, 1}) || basis.size() != r * shape.columns) return Status::unsupported;
  Carver carver(workspace);
  const SketchMemory memory(carver, shape, r);
  if (!carver.fits()) return Status::workspace_too_small;
  sketch_matrix({g, shape, executor}, rms, memory, pairs, residual, residual_rms,
                [&](const Matrix&) {
                  std::copy(basis.begin(), basis.end(), memory.right.begin());
                  std::fill(memory.correction.begin(), memory.correction.end(), 0.0f);
                  for (std::size_t k = 0; k < r; ++k) memory.correction[k * r + k] = 1;
                  return r;
                });
  return Status::ok;
}

Status residual_rows(const float* g, const MatrixShape& shape, const SingularPairs& pairs,
                     std::span<const std::uint64_t> marks, float* residual, Executor* executor,
                     Bytes workspace) noexcept {
  Carver carver(workspace);
  const SketchMemory memory(carver, shape, pairs.sigma.size());
  if (!carver.fits()) return Status::workspace_too_small;
  subtract_pairs({g, shape, executor}, pairs, marks, memory, residual);
  return Status::ok;
}

}  // namespace atomo::cpu
