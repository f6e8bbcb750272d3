// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The exact decomposition of layers into singular pairs (svd.cu), for the methods that send them.

#include "atomo/svd.hpp"
#include "cuda/cub.cuh"
#include "cuda/frame.cuh"

namespace atomo::cuda {

/// A layer that is a matrix, and its pairs: as SingularPairs, in descending order but for rounding.
struct SvdJob {
  Scratch<float> shorter;  ///< of pair k at k * shorter entries: unit vectors
  Scratch<float> longer;   ///< of pair k at k * longer entries: sigma v 2^-exponent
  Scratch<double> sigma;   ///< of pair k: sigma * unit
  double unit = 1;
  std::uint64_t rows = 0, columns = 0;
  std::uint32_t layer = 0;

  [[nodiscard]] __host__ __device__ MatrixShape shape() const { return {rows, columns}; }
};

/// One a job; zeroed.
struct SvdState {
  std::uint32_t largest = 0;  ///< magnitude of an entry, the bits of its f32
  int fault = 0;              ///< not 0: the solver found no eigenvectors
};

struct SvdPlan {
  Table<SvdJob> jobs;
  Split maxima;  ///< stretches of the jobs' entries
  Scratch<SvdState> states;
  Scratch<double> matrix, products;  ///< of one job at a time: its entries, and those rotated
  Scratch<double> basis, values;     ///< eigenvectors of the Gram matrix, eigenvalues
  [[nodiscard]] bool empty() const { return maxima.jobs == 0; }
};

/// Entries of a warp that looks for the largest.
inline constexpr std::uint64_t kMaximaUnit = 4096;

/// Plans the decomposition for jobs added in order.
class SvdPlanner {
 public:
  SvdPlanner(Layout& layout, std::size_t jobs) noexcept
      : layout_(layout), jobs_(layout.table<SvdJob>(jobs)), maxima_(layout, jobs) {}

  /// `sigma` is the caller's. Returns where the vectors are.
  SvdJob add(const MatrixShape& shape, std::uint32_t layer, Scratch<double> sigma,
             double unit) noexcept {
    const std::uint64_t m = shape.shorter(), n = shape.longer();
    const SvdJob job{layout_.scratch<float>(m * m),
                     layout_.scratch<float>(m * n),
                     sigma,
                     unit,
                     shape.rows,
                     shape.columns,
                     layer};
    if (!jobs_.values.empty()) jobs_.values[count_] = job;
    maxima_.add(divide_up(m * n, kMaximaUnit));
    entries_ = entries_ < m * n ? m * n : entries_;
    side_ = side_ < m ? m : side_;
    ++count_;
    return job;
  }
  [[nodiscard]] SvdPlan finish() noexcept {
    return {jobs_.place,
            maxima_.split(),
            layout_.zeroed<SvdState>(count_),
            layout_.scratch<double>(entries_),
            layout_.scratch<double>(entries_),
            layout_.scratch<double>(side_ * side_),
            layout_.scratch<double>(side_)};
  }

 private:
  Layout& layout_;
  Layout::NewTable<SvdJob> jobs_;
  SplitMaker maxima_;
  std::uint32_t count_ = 0;
  std::uint64_t entries_ = 0, side_ = 0;
};

/// Decomposes the layers of all jobs, one after another, through the queue's handles; marks those
/// that are not finite, whose pairs are zero. Five launches a layer beside the libraries' own.
void factorise(const SvdPlan& plan, const Frame& frame, Queue& queue);

/// Of the power of two that the job's largest entry is just below; 0 when all entries are zero.
__device__ inline std::int32_t exponent_of(const SvdState& state) {
  if (state.largest == 0) return 0;
  const auto largest = static_cast<double>(__uint_as_float(state.largest));
  return static_cast<std::int32_t>(__double_as_longlong(largest) >> 52) - 1022;
}
/// A normal f64.
__device__ inline double power_of_two(std::int32_t exponent) {
  return __longlong_as_double(static_cast<long long>(1023 + exponent) << 52);
}

}  // namespace atomo::cuda
