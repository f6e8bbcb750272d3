// SPDX-License-Identifier: Apache-2.0
/// A transform folds the rows of a tile, multiplies them by small matrices, and does the same to its
/// columns: of each product a row is a sum of rows, lanes are columns. Its inverse leaves out the terms of
/// rows and columns without a kept entry: they change nothing unless a sum is -0, which none is where kept
/// entries are 0 or at least kLeast (cuda/tile_inverse.cu has the reason). A tile and what is made of it
/// stay in the L1 and L2 caches.

#include "cpu/tile_sequence.hpp"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/fma_targets-inl.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tile_sequence.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef ATOMO_CPU_TILE_SEQUENCE_ONCE
#define ATOMO_CPU_TILE_SEQUENCE_ONCE
namespace atomo::cpu {
namespace {

inline constexpr std::size_t kStride = TileMatrix::kStride;

/// Kept entries that are smaller may make a sum that is rounded to -0.
inline constexpr float kLeast = 0x1p-52f;

/// A tile in a tensor, its rows `apart` entries from each other.
template <typename T>
struct TileRows {
  T* first;
  std::size_t height, width, apart;
};

/// Where a tile's values go: y[i] = v, or y[i] + (alpha * v) where `add`.
struct TileOutput {
  TileRows<float> rows;
  bool add;
  float alpha;
};

/// Some of the places of a folded side, ascending, and the number of each among them.
struct Places {
  std::uint8_t at[kStride], number[kStride + 1];  ///< of a place: of those before it
  std::size_t count = 0;

  Places(std::uint64_t marks, std::size_t n) noexcept {
    for (std::size_t place = 0; place < n; ++place) {
      number[place] = static_cast<std::uint8_t>(count);
      at[count] = static_cast<std::uint8_t>(place);
      count += marks >> place & 1;
    }
    number[n] = static_cast<std::uint8_t>(count);
  }
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

/// kRows rows from `row` on of a product: over the terms t from `begin` to before `end`, columns a_of(t) of
/// `a` times rows b_of(t) of `b`.
template <std::size_t kRows, std::size_t kVectors, class D, class AOf, class BOf>
HWY_INLINE void multiply_rows(D d, const TileMatrix& a, AOf a_of, const TileMatrix& b, BOf b_of,
                              std::size_t row, std::size_t begin, std::size_t end,
                              std::size_t column, TileMatrix& out) {
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kRows][kVectors];
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::size_t t = begin; t < end; ++t) {
    const float* const left = a.at + row * kStride + a_of(t);
    hn::Vec<D> right[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v)
      right[v] = hn::LoadU(d, b.at + b_of(t) * kStride + column + v * lanes);
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, left[r * kStride]);
      for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = fused(d, factor, right[v], sum[r][v]);
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v)
      hn::StoreU(sum[r][v], d, out.at + (row + r) * kStride + column + v * lanes);
  }
}

/// Entries [top, bottom) x [left, right) of such a product; writes up to 31 entries behind a row's end,
/// within kStride.
template <class AOf, class BOf>
HWY_INLINE void multiply_block(const TileMatrix& a, AOf a_of, const TileMatrix& b, BOf b_of,
                               std::size_t top, std::size_t bottom, std::size_t begin,
                               std::size_t end, std::size_t left, std::size_t right,
                               TileMatrix& out) {
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t column = left; column < right;) {
    const bool two = right - column > lanes;
    std::size_t row = top;
    for (; row + 4 <= bottom; row += 4) {
      two ? multiply_rows<4, 2>(d, a, a_of, b, b_of, row, begin, end, column, out)
          : multiply_rows<4, 1>(d, a, a_of, b, b_of, row, begin, end, column, out);
    }
    for (; row < bottom; ++row) {
      two ? multiply_rows<1, 2>(d, a, a_of, b, b_of, row, begin, end, column, out)
          : multiply_rows<1, 1>(d, a, a_of, b, b_of, row, begin, end, column, out);
    }
    column += two ? 2 * lanes : lanes;
  }
}

