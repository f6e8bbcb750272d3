// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A tile of a matrix product in f64 on tensor cores: 64 lines of one operand times up to 64 of another, summed over a
/// stretch of their depth. Of a product of vectors with each other nothing above the diagonal is made.
///
/// Mathematics. Tensor cores multiply and add f64 as IEEE has it; the order of four terms is the device's. Entries of f32
/// are widened first.
///
/// Mapping. 128 threads; a warp has two blocks of eight lines of the first operand, the w-th from either end, times all
/// blocks of the second: of a triangle with the diagonal these are nine of 36 for each warp. Steps of 16 of the depth go
/// through shared memory, laid out as they lie in memory; those of the next step are on their way meanwhile. Per four terms
/// of the depth a lane reads up to ten values, and the warp multiplies up to 16 times 8 x 4 with 4 x 8 entries.
///
/// Shared memory: 20,480 bytes. Determinism: the order of a device's four terms is its own, so that bits are the same on
/// GPUs of one architecture alone. Alignment: as tile_product.cuh has it.

#include "cuda/tile_product.cuh"

namespace atomo::cuda {

namespace f64 {

constexpr unsigned kDepth = kTileDepth, kSide = 8, kTerms = 4;
constexpr unsigned kWarps = kTileThreads / kLanes;
constexpr unsigned kBlocks = kTileLines / kSide;
static_assert(kBlocks == 2 * kWarps);
// Rows of shared memory, so that the sixteen lanes that read at once meet no bank twice.
constexpr unsigned kRow = kDepth + 4;         // of values along the depth
constexpr unsigned kAcross = kTileLines + 4;  // of values along the lines

struct alignas(16) Memory {
  double first[kTileLines * kRow], second[kTileLines * kRow];
};
static_assert(kDepth * kAcross <= kTileLines * kRow);

/// Adds the products of 8 x 4 with 4 x 8 entries. A lane has entry (lane / 4, lane % 4) of the one, (lane % 4, lane / 4)
/// of the other, and (lane / 4, 2 (lane % 4)) of the sums and the one behind it.
__device__ inline void multiply_add(double (&sums)[2], double a, double b) {
#ifdef ATOMO_HOSTEXEC
  const int row = static_cast<int>(lane() / 4 * 4), column = static_cast<int>(lane() % 4 * 8);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const double own = __shfl_sync(kAllLanes, a, row + k);
    sums[0] = __fma_rn(own, __shfl_sync(kAllLanes, b, column + k), sums[0]);
    sums[1] = __fma_rn(own, __shfl_sync(kAllLanes, b, column + 4 + k), sums[1]);
  }
#else
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(sums[0]), "+d"(sums[1])
               : "d"(a), "d"(b));
#endif
}

/// Puts four values of a step into shared memory, as they lie in memory.
template <bool kAlong, typename T>
__device__ inline void put_quad(unsigned line, unsigned depth, const tile::Quad<T>& quad,
                                double* to) {
  tile::Quad<double> values;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) values.v[k] = static_cast<double>(quad.v[k]);
  *reinterpret_cast<tile::Quad<double>*>(
      &to[kAlong ? line * kRow + depth : depth * kAcross + line]) = values;
}

/// A warp's sums: of blocks w and 7 - w of the first operand with `kRows` blocks of the second; of a triangle with those
/// alone that do not come before them.
template <bool kAlong, unsigned kRows, bool kTriangle>
struct Sums {
  // Distances in shared memory of the first operand's lines and terms of the depth.
  static constexpr unsigned kLine = kAlong ? kRow : 1, kTerm = kAlong ? 1 : kAcross;
  double of[2][kRows][2] = {};

  __device__ static unsigned column(unsigned i) {
    return i == 0 ? warp_in_block() : kBlocks - 1 - warp_in_block();
  }

