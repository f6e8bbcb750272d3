// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A tile of a matrix product on tensor cores: 64 lines of a matrix times up to 64 vectors, over a
/// stretch of their depth.
///
/// Mathematics. Tensor cores multiply TF32, ten bits of mantissa, and sum in f32. An entry of the
/// matrix is a sum of two numbers of TF32, its upper and its next eleven bits. `TensorVectors` says what
/// is made of vectors:
/// - `rounded` to TF32: what comes out is the product with other vectors, which is as good where any
///   will do that span about the same. Both parts of an entry are multiplied, since a rounded matrix
///   has other directions. Lines times rounded vectors are right to 2^-20 of a term and to the
///   roundings of the device's sums.
/// - `whole`: a sum of two numbers as well. The lower parts of both are not multiplied by each other:
///   a term is right to 2^-19. The device sums eight terms at a time, beginning with the smaller
///   parts, and f32 sums do the rest: how tensor cores round matters within eight terms alone.
///
/// Mapping. 128 threads; a warp has 32 lines times 32 vectors, or 16 lines times all where there are
/// up to 32 or 16 (a tile of as many then). Steps of 32 of the depth go through shared memory, laid
/// out as they lie in memory; those of the next step are on their way meanwhile. Per 8 terms of the
/// depth a lane reads up to 16 values, and the warp multiplies up to eight times 16 x 8 with 8 x 16
/// entries, or twelve times.
///
/// Shared memory: 18,432 bytes. Determinism: the order of a device's sums is its own, so that bits
/// are the same on GPUs of one architecture alone, whatever the order of blocks. Alignment: as
/// tile_product.cuh has it.

#include <mma.h>

#include "cuda/tile_product.cuh"
#include "cuda/tuning.hpp"

namespace atomo::cuda {

namespace tf32 {

namespace wmma = nvcuda::wmma;
using Four = tile::Quad<float>;

constexpr unsigned kDepth = 32, kSide = 16, kTerms = 8;
// Rows of shared memory, so that neither way of reading meets a bank twice.
constexpr unsigned kRow = kDepth + 4;         // of values along the depth
constexpr unsigned kAcross = kTileLines + 8;  // of values along the lines

constexpr std::uint32_t kUpperBits = 0xFFFFE000u;  // that TF32 has of f32
/// To the nearest of TF32, of two the one farther from zero, as `__float_to_tf32` does it of numbers
/// that stay finite, in fewer instructions.
__device__ inline float rounded(float value) {
  return __uint_as_float((__float_as_uint(value) + 0x1000u) & kUpperBits);
}
/// The upper bits alone.
__device__ inline float upper(float value) {
  return __uint_as_float(__float_as_uint(value) & kUpperBits);
}
/// Two numbers of TF32 whose sum is `value` but for its last two bits.
__device__ inline void split(float value, float& high, float& low) {
  high = upper(value);
  low = upper(value - high);
}

/// The lines and the vectors of a step; in the end the sums of all vectors, a row each.
struct alignas(32) Memory {
  float lines[kTileLines * kRow];
  float vectors[kTileLines * kRow];
};
static_assert(kDepth * kAcross == kTileLines * kRow);
static_assert(kTileLines * kAcross * sizeof(float) == sizeof(Memory));

/// A thread's part of `kLines` lines of an operand at 32 depths.
template <bool kAlong, unsigned kLines>
struct Step {
  static constexpr unsigned kEach = kLines * kDepth / 4 / kTileThreads;
  static constexpr unsigned kQuads = kAlong ? kDepth / 4 : kLines / 4;  // that lie side by side
  static constexpr unsigned kApart = kTileThreads / kQuads;             // rows of quads
  Four own[kEach];

  __device__ void load(const Operand<float>& from, std::uint64_t line, std::uint64_t depth,
                       std::uint64_t end) {
    const unsigned row = threadIdx.x / kQuads, quad = 4 * (threadIdx.x % kQuads);
    const bool whole = line + kLines <= from.lines && depth + kDepth <= end && from.stride % 4 == 0;
    const float* const at =
        from.at + quad +
        (kAlong ? (line + row) * from.stride + depth : (depth + row) * from.stride + line);
    if (whole) {
#pragma unroll
      for (unsigned i = 0; i < kEach; ++i)
        own[i] = *reinterpret_cast<const Four*>(at + i * kApart * from.stride);
      return;
    }
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
      own[i] = kAlong ? tile::load_quad(from, line + row + i * kApart, depth + quad, end)
                      : tile::load_quad(from, line + quad, depth + row + i * kApart, end);
    }
  }
  template <typename Change>
  __device__ void store(float* to, Change change) const {
    const unsigned row = threadIdx.x / kQuads, quad = 4 * (threadIdx.x % kQuads);
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
      Four changed;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) changed.v[k] = change(own[i].v[k]);
      *reinterpret_cast<Four*>(&to[(row + i * kApart) * (kAlong ? kRow : kAcross) + quad]) =
          changed;
    }
  }
};