/// Zeros in the vectors that rows end in: what stands behind an end is calculated with too, and takes long
/// where it is subnormal.
HWY_INLINE void clear_ends(TileMatrix& tile, std::size_t height, std::size_t width) {
  const hn::CappedTag<float, 16> d;
  const std::size_t last = (width - 1) / hn::Lanes(d) * hn::Lanes(d);
  for (std::size_t r = 0; r < height; ++r) hn::Store(hn::Zero(d), d, tile.at + r * kStride + last);
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

/// `math::dct::scaled_out` in lanes, of numbers that are no NaN.
template <class D, class V>
HWY_INLINE V scaled_out(D d, V x) {
  const auto most = hn::Set(d, std::numeric_limits<float>::max());
  return hn::Max(hn::Min(hn::Mul(x, hn::Set(d, math::dct::kScaleOut)), most), hn::Neg(most));
}

/// Numbers at their places in a row to frequencies in order, scaled: those of a segment stand between those
/// before it.
HWY_INLINE void order_row(const float* places, std::size_t n, float* frequencies) {
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN float room[2][kStride];
  const float* even = places;
  unsigned side = 0;
  for (std::size_t end = math::dct::folded_length(static_cast<std::uint32_t>(n)); end < n;
       end *= 2, side ^= 1) {
    for (std::size_t i = 0; i < end; i += lanes)
      hn::StoreInterleaved2(hn::LoadU(d, even + i), hn::LoadU(d, places + end + i), d,
                            room[side] + 2 * i);
    even = room[side];
  }
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(scaled_out(d, hn::Load(d, even + i)), d, frequencies + i);
  for (; i < n; ++i) frequencies[i] = math::dct::scaled_out(even[i]);
}

/// A tile to its frequencies, one row after the other; false where an entry is not finite.
bool transform_tile(const TileFactors& factors, const TileRows<const float>& x,
                    float* frequencies) {
  const std::size_t h = x.height, w = x.width;
  const auto same = [](std::size_t t) { return t; };
  TileMatrix tile, half;
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  auto largest = hn::Zero(di);
  for (std::size_t r = 0; r < h; ++r) {
    const float* const row = x.first + r * x.apart;
    for (std::size_t c = 0; c < w; c += hn::Lanes(d)) {
      const std::size_t left = w - c;
      const auto v = left < hn::Lanes(d) ? hn::MaskedLoad(hn::FirstN(d, left), d, row + c)
                                         : hn::LoadU(d, row + c);
      largest = hn::Max(largest, hn::BitCast(di, hn::Abs(v)));
      hn::Store(hn::Mul(v, hn::Set(d, math::dct::kScaleIn)), d, tile.at + r * kStride + c);
      hwy::Prefetch(row + w + c);  // the next tile
    }
  }
  if (hn::GetLane(hn::MaxOfLanes(di, largest)) >= 0x7F800000) return false;
  for (std::size_t n = w; math::dct::folds(static_cast<std::uint32_t>(n)); n /= 2)
    fold_columns(tile, n / 2, h);
  clear_ends(half, h, w);
  each_segment(w, [&](std::size_t begin, std::size_t end) {
    multiply_block(tile, same, factors.right, same, 0, h, begin, end, begin, end, half);
  });
  for (std::size_t n = h; math::dct::folds(static_cast<std::uint32_t>(n)); n /= 2)
    fold_rows(half, n / 2, w);
  each_segment(h, [&](std::size_t begin, std::size_t end) {
    multiply_block(factors.left, same, half, same, begin, end, begin, end, 0, w, tile);
  });
  for (std::size_t r = 0; r < h; ++r)
    order_row(tile.at + r * kStride, w, frequencies + factors.row_of[r] * w);
  return true;
}

/// Writes rows of a tile, vectors of values(row, column), into the tensor.
template <class D, typename Values>
HWY_INLINE void put_rows(D d, const TileOutput& out, Values values) {
  const std::size_t lanes = hn::Lanes(d), w = out.rows.width;
  const auto alpha = hn::Set(d, out.alpha);
  for (std::size_t r = 0; r < out.rows.height; ++r) {
    float* const y = out.rows.first + r * out.rows.apart;
    const auto put = [&](std::size_t c, float* to) {
      const auto v = values(r, c);
      hn::StoreU(out.add ? hn::Add(hn::LoadU(d, to), hn::Mul(alpha, v)) : v, d, to);
    };
    std::size_t c = 0;
    for (; c + lanes <= w; c += lanes) put(c, y + c);
    if (c == w) continue;
    float tail[16];
    std::copy_n(y + c, w - c, tail);
    put(c, tail);
    std::copy_n(tail, w - c, y + c);
  }
}

void put_tile(const TileMatrix& tile, const TileOutput& out) {
  const hn::CappedTag<float, 16> d;
  put_rows(d, out,
           [&](std::size_t r, std::size_t c) { return hn::Load(d, tile.at + r * kStride + c); });
}

/// Transforms a tile back, of which `tile` has the scaled entries of kept rows and columns.
void restore_tile(const TileFactors& factors, const Places& rows, const Places& columns,
                  TileMatrix& tile, const TileOutput& out) {
  const std::size_t h = out.rows.height, w = out.rows.width;
  const auto same = [](std::size_t t) { return t; };
  TileMatrix half;
  each_segment(h, [&](std::size_t begin, std::size_t end) {
    multiply_block(
        factors.left, [&](std::size_t t) { return rows.at[t]; }, tile, same, begin, end,
        rows.number[begin], rows.number[end], 0, columns.count, half);
  });
  for (std::size_t n = math::dct::folded_length(static_cast<std::uint32_t>(h)); n < h; n *= 2)
    fold_rows(half, n, columns.count);
  clear_ends(tile, h, w);
  each_segment(w, [&](std::size_t begin, std::size_t end) {
    multiply_block(
        half, same, factors.right, [&](std::size_t t) { return columns.at[t]; }, 0, h,
        columns.number[begin], columns.number[end], begin, end, tile);
  });
  for (std::size_t n = math::dct::folded_length(static_cast<std::uint32_t>(w)); n < w; n *= 2)
    fold_columns(tile, n, h);
  const hn::CappedTag<float, 16> d;
  put_rows(d, out, [&](std::size_t r, std::size_t c) {
    return scaled_out(d, hn::Load(d, tile.at + r * kStride + c));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(transform_tile);
HWY_EXPORT(put_tile);
HWY_EXPORT(restore_tile);

namespace {

constexpr math::dct::Table kTable = math::dct::make_table();

/// The factors of a side of n entries: each row a place's, or, `across`, each column.
void fill_factors(std::uint32_t n, bool across, TileMatrix& out) noexcept {
  for (std::uint32_t place = 0; place < n; ++place) {
    const math::dct::Segment own = math::dct::segment_of(n, place);
    for (std::uint32_t i = own.begin; i < own.end; ++i)
      out.at[across ? i * kStride + place : place * kStride + i] =
          math::dct::basis(kTable, n, own.frequency(place), own.entry(i));
  }
}

/// Of each place its frequency, or, `inverse`, of each frequency its place.
void fill_order(std::uint32_t n, bool inverse, std::uint8_t* to) noexcept {
  for (std::uint32_t place = 0; place < n; ++place) {
    const std::uint32_t frequency = math::dct::frequency_of(n, place);
    to[inverse ? frequency : place] = static_cast<std::uint8_t>(inverse ? place : frequency);
  }
}

}  // namespace

TileFactors::TileFactors(const math::Tiles& tiles, bool inverse) noexcept : left{}, right{} {
  fill_factors(tiles.height, inverse, left);
  fill_factors(tiles.width, !inverse, right);
  fill_order(tiles.height, inverse, row_of);
  fill_order(tiles.width, inverse, column_of);
}

bool TileReader::read(std::uint64_t tile, float* sequence) const noexcept {
  const TileRows<const float> rows{x_ + tiles_.first(tile), tiles_.height, tiles_.width,
                                   tiles_.columns};
  if (factors_) return HWY_DYNAMIC_DISPATCH(transform_tile)(*factors_, rows, sequence);
  for (std::size_t r = 0; r < rows.height; ++r)
    std::copy_n(rows.first + r * rows.apart, rows.width, sequence + r * rows.width);
  return true;
}

void TileWriter::write(std::uint64_t tile, std::span<const KeptEntry> kept) const noexcept {
  const std::size_t h = tiles_.height, w = tiles_.width;
  const TileOutput out{{y_ + tiles_.first(tile), h, w, tiles_.columns}, add_, alpha_};
  TileMatrix matrix;
  if (!factors_) {
    for (std::size_t r = 0; r < h; ++r) std::fill_n(matrix.at + r * kStride, w, 0.0f);
    for (const KeptEntry& entry : kept)
      matrix.at[entry.place / w * kStride + entry.place % w] = entry.value;
    return HWY_DYNAMIC_DISPATCH(put_tile)(matrix, out);
  }
  std::uint64_t row_marks = 0, column_marks = 0;
  for (const KeptEntry& entry : kept) {
    row_marks |= std::uint64_t{1} << factors_->row_of[entry.place / w];
    column_marks |= std::uint64_t{1} << factors_->column_of[entry.place % w];
    if (entry.value != 0 && std::abs(entry.value) < kLeast) row_marks = column_marks = ~0ull;
  }
  const Places rows(row_marks, h), columns(column_marks, w);
  std::fill_n(matrix.at, rows.count * kStride, 0.0f);
  for (const KeptEntry& entry : kept) {
    const std::size_t row = rows.number[factors_->row_of[entry.place / w]];
    const std::size_t column = columns.number[factors_->column_of[entry.place % w]];
    matrix.at[row * kStride + column] = entry.value * math::dct::kScaleIn;
  }
  HWY_DYNAMIC_DISPATCH(restore_tile)
  (*factors_, rows, columns, matrix, out);
}

}  // namespace atomo::cpu
#endif