  /// Adds one step.
  __device__ void add(const double* first, const double* second) {
    if constexpr (!kTriangle) {
      add_from<0, 0>(first, second);
    } else if (warp_in_block() == 0) {
      add_from<0, 7>(first, second);
    } else if (warp_in_block() == 1) {
      add_from<1, 6>(first, second);
    } else if (warp_in_block() == 2) {
      add_from<2, 5>(first, second);
    } else {
      add_from<3, 4>(first, second);
    }
  }
  /// Calls `put(of, line, sums)`: of one line of the second operand with two neighbours of the first.
  template <typename Put>
  __device__ void put_all(const TilePlace& place, const Put& put) const {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row) {
        if (kTriangle && row < column(i)) continue;
        put(place.second_line + row * kSide + lane() / 4,
            place.first_line + column(i) * kSide + 2 * (lane() % 4), of[i][row]);
      }
    }
  }

 private:
  template <unsigned kFrom, unsigned kOther>
  __device__ void add_from(const double* first, const double* second) {
    const unsigned line = lane() / 4, term = lane() % 4;
    const double* const own = first + line * kLine + term * kTerm;
    const double* const beside = second + line * kRow + term;
#pragma unroll
    for (unsigned depth = 0; depth < kDepth; depth += kTerms) {
      double b[2];
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) b[i] = own[column(i) * kSide * kLine + depth * kTerm];
#pragma unroll
      for (unsigned row = kFrom < kOther ? kFrom : kOther; row < kRows; ++row) {
        const double a = beside[row * kSide * kRow + depth];
        if (row + 1 > kFrom) multiply_add(of[0][row], a, b[0]);
        if (row + 1 > kOther) multiply_add(of[1][row], a, b[1]);
      }
    }
  }
};

template <bool kAlong, unsigned kRows, bool kTriangle, typename T, typename Other, typename Put>
__device__ inline void multiply(const Operand<T>& first, const Operand<Other>& second,
                                const TilePlace& place, const Put& put) {
  auto& memory = shared<Memory>();
  tile::Steps<T, kTileLines> next_first(first, place.first_line, place);
  tile::Steps<Other, kRows * kSide> next_second(second, place.second_line, place);
  Sums<kAlong, kRows, kTriangle> sums;
  next_first.load(place.begin, place.end);
  if constexpr (!kTriangle) next_second.load(place.begin, place.end);
  for (std::uint64_t depth = place.begin; depth < place.end; depth += kDepth) {
    next_first.own.each(kAlong, [&](unsigned line, unsigned term, const tile::Quad<T>& quad) {
      put_quad<kAlong>(line, term, quad, memory.first);
    });
    if constexpr (!kTriangle) {
      next_second.own.each(true, [&](unsigned line, unsigned term, const tile::Quad<Other>& quad) {
        put_quad<true>(line, term, quad, memory.second);
      });
    }
    __syncthreads();
    if (depth + kDepth < place.end) {
      next_first.load(depth + kDepth, place.end);
      if constexpr (!kTriangle) next_second.load(depth + kDepth, place.end);
    }
    sums.add(memory.first, kTriangle ? memory.first : memory.second);
    __syncthreads();
  }
  sums.put_all(place, put);
}

}  // namespace f64

/// By a block of kTileThreads, once a kernel: calls `put(of, line, sums)` with the sums of lines `line` and `line` + 1 of the
/// first operand, which lie along their depth or not (`kAlong`), with line `of` of the second, which lie along it. Lines of
/// either may be beyond those that are there.
template <bool kAlong, typename T, typename Other, typename Put>
__device__ inline void multiply_tile_f64(const Operand<T>& first, const Operand<Other>& second,
                                         const TilePlace& place, const Put& put) {
  const std::uint64_t left = second.lines - place.second_line;
  if (left <= kTileLines / 4) {
    f64::multiply<kAlong, f64::kBlocks / 4, false>(first, second, place, put);
  } else if (left <= kTileLines / 2) {
    f64::multiply<kAlong, f64::kBlocks / 2, false>(first, second, place, put);
  } else {
    f64::multiply<kAlong, f64::kBlocks, false>(first, second, place, put);
  }
}

/// The same of lines along the depth with themselves, but that of blocks of eight lines on and below the diagonal alone are
/// called for: `of` is of no earlier block than `line`.
template <typename T, typename Put>
__device__ inline void multiply_triangle_f64(const Operand<T>& lines, const TilePlace& place,
                                             const Put& put) {
  f64::multiply<true, f64::kBlocks, true>(lines, lines, place, put);
}

/// Stores sums of line `of` of the second operand, of which there are so many, at `to` + `of` * `length`.
template <typename T>
struct PutLines {
  T* to;
  std::uint64_t count, length;
  __device__ void operator()(std::uint64_t of, std::uint64_t line, const double (&sums)[2]) const {
    if (of >= count) return;
#pragma unroll
    for (unsigned i = 0; i < 2; ++i)
      if (line + i < length) to[of * length + line + i] = static_cast<T>(sums[i]);
  }
};

}  // namespace atomo::cuda