/// What a warp has of a tile of `kStrip` vectors: squares of lines by vectors.
template <bool kAlong, unsigned kStrip>
struct Squares {
  static constexpr unsigned kLines = kStrip == kTileLines ? 2 : 1;
  static constexpr unsigned kVectors = kStrip / kSide / kLines;
  static constexpr unsigned kWarps = kTileThreads / kLanes / kLines;  // that share the lines
  // Distances in shared memory: of lines, and of terms of the depth.
  static constexpr unsigned kLine = kAlong ? kRow : 1, kTerm = kAlong ? 1 : kAcross;
  using Lines = wmma::fragment<wmma::matrix_a, kSide, kSide, kTerms, wmma::precision::tf32,
                               std::conditional_t<kAlong, wmma::row_major, wmma::col_major>>;
  using Vectors =
      wmma::fragment<wmma::matrix_b, kSide, kSide, kTerms, wmma::precision::tf32, wmma::col_major>;
  using Sums = wmma::fragment<wmma::accumulator, kSide, kSide, kTerms, float>;
  Sums sums[kLines][kVectors];
  unsigned of_lines[Lines::num_elements], of_vectors[Vectors::num_elements];  // see `find_places`

  __device__ static unsigned line() { return warp_in_block() % kWarps * kLines * kSide; }
  __device__ static unsigned vector() { return warp_in_block() / kWarps * kVectors * kSide; }

  /// By the whole block, once. Where the entries of a fragment that this lane holds stand in shared
  /// memory is the device's choice, so it is asked: fragments are loaded of matrices whose entries
  /// are their own places. Later loads then are plain ones at fixed distances from these places.
  __device__ void find_places(Memory& memory) {
    static_assert(kTileThreads == kSide * kTerms);
    const unsigned side = threadIdx.x % kSide, term = threadIdx.x / kSide;
    memory.lines[side * kLine + term * kTerm] = static_cast<float>(side * kLine + term * kTerm);
    memory.vectors[side * kRow + term] = static_cast<float>(side * kRow + term);
    __syncthreads();
    Lines lines;
    Vectors vectors;
    wmma::load_matrix_sync(lines, memory.lines, kAlong ? kRow : kAcross);
    wmma::load_matrix_sync(vectors, memory.vectors, kRow);
#pragma unroll
    for (unsigned e = 0; e < Lines::num_elements; ++e)
      of_lines[e] = static_cast<unsigned>(lines.x[e]) + line() * kLine;
#pragma unroll
    for (unsigned e = 0; e < Vectors::num_elements; ++e)
      of_vectors[e] = static_cast<unsigned>(vectors.x[e]) + vector() * kRow;
    __syncthreads();
  }
  __device__ void clear() {
#pragma unroll
    for (auto& of_line : sums) {
#pragma unroll
      for (auto& sum : of_line) wmma::fill_fragment(sum, 0.0f);
    }
  }
  template <TensorVectors kind>
  __device__ void add(const Memory& memory) {
    constexpr bool kWhole = kind == TensorVectors::whole;
#pragma unroll kWhole ? 1 : 2
    for (unsigned depth = 0; depth < kDepth; depth += kTerms) {
      Lines high[kLines], low[kLines];
      Vectors vectors[kVectors], lower[kWhole ? kVectors : 1];
#pragma unroll
      for (unsigned i = 0; i < kLines; ++i) {
#pragma unroll
        for (unsigned e = 0; e < Lines::num_elements; ++e)
          split(memory.lines[of_lines[e] + i * kSide * kLine + depth * kTerm], high[i].x[e],
                low[i].x[e]);
      }
#pragma unroll
      for (unsigned j = 0; j < kVectors; ++j) {
#pragma unroll
        for (unsigned e = 0; e < Vectors::num_elements; ++e) {
          const float value = memory.vectors[of_vectors[e] + j * kSide * kRow + depth];
          if constexpr (kWhole)
            split(value, vectors[j].x[e], lower[j].x[e]);
          else
            vectors[j].x[e] = value;
        }
      }
#pragma unroll
      for (unsigned i = 0; i < kLines; ++i) {
#pragma unroll
        for (unsigned j = 0; j < kVectors; ++j) {
          if constexpr (kWhole) {
            Sums eight;
            wmma::fill_fragment(eight, 0.0f);
            wmma::mma_sync(eight, low[i], vectors[j], eight);
            wmma::mma_sync(eight, high[i], lower[j], eight);
            wmma::mma_sync(eight, high[i], vectors[j], eight);
#pragma unroll
            for (unsigned e = 0; e < Sums::num_elements; ++e) sums[i][j].x[e] += eight.x[e];
          } else {
            wmma::mma_sync(sums[i][j], low[i], vectors[j], sums[i][j]);
            wmma::mma_sync(sums[i][j], high[i], vectors[j], sums[i][j]);
          }
        }
      }
    }
  }
  __device__ void put(float* to) const {
#pragma unroll
    for (unsigned i = 0; i < kLines; ++i) {
#pragma unroll
      for (unsigned j = 0; j < kVectors; ++j)
        wmma::store_matrix_sync(to + (vector() + j * kSide) * kAcross + line() + i * kSide,
                                sums[i][j], kAcross, wmma::mem_col_major);
    }
  }
};

