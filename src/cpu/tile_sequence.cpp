// SPDX-License-Identifier: Apache-2.0
/// A transform folds the rows of a tile, multiplies them by small matrices, and does the same to its
/// columns: of each product a row is a sum of rows, lanes are columns. A tile and what is made of it stay
/// in the L1 and L2 caches.

#include "cpu/tile_sequence.hpp"

#include <algorithm>
#include <cmath>

#include "core/run_tasks.hpp"
#include "cpu/fma_targets-inl.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tile_sequence.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef ATOMO_CPU_TILE_TRANSFORM_ONCE
#define ATOMO_CPU_TILE_TRANSFORM_ONCE
namespace atomo::cpu {
namespace {

inline constexpr std::size_t kStride = math::kMaxTileSide;

/// Rows kStride apart, those behind a row's end any numbers.
struct alignas(64) TileMatrix {
  float at[kStride * kStride];
};

/// What a tile is multiplied by, and where its frequencies stand.
struct Bases {
  std::size_t height, width;
  TileMatrix left, right;        ///< of the places of folded columns and rows, 0 between segments
  std::uint8_t row_of[kStride];  ///< frequencies of places
};

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
template <class D, class V>
HWY_INLINE V fused(D d, V a, V b, V c) {
  return hn::Set(d, std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
}
#else
template <class D, class V>
HWY_INLINE V fused(D, V a, V b, V c) {
  return hn::MulAdd(a, b, c);
}
#endif

/// kRows rows from `row` on of a product of rows of `a` with numbers [begin, end) of b.
template <std::size_t kRows, std::size_t kVectors, class D>
HWY_INLINE void multiply_rows(D d, const TileMatrix& a, const TileMatrix& b, std::size_t row,
                              std::size_t begin, std::size_t end, std::size_t column,
                              TileMatrix& out) {
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kRows][kVectors];
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::size_t i = begin; i < end; ++i) {
    hn::Vec<D> right[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v)
      right[v] = hn::LoadU(d, b.at + i * kStride + column + v * lanes);
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto left = hn::Set(d, a.at[(row + r) * kStride + i]);
      for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = fused(d, left, right[v], sum[r][v]);
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v)
      hn::StoreU(sum[r][v], d, out.at + (row + r) * kStride + column + v * lanes);
  }
}

/// Entries [top, bottom) x [left, right) of a product whose sums go over [begin, end); writes up to
/// 31 entries behind a row's end, within kStride.
HWY_INLINE void multiply_block(const TileMatrix& a, const TileMatrix& b, std::size_t top,
                               std::size_t bottom, std::size_t begin, std::size_t end,
                               std::size_t left, std::size_t right, TileMatrix& out) {
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t column = left; column < right;) {
    const bool two = right - column > lanes;
    std::size_t row = top;
    for (; row + 4 <= bottom; row += 4) {
      two ? multiply_rows<4, 2>(d, a, b, row, begin, end, column, out)
          : multiply_rows<4, 1>(d, a, b, row, begin, end, column, out);
    }
    for (; row < bottom; ++row) {
      two ? multiply_rows<1, 2>(d, a, b, row, begin, end, column, out)
          : multiply_rows<1, 1>(d, a, b, row, begin, end, column, out);
    }
    column += two ? 2 * lanes : lanes;
  }
}

/// Sums and differences of the rows or the columns on both sides of a middle: a fold, and what undoes it
/// but for a factor that the basis has.
HWY_INLINE void fold_rows(TileMatrix& tile, std::size_t half, std::size_t width) {
  const hn::CappedTag<float, 16> d;
  for (std::size_t i = 0; i < half; ++i) {
    float* const before = tile.at + (half - 1 - i) * kStride;
    float* const behind = tile.at + (half + i) * kStride;
    for (std::size_t c = 0; c < width; c += hn::Lanes(d)) {
      const auto a = hn::Load(d, before + c), b = hn::Load(d, behind + c);
      hn::Store(hn::Add(a, b), d, before + c);
      hn::Store(hn::Sub(a, b), d, behind + c);
    }
  }
}
HWY_INLINE void fold_columns(TileMatrix& tile, std::size_t half, std::size_t height) {
  const hn::CappedTag<float, 8> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t r = 0; r < height; ++r) {
    float* const middle = tile.at + r * kStride + half;
    std::size_t i = 0;
    for (; i + lanes <= half; i += lanes) {
      float* const before = middle - i - lanes;
      const auto a = hn::Reverse(d, hn::LoadU(d, before)), b = hn::LoadU(d, middle + i);
      hn::StoreU(hn::Reverse(d, hn::Add(a, b)), d, before);
      hn::StoreU(hn::Sub(a, b), d, middle + i);
    }
    for (; i < half; ++i) {
      float &a = *(middle - 1 - i), &b = middle[i];
      const float sum = a + b, difference = a - b;
      a = sum;
      b = difference;
    }
  }
}

