// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A tile of a matrix product by a block: 64 lines of one operand times up to 64 of another, summed
/// over a stretch of their depth in ascending order with one fma of f32 a term, so that a tile's values
/// depend on nothing but the stretch. Both operands lie along their depth or along their lines. The
/// second may be some lines of a matrix, in any order.
///
/// Mapping. 128 threads; a thread has 8 lines of the first operand times 4, 2 or 1 of the second
/// (64, 32 or 16 lines a tile: a narrow second operand costs no idle products). The 8 are parts of
/// 16 bytes, between which lie those of the seven threads beside it, so that a warp reads and
/// writes whole lines of memory. Steps of 16 of the depth go through shared memory, laid out along
/// lines; those of the next step are on their way meanwhile. Per term of the depth a thread reads
/// 12 values for 32 products.
///
/// Shared memory: 8,704 bytes. Alignment: operands begin at a multiple of 16 bytes;
/// four values are read at once where the stride is a multiple of four.

#include "cuda/gpu.cuh"

namespace atomo::cuda {

inline constexpr unsigned kTileThreads = 128;
inline constexpr std::uint64_t kTileLines = 64;  ///< of either operand
inline constexpr unsigned kTileDepth = 16;       ///< that stretches begin at multiples of

/// One side of a product, aligned to 64 bytes.
template <typename T>
struct Operand {
  using Value = T;
  const T* at = nullptr;
  std::uint64_t stride = 0;
  std::uint64_t lines = 0;
  bool along = true;  ///< value k of line i at i * stride + k; else at k * stride + i
};

/// Some lines of an operand: value k of line i at k * stride + picked[i].
struct PickedLines {
  using Value = float;
  const float* at = nullptr;
  std::uint64_t stride = 0;
  std::uint64_t lines = 0;
  const std::uint32_t* picked = nullptr;
  static constexpr bool along = false;
};

/// A tile: lines of both operands from these on, over depths `begin` to before `end`.
struct TilePlace {
  std::uint64_t first_line = 0, second_line = 0;
  std::uint64_t begin = 0, end = 0;
};

namespace tile {

constexpr unsigned kOwn = 8;      // lines of the first operand that a thread has
constexpr unsigned kBeside = 8;   // threads that have the others
constexpr unsigned kAcross = 16;  // threads that share them
constexpr unsigned kPadding = 4;  // against two lanes' writes to one bank
constexpr unsigned kQuads = kTileDepth / 4;

template <typename T>
struct alignas(16) Quad {
  T v[4];
};

struct alignas(16) Memory {
  float first[kTileDepth][kTileLines + kPadding];
  float second[kTileDepth][kTileLines + kPadding];
};

/// The place of four values of a step in shared memory.
struct QuadPlace {
  unsigned line, depth;
};
template <unsigned kLines>
__device__ inline QuadPlace quad_place(unsigned number, bool along) {
  if (along) return {number / kQuads, 4 * (number % kQuads)};
  return {4 * (number % (kLines / 4)), number / (kLines / 4)};
}

/// Values that lie side by side; zeros where the operand or the stretch ends.
template <typename T>
__device__ inline Quad<T> load_quad(const Operand<T>& from, std::uint64_t line, std::uint64_t depth,
                                    std::uint64_t end) {
  const std::uint64_t lines = line < from.lines ? from.lines - line : 0;
  const std::uint64_t depths = depth < end ? end - depth : 0;
  const std::uint64_t across = from.along ? lines : depths;
  const std::uint64_t left = across == 0 ? 0 : from.along ? depths : lines;
  const T* const at =
      from.at + (from.along ? line * from.stride + depth : depth * from.stride + line);
  if (left >= 4 && from.stride % 4 == 0) return *reinterpret_cast<const Quad<T>*>(at);
  Quad<T> quad;
  for (unsigned i = 0; i < 4; ++i) quad.v[i] = i < left ? at[i] : T{0};
  return quad;
}

/// A thread's part of `kLines` lines at 16 depths: four values side by side, some times.
template <typename T, unsigned kLines>
struct OwnQuads {
  static constexpr unsigned kAll = kLines * kQuads;
  static constexpr unsigned kEach = (kAll + kTileThreads - 1) / kTileThreads;
  Quad<T> at[kEach] = {};

