// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A tile of a matrix product with few vectors: 64 lines of a matrix times up to 16 vectors, summed
/// over a stretch of their depth in ascending order with one fma a term: to the bit what
/// `multiply_tile` makes of it.
///
/// Mapping. 128 threads; a thread has four lines times one vector, or two where there are more than
/// eight: eight groups of threads have the vectors, sixteen threads each the lines. The vectors go
/// through shared memory, 32 values of the depth at a time. Of a matrix whose lines lie across, a
/// thread reads its four lines as one value of 16 bytes; one whose lines lie along the depth goes
/// through shared memory too, row by row, so that memory is read in whole sectors. Per four terms
/// of the depth a thread reads 5 or 6 values of 16 bytes for 16 or 32 products.
///
/// Shared memory: 11,520 bytes. Alignment: as tile_product.cuh has it.

#include "cuda/tile_product.cuh"

namespace atomo::cuda {

inline constexpr unsigned kNarrowVectors = 16;

namespace narrow {

using Four = tile::Quad<float>;

constexpr unsigned kDepth = 32, kOwn = 4, kSharing = 16;  // threads that share a vector
constexpr unsigned kGroups = kTileThreads / kSharing;
constexpr unsigned kRow = kDepth + 4;  // rows begin in different banks

struct alignas(16) Memory {
  float vectors[kNarrowVectors][kRow];
  float lines[kTileLines][kRow];
};

/// Four values of the depth of a row of shared memory.
__device__ inline Four four_of(const float (&row)[kRow], unsigned depth) {
  return *reinterpret_cast<const Four*>(&row[depth]);
}

/// Whether `count` lines at 32 depths are there, and may be read four values at once.
__device__ inline bool has_all(const Operand<float>& from, std::uint64_t line, unsigned count,
                               std::uint64_t depth, std::uint64_t end) {
  return line + count <= from.lines && depth + kDepth <= end && from.stride % 4 == 0;
}

/// By a whole block: the values of the vectors at 32 depths, zeros where there are none.
__device__ inline void load_vectors(const Operand<float>& from, std::uint64_t depth,
                                    std::uint64_t end, Memory& memory) {
  const std::uint64_t at = depth + threadIdx.x % kDepth;
#pragma unroll
  for (unsigned i = 0; i < kNarrowVectors / (kTileThreads / kDepth); ++i) {
    const unsigned v = threadIdx.x / kDepth + i * (kTileThreads / kDepth);
    memory.vectors[v][threadIdx.x % kDepth] =
        v < from.lines && at < end ? from.at[v * from.stride + at] : 0.0f;
  }
}

/// A thread's part of the lines at 32 depths, where they lie along these.
struct Rows {
  static constexpr unsigned kEach = kTileLines * kDepth / 4 / kTileThreads;
  static constexpr unsigned kQuads = kDepth / 4;
  Four own[kEach];

  __device__ void load(const Operand<float>& from, std::uint64_t line, std::uint64_t depth,
                       std::uint64_t end) {
    const bool whole = has_all(from, line, kTileLines, depth, end);
    const unsigned first = threadIdx.x / kQuads, quad = 4 * (threadIdx.x % kQuads);
    const float* const at = from.at + (line + first) * from.stride + depth + quad;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
      const unsigned number = threadIdx.x + i * kTileThreads;
      if (whole) {
        own[i] = *reinterpret_cast<const Four*>(at + i * (kTileThreads / kQuads) * from.stride);
        continue;
      }
      own[i] = tile::load_quad(from, line + number / kQuads, depth + 4 * (number % kQuads), end);
    }
  }
  __device__ void store(Memory& memory) const {
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
      const unsigned number = threadIdx.x + i * kTileThreads;
      *reinterpret_cast<Four*>(&memory.lines[number / kQuads][4 * (number % kQuads)]) = own[i];
    }
  }
};