/// Calls `visit(begin, end)` for the segments of a folded vector, ascending.
template <typename Visit>
HWY_INLINE void each_segment(std::size_t n, Visit visit) {
  std::size_t end = math::dct::folded_length(static_cast<std::uint32_t>(n));
  visit(std::size_t{0}, end);
  for (; end < n; end *= 2) visit(end, 2 * end);
}

/// Numbers at their places to frequencies in order: those of a segment stand between those before it.
HWY_INLINE void order_row(const float* places, std::size_t n, float* frequencies) {
  const hn::CappedTag<float, 8> d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN float room[2][kStride];
  const float* even = places;
  std::size_t end = math::dct::folded_length(static_cast<std::uint32_t>(n));
  if (end == n) std::copy_n(places, n, frequencies);
  for (unsigned side = 0; end < n; end *= 2, side ^= 1) {
    const float* const odd = places + end;
    float* const to = 2 * end == n ? frequencies : room[side];
    std::size_t i = 0;
    for (; i + lanes <= end; i += lanes)
      hn::StoreInterleaved2(hn::LoadU(d, even + i), hn::LoadU(d, odd + i), d, to + 2 * i);
    for (; i < end; ++i) to[2 * i] = even[i], to[2 * i + 1] = odd[i];
    even = to;
  }
}
/// The reverse.
HWY_INLINE void place_row(const float* frequencies, std::size_t n, float* places) {
  const hn::CappedTag<float, 8> d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN float room[2][kStride];
  const float* from = frequencies;
  unsigned side = 0;
  for (; math::dct::folds(static_cast<std::uint32_t>(n)); n /= 2, side ^= 1) {
    float* const even = room[side];
    float* const odd = places + n / 2;
    std::size_t i = 0;
    for (; i + lanes <= n / 2; i += lanes) {
      hn::Vec<decltype(d)> a, b;
      hn::LoadInterleaved2(d, from + 2 * i, a, b);
      hn::StoreU(a, d, even + i);
      hn::StoreU(b, d, odd + i);
    }
    for (; i < n / 2; ++i) even[i] = from[2 * i], odd[i] = from[2 * i + 1];
    from = even;
  }
  std::copy_n(from, n, places);
}

HWY_INLINE void scale_in(const float* row, std::size_t n, float* to) {
  for (std::size_t c = 0; c < n; ++c) to[c] = row[c] * math::dct::kScaleIn;
}
HWY_INLINE void scale_out(float* row, std::size_t n) {
  for (std::size_t c = 0; c < n; ++c) row[c] = math::dct::scaled_out(row[c]);
}

/// A tile whose rows are `apart` from each other to its frequencies, one row after the other.
void transform_tile(const Bases& bases, const float* x, std::size_t apart, float* frequencies) {
  const std::size_t h = bases.height, w = bases.width;
  TileMatrix tile, half;
  for (std::size_t r = 0; r < h; ++r) scale_in(x + r * apart, w, tile.at + r * kStride);
  for (std::size_t n = w; math::dct::folds(static_cast<std::uint32_t>(n)); n /= 2)
    fold_columns(tile, n / 2, h);
  each_segment(w, [&](std::size_t begin, std::size_t end) {
    multiply_block(tile, bases.right, 0, h, begin, end, begin, end, half);
  });
  for (std::size_t n = h; math::dct::folds(static_cast<std::uint32_t>(n)); n /= 2)
    fold_rows(half, n / 2, w);
  each_segment(h, [&](std::size_t begin, std::size_t end) {
    multiply_block(bases.left, half, begin, end, begin, end, 0, w, tile);
  });
  for (std::size_t r = 0; r < h; ++r) {
    scale_out(tile.at + r * kStride, w);
    order_row(tile.at + r * kStride, w, frequencies + bases.row_of[r] * w);
  }
}