  __device__ static bool has(unsigned i) { return threadIdx.x + i * kTileThreads < kAll; }
  __device__ static QuadPlace place(unsigned i, bool along) {
    return quad_place<kLines>(threadIdx.x + i * kTileThreads, along);
  }
  /// Calls `put(line, depth, quad)` for all of them.
  template <typename Put>
  __device__ void each(bool along, const Put& put) const {
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i)
      if (has(i)) put(place(i, along).line, place(i, along).depth, at[i]);
  }
};

/// What a thread reads of an operand, one step after the other.
template <typename T, unsigned kLines>
class Steps {
 public:
  OwnQuads<T, kLines> own;  ///< what the last load read

  __device__ Steps(const Operand<T>& from, std::uint64_t line, const TilePlace& place)
      : from_(from), line_(line) {
    const QuadPlace first = own.place(0, from.along);
    at_ = from.at + (from.along ? (line + first.line) * from.stride + place.begin + first.depth
                                : (place.begin + first.depth) * from.stride + line + first.line);
    whole_ = line + kLines <= from.lines && from.stride % 4 == 0;
  }

  /// Reads the next step, at `depth` of a stretch up to `end`: zeros where that or the lines end.
  __device__ void load(std::uint64_t depth, std::uint64_t end) {
    const std::uint64_t apart = from_.along ? kTileThreads / kQuads : kTileThreads / (kLines / 4);
    const bool whole = whole_ && depth + kTileDepth <= end;
#pragma unroll
    for (unsigned i = 0; i < own.kEach; ++i) {
      if (!own.has(i)) continue;
      const QuadPlace place = own.place(i, from_.along);
      own.at[i] = whole ? *reinterpret_cast<const Quad<T>*>(at_ + i * apart * from_.stride)
                        : load_quad(from_, line_ + place.line, depth + place.depth, end);
    }
    at_ = in_one(at_ + (from_.along ? kTileDepth : kTileDepth * from_.stride));
  }

 private:
  Operand<T> from_;
  std::uint64_t line_;
  const T* at_;
  bool whole_;
};

/// The same of picked lines, whose numbers are read once.
template <unsigned kLines>
class PickedSteps {
 public:
  OwnQuads<float, kLines> own;

  __device__ PickedSteps(const PickedLines& from, std::uint64_t line) : from_(from) {
    const std::uint64_t first = line + own.place(0, false).line;
    const std::uint64_t left = first < from.lines ? from.lines - first : 0;
    left_ = left < 4 ? static_cast<unsigned>(left) : 4;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) picked_[k] = k < left_ ? from.picked[first + k] : 0;
  }

  __device__ void load(std::uint64_t depth, std::uint64_t end) {
#pragma unroll
    for (unsigned i = 0; i < own.kEach; ++i) {
      if (!own.has(i)) continue;
      const std::uint64_t own_depth = depth + own.place(i, false).depth;
      const float* const at = from_.at + own_depth * from_.stride;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        own.at[i].v[k] = k < left_ && own_depth < end ? at[picked_[k]] : 0.0f;
    }
  }

 private:
  PickedLines from_;
  unsigned left_;
  std::uint32_t picked_[4];
};

template <unsigned kLines, typename T>
__device__ inline Steps<T, kLines> steps_of(const Operand<T>& from, std::uint64_t line,
                                            const TilePlace& place) {
  return {from, line, place};
}
template <unsigned kLines>
__device__ inline PickedSteps<kLines> steps_of(const PickedLines& from, std::uint64_t line,
                                               const TilePlace&) {
  return {from, line};
}

