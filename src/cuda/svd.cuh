// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The exact decomposition of layers into singular pairs (svd.cu), for the methods that send them.

#include <algorithm>
#include <span>
#include <tuple>

#include "cuda/cub.cuh"
#include "cuda/frame.cuh"
#include "format/matrix.hpp"

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
};

/// Decomposed together: jobs of one shape, those at `first` and behind it in the plan's order.
struct Batch {
  std::uint32_t first = 0, count = 0;
};

struct SvdPlan {
  Table<SvdJob> jobs;
  Table<std::uint32_t> order;  ///< the jobs' numbers, those of one shape side by side
  Split maxima;                ///< stretches of the jobs' entries
  Scratch<SvdState> states;
  // Of a batch at a time, its members one behind another:
  Scratch<double> matrices, products;  ///< the entries, and those rotated
  Scratch<double> bases, values;       ///< eigenvectors of the Gram matrices, eigenvalues
  Scratch<int> faults;                 ///< not 0: the solver found no eigenvectors
  Scratch<std::byte> blas_room;        ///< kBlasBytes for cuBLAS, when aligned
  [[nodiscard]] bool empty() const { return maxima.jobs == 0; }
};

/// Entries that a batch of several matrices has at most, which bounds its memory: 32 MiB as f64.
inline constexpr std::uint64_t kBatchEntries = std::uint64_t{1} << 22;
/// A batch has at most so many matrices: cuSOLVER refuses more than some 32,000.
inline constexpr std::uint64_t kBatchMatrices = 16384;
/// cuBLAS takes this much by default, and more on the newest GPUs.
inline constexpr std::size_t kBlasBytes = std::size_t{4} << 20, kBlasAlignment = 256;

/// Entries of a warp that looks for the largest.
inline constexpr std::uint64_t kMaximaUnit = 4096;

/// Plans the decomposition for jobs added in order.
class SvdPlanner {
 public:
  SvdPlanner(Layout& layout, std::size_t jobs) noexcept
      : layout_(layout), jobs_(layout, jobs), order_(layout, jobs), maxima_(layout, jobs) {}

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
    order_.add(jobs_.add(job));
    maxima_.add(divide_up(m * n, kMaximaUnit));
    entries_ += m * n;
    largest_ = largest_ < m * n ? m * n : largest_;
    sides_ += m;
    return job;
  }
  [[nodiscard]] SvdPlan finish() noexcept {
    sort_by_shape();
    // A square is no larger than its matrix.
    const std::uint64_t several = entries_ < kBatchEntries ? entries_ : kBatchEntries;
    const std::uint64_t most = largest_ < several ? several : largest_;
    const std::uint32_t count = jobs_.count();
    const std::size_t blas_bytes = count == 0 ? 0 : kBlasBytes + kBlasAlignment;
    return {jobs_.table(),
            order_.table(),
            maxima_.split(),
            layout_.zeroed<SvdState>(count),
            layout_.scratch<double>(most),
            layout_.scratch<double>(most),
            layout_.scratch<double>(most),
            layout_.scratch<double>(sides_),
            layout_.scratch<int>(count),
            layout_.scratch<std::byte>(blas_bytes)};
  }

 private:
  void sort_by_shape() noexcept {
    const std::span<const SvdJob> jobs = jobs_.entries();
    const std::span<std::uint32_t> order = order_.entries();
    const auto key = [jobs](std::uint32_t j) {
      return std::tuple(jobs[j].rows, jobs[j].columns, j);
    };
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
  }

  Layout& layout_;
  TableMaker<SvdJob> jobs_;
  TableMaker<std::uint32_t> order_;
  SplitMaker maxima_;
  std::uint64_t entries_ = 0, largest_ = 0, sides_ = 0;
};

/// Decomposes the layers of all jobs through the queue's handles, those of one shape together;
/// marks those that are not finite, whose pairs are zero. A launch, and three a batch beside the
/// libraries' own.
void factorise(const Frame& frame, const SvdPlan& plan, Queue& queue);

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