/// Adds four terms of the depth to the sums of a thread; `a[i]` has those of its line i.
template <unsigned kEach>
__device__ inline void add_terms(const Memory& memory, unsigned depth, const Four (&a)[kOwn],
                                 float (&sums)[kEach][kOwn]) {
  const unsigned first = threadIdx.x / kSharing;
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const Four x = four_of(memory.vectors[first + j * kGroups], depth);
#pragma unroll
    for (unsigned i = 0; i < kOwn; ++i) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) sums[j][i] = __fmaf_rn(a[i].v[k], x.v[k], sums[j][i]);
    }
  }
}

template <unsigned kEach>
__device__ inline void add_rows(const Memory& memory, float (&sums)[kEach][kOwn]) {
#pragma unroll 1
  for (unsigned depth = 0; depth < kDepth; depth += 4) {
    Four a[kOwn];
#pragma unroll
    for (unsigned i = 0; i < kOwn; ++i)
      a[i] = four_of(memory.lines[threadIdx.x % kSharing + i * kSharing], depth);
    add_terms(memory, depth, a, sums);
  }
}

template <unsigned kEach>
__device__ inline void add_columns(const Operand<float>& from, std::uint64_t line,
                                   std::uint64_t depth, std::uint64_t end, const Memory& memory,
                                   float (&sums)[kEach][kOwn]) {
  const bool whole = has_all(from, line, kOwn, depth, end);
  const float* next = from.at + depth * from.stride + line;
#pragma unroll 2
  for (unsigned at = 0; at < kDepth; at += 4) {
    Four across[4], a[kOwn];
#pragma unroll
    for (unsigned k = 0; k < 4; ++k, next += from.stride)
      across[k] = whole ? *reinterpret_cast<const Four*>(next)
                        : tile::load_quad(from, line, depth + at + k, end);
#pragma unroll
    for (unsigned i = 0; i < kOwn; ++i) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) a[i].v[k] = across[k].v[i];
    }
    add_terms(memory, at, a, sums);
  }
}

template <bool kAlong, unsigned kEach>
__device__ inline void multiply(const Operand<float>& matrix, const Operand<float>& vectors,
                                const TilePlace& place, float* to, std::uint64_t length) {
  auto& memory = shared<Memory>();
  const unsigned group = threadIdx.x / kSharing, share = threadIdx.x % kSharing;
  const bool works = group < vectors.lines;
  float sums[kEach][kOwn] = {};
  Rows next;
  if constexpr (kAlong) next.load(matrix, place.first_line, place.begin, place.end);
  for (std::uint64_t depth = place.begin; depth < place.end; depth += kDepth) {
    load_vectors(vectors, depth, place.end, memory);
    if constexpr (kAlong) next.store(memory);
    __syncthreads();
    if constexpr (kAlong) {
      if (depth + kDepth < place.end)
        next.load(matrix, place.first_line, depth + kDepth, place.end);
      if (works) add_rows(memory, sums);
    } else if (works) {
      add_columns(matrix, place.first_line + kOwn * share, depth, place.end, memory, sums);
    }
    __syncthreads();
  }
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const unsigned v = group + j * kGroups;
    if (v >= vectors.lines) continue;
#pragma unroll
    for (unsigned i = 0; i < kOwn; ++i) {
      const std::uint64_t line =
          place.first_line + (kAlong ? share + i * kSharing : kOwn * share + i);
      if (line < length) to[v * length + line] = sums[j][i];
    }
  }
}

}  // namespace narrow

/// By a block of kTileThreads, once a kernel, of up to kNarrowVectors vectors that lie along the
/// depth: sum of line i and vector v at `to[v * length + i]`.
__device__ inline void multiply_narrow(const Operand<float>& matrix, const Operand<float>& vectors,
                                       const TilePlace& place, float* to, std::uint64_t length) {
  const bool one = vectors.lines <= narrow::kGroups;
  if (matrix.along && one) {
    narrow::multiply<true, 1>(matrix, vectors, place, to, length);
  } else if (matrix.along) {
    narrow::multiply<true, 2>(matrix, vectors, place, to, length);
  } else if (one) {
    narrow::multiply<false, 1>(matrix, vectors, place, to, length);
  } else {
    narrow::multiply<false, 2>(matrix, vectors, place, to, length);
  }
}

}  // namespace atomo::cuda