/// Puts four values of a step into shared memory, laid out along the lines.
template <typename T>
__device__ inline void put_quad(bool along, unsigned line, unsigned depth, const Quad<T>& quad,
                                float (&to)[kTileDepth][kTileLines + kPadding]) {
  Quad<float> values;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) values.v[k] = static_cast<float>(quad.v[k]);
  if (along) {
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) to[depth + k][line] = values.v[k];
  } else {
    *reinterpret_cast<Quad<float>*>(&to[depth][line]) = values;
  }
}

/// A thread's sums: of so many lines of the second operand and of parts of the first one's.
template <unsigned kEach>
struct Sums {
  static constexpr unsigned kSide = 4;  ///< lines of a part, side by side
  static constexpr unsigned kParts = kOwn / kSide, kApart = kTileLines / kParts;

  std::uint64_t line, of;      ///< the first of either operand
  std::uint64_t lines, count;  ///< of either operand, from those on, that are there
  float v[kEach][kOwn];
};

/// Adds one step.
template <unsigned kEach>
__device__ inline void add_step(const Memory& memory, Sums<kEach>& sums) {
  using Part = Quad<float>;
  constexpr unsigned kSide = sums.kSide;
  const unsigned first = threadIdx.x % kBeside * kSide, second = threadIdx.x / kBeside * kEach;
#pragma unroll
  for (unsigned k = 0; k < kTileDepth; ++k) {
    Part a[kOwn / kSide];
    float b[kEach];
#pragma unroll
    for (unsigned i = 0; i < kOwn / kSide; ++i)
      a[i] = *reinterpret_cast<const Part*>(&memory.first[k][first + i * sums.kApart]);
    if constexpr (kEach == 4) {
      const auto quad = *reinterpret_cast<const Quad<float>*>(&memory.second[k][second]);
      for (unsigned j = 0; j < kEach; ++j) b[j] = quad.v[j];
    } else {
      for (unsigned j = 0; j < kEach; ++j) b[j] = memory.second[k][second + j];
    }
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) {
#pragma unroll
      for (unsigned i = 0; i < kOwn; ++i)
        sums.v[j][i] = __fmaf_rn(a[i / kSide].v[i % kSide], b[j], sums.v[j][i]);
    }
  }
}

template <unsigned kStrip, typename First, typename Second, typename Put>
__device__ inline void multiply_strip(const First& first, const Second& second,
                                      const TilePlace& place, Put put) {
  constexpr unsigned kEach = kStrip / kAcross;
  auto& memory = shared<Memory>();
  auto next_first = steps_of<kTileLines>(first, place.first_line, place);
  auto next_second = steps_of<kStrip>(second, place.second_line, place);
  Sums<kEach> sums{};
  next_first.load(place.begin, place.end);
  next_second.load(place.begin, place.end);
  for (std::uint64_t depth = place.begin; depth < place.end; depth += kTileDepth) {
    next_first.own.each(first.along, [&](unsigned line, unsigned term, const auto& quad) {
      put_quad(first.along, line, term, quad, memory.first);
    });
    next_second.own.each(second.along, [&](unsigned line, unsigned term, const auto& quad) {
      put_quad(second.along, line, term, quad, memory.second);
    });
    __syncthreads();
    if (depth + kTileDepth < place.end) {
      next_first.load(depth + kTileDepth, place.end);
      next_second.load(depth + kTileDepth, place.end);
    }
    add_step(memory, sums);
    __syncthreads();
  }
  sums.line = place.first_line + threadIdx.x % kBeside * sums.kSide;
  sums.of = place.second_line + threadIdx.x / kBeside * kEach;
  if (sums.line >= first.lines || sums.of >= second.lines) return;
  sums.lines = first.lines - sums.line;
  sums.count = second.lines - sums.of;
  put(sums);
}

}  // namespace tile

/// By a block of kTileThreads, once a kernel: calls `put(sums)`, a tile::Sums, of the threads whose first sum
/// is there.
template <typename First, typename Second, typename Put>
__device__ inline void multiply_tile(const First& first, const Second& second,
                                     const TilePlace& place, Put put) {
  const std::uint64_t left = second.lines - place.second_line;
  if (left <= kTileLines / 4) {
    tile::multiply_strip<kTileLines / 4>(first, second, place, put);
  } else if (left <= kTileLines / 2) {
    tile::multiply_strip<kTileLines / 2>(first, second, place, put);
  } else {
    tile::multiply_strip<kTileLines>(first, second, place, put);
  }
}