/// Frequencies to a tile whose rows are kStride apart.
void restore_tile(const Bases& bases, const float* frequencies, TileMatrix& tile) {
  const std::size_t h = bases.height, w = bases.width;
  TileMatrix half;
  for (std::size_t r = 0; r < h; ++r) {
    float* const row = tile.at + r * kStride;
    place_row(frequencies + bases.row_of[r] * w, w, row);
    scale_in(row, w, row);
  }
  each_segment(h, [&](std::size_t begin, std::size_t end) {
    multiply_block(bases.left, tile, begin, end, begin, end, 0, w, half);
  });
  for (std::size_t n = math::dct::folded_length(static_cast<std::uint32_t>(h)); n < h; n *= 2)
    fold_rows(half, n, w);
  each_segment(w, [&](std::size_t begin, std::size_t end) {
    multiply_block(half, bases.right, 0, h, begin, end, begin, end, tile);
  });
  for (std::size_t n = math::dct::folded_length(static_cast<std::uint32_t>(w)); n < w; n *= 2)
    fold_columns(tile, n, h);
  for (std::size_t r = 0; r < h; ++r) scale_out(tile.at + r * kStride, w);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(transform_tile);
HWY_EXPORT(restore_tile);

namespace {

using math::Tiles;

constexpr std::size_t kGrain = 32;  ///< tiles of a task
constexpr math::dct::Table kTable = math::dct::make_table();

/// The factors of a side of n entries: each row a place's, or, `across`, each column.
void fill_factors(std::uint32_t n, bool across, TileMatrix& out) {
  for (std::uint32_t place = 0; place < n; ++place) {
    const math::dct::Segment own = math::dct::segment_of(n, place);
    for (std::uint32_t i = own.begin; i < own.end; ++i)
      out.at[across ? i * kStride + place : place * kStride + i] =
          math::dct::factor(kTable, n, place, i);
  }
}

Bases bases_of(const Tiles& tiles, bool inverse) noexcept {
  Bases bases{tiles.height, tiles.width, {}, {}, {}};
  fill_factors(tiles.height, inverse, bases.left);
  fill_factors(tiles.width, !inverse, bases.right);
  for (std::uint32_t r = 0; r < tiles.height; ++r)
    bases.row_of[r] = static_cast<std::uint8_t>(math::dct::frequency_of(tiles.height, r));
  return bases;
}

/// Calls `visit(tile's first entry in the tensor, in the sequence)` for all tiles.
template <typename Visit>
void each_tile(const Tiles& tiles, Executor* executor, const Visit& visit) noexcept {
  const auto count = static_cast<std::size_t>(tiles.count());
  core::run_ranges(executor, count, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t tile = begin; tile < end; ++tile)
      visit(static_cast<std::size_t>(tiles.first(tile)), tile * tiles.entries());
  });
}

void put_row(const float* values, std::size_t n, bool add, float alpha, float* y) noexcept {
  if (!add) {
    std::copy_n(values, n, y);
    return;
  }
  for (std::size_t i = 0; i < n; ++i) y[i] = y[i] + (alpha * values[i]);
}

}  // namespace

void to_tiles(const Tiles& tiles, bool transforms, const float* x, float* sequence,
              Executor* executor) noexcept {
  const std::size_t h = tiles.height, w = tiles.width;
  if (!transforms) {
    each_tile(tiles, executor, [&](std::size_t first, std::size_t at) {
      for (std::size_t r = 0; r < h; ++r)
        std::copy_n(x + first + r * tiles.columns, w, sequence + at + r * w);
    });
    return;
  }
  const Bases bases = bases_of(tiles, false);
  each_tile(tiles, executor, [&](std::size_t first, std::size_t at) {
    HWY_DYNAMIC_DISPATCH(transform_tile)(bases, x + first, tiles.columns, sequence + at);
  });
}

void from_tiles(const Tiles& tiles, bool transforms, const float* sequence, bool add, float alpha,
                float* y, Executor* executor) noexcept {
  const std::size_t h = tiles.height, w = tiles.width;
  if (!transforms) {
    each_tile(tiles, executor, [&](std::size_t first, std::size_t at) {
      for (std::size_t r = 0; r < h; ++r)
        put_row(sequence + at + r * w, w, add, alpha, y + first + r * tiles.columns);
    });
    return;
  }
  const Bases bases = bases_of(tiles, true);
  each_tile(tiles, executor, [&](std::size_t first, std::size_t at) {
    TileMatrix tile;
    HWY_DYNAMIC_DISPATCH(restore_tile)(bases, sequence + at, tile);
    for (std::size_t r = 0; r < h; ++r)
      put_row(tile.at + r * kStride, w, add, alpha, y + first + r * tiles.columns);
  });
}

}  // namespace atomo::cpu
#endif
