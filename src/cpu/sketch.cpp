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

#include <algorithm>
#include <bit>
#include <cmath>

#include "coding/marks.hpp"
#include "core/philox.hpp"
#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "cpu/reduce.hpp"
#include "cpu/sketch_basis.hpp"
#include "cpu/sketch_start.hpp"
#include "math/residual_rms.hpp"
#include "math/sketch_scale.hpp"
#include "math/sparse_start.hpp"

namespace atomo::cpu {
namespace {

using core::Carver;
using core::run_ranges;

constexpr std::size_t kMaxSide = std::size_t{1} << 22, kMaxShorter = std::size_t{1} << 14;
constexpr unsigned kMostIterations = 8;

/// Rows and columns of the products that one task takes; kept rows of the residual; pairs.
constexpr std::size_t kRowBlock = 128, kColumnBlock = 256, kKeptBlock = 64, kScaledPairs = 8;

int to_int(std::size_t n) noexcept { return static_cast<int>(n); }

struct SketchMemory {
  std::span<float> left, right;  ///< rows x r and columns x r
  SparseStart start;
  BasisMemory basis;
  std::span<double> squares;           ///< a row
  std::span<std::uint64_t> marks;      ///< a bit a row
  std::span<std::uint32_t> kept_rows;  ///< of `subtract_pairs`, which also uses `left`

  SketchMemory(Carver& carver, const MatrixShape& shape, std::size_t r) noexcept
      : left(carver.take<float>(shape.rows * r)),
        right(carver.take<float>(shape.columns * r)),
        start{shape.columns, r, carver.take<float>(shape.columns),
              carver.take<std::uint32_t>(math::start_groups(shape.columns, r))},
        basis(carver, r),
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
  const math::SketchScale scale = math::sketch_scale(exponent);
  exponent = scale.exponent;
  return scale.sketches;
}

/// out (r x n) = W x^T, x of n x r.
void rotate(const float* w, const float* x, std::size_t n, std::size_t r, Executor* executor,
            float* out) noexcept {
  run_ranges(executor, n, kColumnBlock, [&](std::size_t begin, std::size_t end) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, to_int(r), to_int(end - begin), to_int(r),
                1.0f, w, to_int(r), x + begin * r, to_int(r), 0.0f, out + begin, to_int(n));
  });
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
void make_pairs(const Matrix& matrix, std::size_t r, const SketchMemory& memory,
                SingularPairs& pairs) noexcept {
  const MatrixShape& shape = matrix.shape;
  const std::size_t m = shape.shorter(), n = shape.longer();
  std::fill(pairs.shorter.begin() + static_cast<std::ptrdiff_t>(r * m), pairs.shorter.end(), 0.0f);
  std::fill(pairs.longer.begin() + static_cast<std::ptrdiff_t>(r * n), pairs.longer.end(), 0.0f);
  std::fill(pairs.sigma.begin() + static_cast<std::ptrdiff_t>(r), pairs.sigma.end(), 0.0);
  std::fill(memory.squares.begin(), memory.squares.end(), 0.0);
  if (r == 0) return;
  find_rotation(memory.basis, {memory.left.data(), shape.rows, r, nullptr, matrix.executor});
  float* const of_row = of_rows(shape, pairs).data();
  rotate(memory.basis.block.data(), memory.left.data(), shape.rows, r, matrix.executor, of_row);
  rotate(memory.basis.block.data(), memory.right.data(), shape.columns, r, matrix.executor,
         of_columns(shape, pairs).data());
  run_ranges(matrix.executor, shape.rows, kColumnBlock, [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = 0; k < r; ++k) {
      for (std::size_t i = begin; i < end; ++i) {
        const auto entry = static_cast<double>(of_row[k * shape.rows + i]);
        memory.squares[i] += entry * entry;
      }
    }
  });
  run_ranges(matrix.executor, r, kScaledPairs, [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) {
      float* const u = pairs.shorter.data() + k * m;
      float* const v = pairs.longer.data() + k * n;
      // Of a wide matrix sigma is still with u.
      const auto norm = static_cast<float>(std::sqrt(sum_squares(u, m)));
      const float inverse = norm > 0 ? 1 / norm : 0;
      for (std::size_t i = 0; i < m; ++i) u[i] *= inverse;
      for (std::size_t j = 0; j < n; ++j) v[j] *= norm;
      pairs.sigma[k] = std::ldexp(std::sqrt(sum_squares(v, n)), pairs.exponent);
    }
  });
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
  run_ranges(g.executor, count, kKeptBlock, [&](std::size_t begin, std::size_t end) {
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
  const double unit = std::ldexp(1.0, 2 * pairs.exponent), error = math::square_error(columns);
  std::fill(memory.marks.begin(), memory.marks.end(), std::uint64_t{0});
  for (std::size_t i = 0; i < g.shape.rows; ++i) {
    const auto found = math::residual_rms(rms[i], unit * memory.squares[i], columns, error);
    residual_rms[i] = found.rms;
    if (!found.has_digits) memory.marks[i / 64] |= std::uint64_t{1} << (i % 64);
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
  make_pairs(scaled, r, memory, pairs);
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
  sketch_matrix(
      {g, shape, executor}, rms, memory, pairs, residual, residual_rms, [&](const Matrix& matrix) {
        float* const left = memory.left.data();
        float* const right = memory.right.data();
        memory.start.draw(Philox(key, Purpose::sketch_omega));
        matrix.times(memory.start, left);
        std::size_t r = options.rank;
        for (unsigned i = 0; i < options.iterations; ++i) {
          if (i > 0) matrix.times(right, r, left);
          r = condition(memory.basis,
                        {left, shape.rows, r, of_rows(shape, pairs).data(), executor});
          if (r == 0) break;
          matrix.transposed_times(left, r, right);
          r = find_basis(memory.basis,
                         {right, shape.columns, r, of_columns(shape, pairs).data(), executor});
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
                  std::fill(memory.basis.correction.begin(), memory.basis.correction.end(), 0.0f);
                  for (std::size_t k = 0; k < r; ++k) memory.basis.correction[k * r + k] = 1;
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