template <TensorVectors kind, bool kAlong, unsigned kStrip>
__device__ inline void multiply(const Operand<float>& matrix, const Operand<float>& vectors,
                                const TilePlace& place, float* to, std::uint64_t length) {
  auto& memory = shared<Memory>();
  Step<kAlong, kTileLines> next_lines;
  Step<true, kStrip> next_vectors;
  Squares<kAlong, kStrip> squares;
  squares.find_places(memory);
  squares.clear();
  next_lines.load(matrix, place.first_line, place.begin, place.end);
  next_vectors.load(vectors, place.second_line, place.begin, place.end);
  for (std::uint64_t depth = place.begin; depth < place.end; depth += kDepth) {
    next_lines.store(memory.lines, [](float value) { return value; });
    next_vectors.store(memory.vectors, [](float value) {
      return kind == TensorVectors::rounded ? rounded(value) : value;
    });
    __syncthreads();
    if (depth + kDepth < place.end) {
      next_lines.load(matrix, place.first_line, depth + kDepth, place.end);
      next_vectors.load(vectors, place.second_line, depth + kDepth, place.end);
    }
    squares.template add<kind>(memory);
    __syncthreads();
  }
  float* const sums = reinterpret_cast<float*>(&memory);
  squares.put(sums);
  __syncthreads();
  constexpr unsigned kQuads = kTileLines / 4;
#pragma unroll
  for (unsigned i = 0; i < kStrip * kQuads / kTileThreads; ++i) {
    const unsigned number = threadIdx.x + i * kTileThreads, v = number / kQuads,
                   quad = 4 * (number % kQuads);
    const std::uint64_t line = place.first_line + quad, vector = place.second_line + v;
    if (vector >= vectors.lines || line >= length) continue;
    const Four four = *reinterpret_cast<const Four*>(&sums[v * kAcross + quad]);
    float* const at = to + vector * length + line;
    if (length % 4 == 0) {
      *reinterpret_cast<Four*>(at) = four;
      continue;
    }
    for (unsigned k = 0; k < 4; ++k) {
      if (line + k < length) at[k] = four.v[k];
    }
  }
}

template <TensorVectors kind, bool kAlong>
__device__ inline void multiply_any(const Operand<float>& matrix, const Operand<float>& vectors,
                                    const TilePlace& place, float* to, std::uint64_t length) {
  const std::uint64_t left = vectors.lines - place.second_line;
  if (left <= kTileLines / 4) {
    multiply<kind, kAlong, kTileLines / 4>(matrix, vectors, place, to, length);
  } else if (left <= kTileLines / 2) {
    multiply<kind, kAlong, kTileLines / 2>(matrix, vectors, place, to, length);
  } else {
    multiply<kind, kAlong, kTileLines>(matrix, vectors, place, to, length);
  }
}

}  // namespace tf32

/// By a block of kTileThreads, once a kernel, of vectors that lie along the depth: sum of line i and
/// vector v at `to[v * length + i]`, `length` being that of the matrix's lines.
template <TensorVectors kind>
__device__ inline void multiply_tile_tf32(const Operand<float>& matrix,
                                          const Operand<float>& vectors, const TilePlace& place,
                                          float* to, std::uint64_t length) {
  if (matrix.along) {
    tf32::multiply_any<kind, true>(matrix, vectors, place, to, length);
  } else {
    tf32::multiply_any<kind, false>(matrix, vectors, place, to, length);
  }
}

}  // namespace atomo::cuda
