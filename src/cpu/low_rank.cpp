// SPDX-License-Identifier: Apache-2.0
// This file is compiled once for each instruction set: foreach_target.h includes it again and
// again.
#include "cpu/low_rank.hpp"

#include "cpu/fma_targets-inl.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/low_rank.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "cpu/emit.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Rows whose sums are held in registers together: each load of a right vector serves all.
constexpr std::size_t kRows = 4;

/// One entry.
float SumEntry(const LowRank& pairs, std::size_t row, std::size_t column) {
  float sum = 0;
  for (std::size_t k = 0; k < pairs.count; ++k)
    sum = std::fma(pairs.left[k * pairs.rows + row], pairs.right[k * pairs.columns + column], sum);
  return sum * pairs.scale;
}

/// `sums` row i (of `width` columns) = row `first` + i of the pairs' sum, from `column` to `end`.
void SumRows(const LowRank& pairs, std::size_t first, std::size_t rows, std::size_t column,
             std::size_t end, std::size_t width, float* sums) {
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, pairs.scale);
  std::size_t j = column;
  for (; rows == kRows && j + 2 * lanes <= end; j += 2 * lanes) {
    auto a0 = hn::Zero(d), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, e0 = a0, e1 = a0;
    for (std::size_t k = 0; k < pairs.count; ++k) {
      const float* const right = pairs.right + k * pairs.columns + j;
      const float* const left = pairs.left + k * pairs.rows + first;
      const auto r0 = hn::LoadU(d, right), r1 = hn::LoadU(d, right + lanes);
      const auto l0 = hn::Set(d, left[0]), l1 = hn::Set(d, left[1]);
      a0 = hn::MulAdd(l0, r0, a0);
      a1 = hn::MulAdd(l0, r1, a1);
      b0 = hn::MulAdd(l1, r0, b0);
      b1 = hn::MulAdd(l1, r1, b1);
      const auto l2 = hn::Set(d, left[2]), l3 = hn::Set(d, left[3]);
      c0 = hn::MulAdd(l2, r0, c0);
      c1 = hn::MulAdd(l2, r1, c1);
      e0 = hn::MulAdd(l3, r0, e0);
      e1 = hn::MulAdd(l3, r1, e1);
    }
    const auto store = [&](std::size_t row, decltype(a0) low, decltype(a0) high) {
      float* const out = sums + row * width + (j - column);
      hn::StoreU(hn::Mul(low, scale), d, out);
      hn::StoreU(hn::Mul(high, scale), d, out + lanes);
    };
    store(0, a0, a1);
    store(1, b0, b1);
    store(2, c0, c1);
    store(3, e0, e1);
  }
#else
  std::size_t j = column;
#endif
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = j; i < end; ++i)
      sums[row * width + (i - column)] = SumEntry(pairs, first + row, i);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
namespace {

HWY_EXPORT(SumRows);

/// Columns whose right vectors stay in a near cache while all rows pass over them.
constexpr std::size_t kTileColumns = 256, kTileRows = 4;

}  // namespace

bool add_low_rank(const LowRank& pairs, std::size_t first, std::size_t end, const float* rest,
                  cpu::DecodeMode mode, float* y) noexcept {
  bool infinite = false;
  float sums[kTileRows * kTileColumns];
  for (std::size_t column = 0; column < pairs.columns; column += kTileColumns) {
    const std::size_t last = std::min(pairs.columns, column + kTileColumns);
    for (std::size_t row = first; row < end; row += kTileRows) {
      const std::size_t rows = std::min(kTileRows, end - row);
      HWY_DYNAMIC_DISPATCH(SumRows)(pairs, row, rows, column, last, kTileColumns, sums);
      for (std::size_t i = 0; i < rows; ++i) {
        const std::size_t at = (row - first + i) * pairs.columns + column;
        float* const values = sums + i * kTileColumns;
        for (std::size_t j = 0; j < last - column; ++j) values[j] = values[j] + rest[at + j];
        infinite |= emit(values, last - column, mode, y + at);
      }
    }
  }
  return infinite;
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
