// SPDX-License-Identifier: Apache-2.0
/// Two products of a tile with a basis, in f64, of which each row is a sum of rows: lanes are columns. A
/// tile and what is made of it stay in the L2 cache.

#include "cpu/tile_sequence.hpp"

#include <algorithm>

#include "core/run_tasks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tile_sequence.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef ATOMO_CPU_TILE_TRANSFORM_ONCE
#define ATOMO_CPU_TILE_TRANSFORM_ONCE
namespace atomo::cpu {
namespace {

/// f32 values in f64, rows kMaxTileSide apart, those behind a row's end any finite numbers.
struct alignas(64) TileMatrix {
  double at[math::kMaxTileSide * math::kMaxTileSide];
};

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// out = a b of m x k and k x n entries, sums in ascending order, rounded to f32 and cut.
void multiply_tiles(const TileMatrix& a, const TileMatrix& b, std::size_t m, std::size_t k,
                    std::size_t n, TileMatrix* out) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  constexpr std::size_t kStride = math::kMaxTileSide;
  const std::size_t lanes = hn::Lanes(d);
  const auto most = hn::Set(d, 0x1.fffffep127), least = hn::Neg(most);
  for (std::size_t row = 0; row < m; ++row) {
    for (std::size_t column = 0; column < n; column += 4 * lanes) {
      auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
      for (std::size_t i = 0; i < k; ++i) {
        const auto left = hn::Set(d, a.at[row * kStride + i]);
        const double* const right = b.at + i * kStride + column;
        sum0 = hn::MulAdd(left, hn::Load(d, right), sum0);
        sum1 = hn::MulAdd(left, hn::Load(d, right + lanes), sum1);
        sum2 = hn::MulAdd(left, hn::Load(d, right + 2 * lanes), sum2);
        sum3 = hn::MulAdd(left, hn::Load(d, right + 3 * lanes), sum3);
      }
      double* const to = out->at + row * kStride + column;
      const auto put = [&](auto sum, std::size_t at) {
        const auto cut = hn::Max(hn::Min(sum, most), least);
        hn::Store(hn::PromoteTo(d, hn::DemoteTo(df, cut)), d, to + at);
      };
      put(sum0, 0);
      put(sum1, lanes);
      put(sum2, 2 * lanes);
      put(sum3, 3 * lanes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(multiply_tiles);

namespace {

using math::Tiles;

constexpr std::size_t kStride = math::kMaxTileSide;
constexpr std::size_t kGrain = 32;  ///< tiles of a task
constexpr math::dct::Table kTable = math::dct::make_table();

/// The matrices that a tile stands between.
struct Bases {
  TileMatrix left, right;

  Bases(const Tiles& tiles, bool inverse) noexcept : left(), right() {
    const std::uint32_t h = tiles.height, w = tiles.width;
    for (std::uint32_t k = 0; k < h; ++k) {
      for (std::uint32_t j = 0; j < h; ++j)
        left.at[inverse ? j * kStride + k : k * kStride + j] = math::dct::basis(kTable, h, k, j);
    }
    for (std::uint32_t k = 0; k < w; ++k) {
      for (std::uint32_t j = 0; j < w; ++j)
        right.at[inverse ? k * kStride + j : j * kStride + k] = math::dct::basis(kTable, w, k, j);
    }
  }
};

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
  const Bases bases(tiles, false);
  each_tile(tiles, executor, [&](std::size_t first, std::size_t at) {
    TileMatrix in, half, out;
    for (std::size_t r = 0; r < h; ++r)
      std::copy_n(x + first + r * tiles.columns, w, in.at + r * kStride);
    HWY_DYNAMIC_DISPATCH(multiply_tiles)(in, bases.right, h, w, w, &half);
    HWY_DYNAMIC_DISPATCH(multiply_tiles)(bases.left, half, h, h, w, &out);
    for (std::size_t r = 0; r < h; ++r) {
      for (std::size_t c = 0; c < w; ++c)
        sequence[at + r * w + c] = static_cast<float>(out.at[r * kStride + c]);
    }
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
  const Bases bases(tiles, true);
  each_tile(tiles, executor, [&](std::size_t first, std::size_t at) {
    TileMatrix in, half, out;
    for (std::size_t r = 0; r < h; ++r) std::copy_n(sequence + at + r * w, w, in.at + r * kStride);
    HWY_DYNAMIC_DISPATCH(multiply_tiles)(bases.left, in, h, h, w, &half);
    HWY_DYNAMIC_DISPATCH(multiply_tiles)(half, bases.right, h, w, w, &out);
    for (std::size_t r = 0; r < h; ++r) {
      float row[kStride];
      for (std::size_t c = 0; c < w; ++c) row[c] = static_cast<float>(out.at[r * kStride + c]);
      put_row(row, w, add, alpha, y + first + r * tiles.columns);
    }
  });
}

}  // namespace atomo::cpu
#endif