namespace tile {

/// Sums at `at`, of which `left` have a place there. `stride` is the distance of lines, one of which begins a
/// multiple of their number before `at`.
__device__ inline void put_side(float* at, std::uint64_t left, std::uint64_t stride,
                                const Quad<float>& side) {
  if (left >= 4 && stride % 4 == 0) {
    *reinterpret_cast<Quad<float>*>(in_one(at)) = side;
    return;
  }
#pragma unroll
  for (unsigned k = 0; k < 4; ++k)
    if (k < left) at[k] = side.v[k];
}

/// Lines of the first operand from a part's first on.
template <unsigned kEach>
__device__ inline std::uint64_t left_of(const Sums<kEach>& sums, unsigned part) {
  return sums.lines > part * sums.kApart ? sums.lines - part * sums.kApart : 0;
}

}  // namespace tile

/// Stores the sums of line i of the second operand, of `length` lines of the first, at `to` + i * length.
template <unsigned kEach>
__device__ inline void put_sums(float* to, std::uint64_t length, const tile::Sums<kEach>& sums) {
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    if (j >= sums.count) break;
#pragma unroll
    for (unsigned part = 0; part < sums.kParts; ++part) {
      tile::Quad<float> side;
#pragma unroll
      for (unsigned k = 0; k < sums.kSide; ++k) side.v[k] = sums.v[j][part * sums.kSide + k];
      tile::put_side(to + (sums.of + j) * length + sums.line + part * sums.kApart,
                     tile::left_of(sums, part), length, side);
    }
  }
}

/// Subtracts the sums of line i of the second operand from the values of row picked[i] at `from`, of `length`
/// columns, lines of the first, multiplies by `unit`, a power of two, and leaves them in that row at `to`, which may
/// be `from`. Where all are there, all are read before one is written.
template <unsigned kEach>
__device__ inline void subtract_sums(const float* from, float* to, std::uint64_t length,
                                     const std::uint32_t* picked, float unit,
                                     const tile::Sums<kEach>& sums) {
  using Part = tile::Quad<float>;
  constexpr unsigned kParts = sums.kParts, kApart = sums.kApart;
  std::uint64_t row[kEach];  // where its part begins
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j)
    row[j] = (j < sums.count ? picked[sums.of + j] : 0) * length + sums.line;
  if (sums.count >= kEach && sums.lines >= (kParts - 1) * kApart + 4 && length % 4 == 0) {
    Part part[kEach][kParts];
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) {
#pragma unroll
      for (unsigned p = 0; p < kParts; ++p)
        part[j][p] = *reinterpret_cast<const Part*>(in_one(from + row[j]) + p * kApart);
    }
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) {
#pragma unroll
      for (unsigned p = 0; p < kParts; ++p) {
#pragma unroll
        for (unsigned k = 0; k < 4; ++k)
          part[j][p].v[k] = (part[j][p].v[k] - sums.v[j][4 * p + k]) * unit;
        *reinterpret_cast<Part*>(in_one(to + row[j] + p * kApart)) = part[j][p];
      }
    }
    return;
  }
  const auto place = [](unsigned i) { return i / 4 * kApart + i % 4; };
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const std::uint64_t lines = j < sums.count ? sums.lines : 0;
    float old[tile::kOwn];
#pragma unroll
    for (unsigned i = 0; i < tile::kOwn; ++i)
      old[i] = place(i) < lines ? from[row[j] + place(i)] : 0.0f;
#pragma unroll
    for (unsigned i = 0; i < tile::kOwn; ++i)
      if (place(i) < lines) to[row[j] + place(i)] = (old[i] - sums.v[j][i]) * unit;
  }
}

}  // namespace atomo::cuda
