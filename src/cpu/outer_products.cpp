// SPDX-License-Identifier: Apache-2.0
// This file is compiled once for each instruction set: foreach_target.h includes it again and
// again.
#include "cpu/outer_products.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/outer_products.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "core/run_tasks.hpp"
#include "cpu/emit.hpp"

#ifndef ATOMO_CPU_OUTER_PRODUCTS_ONCE
#define ATOMO_CPU_OUTER_PRODUCTS_ONCE
namespace atomo::cpu {

/// Columns of a tile, whose sums are kept in f64 from one block of pairs to the next.
constexpr std::size_t kTileColumns = 64;

/// A tile of the result, and which pairs to add to it.
struct OuterBlock {
  std::size_t row, rows, column, columns, first_pair, end_pair;
};

}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Rows whose sums are held in registers together: each load of a right vector serves all.
constexpr std::size_t kRows = 4;

/// Entry after entry: the rows and columns that the wider loops leave. `sums` starts at row 0 of
/// `block` and its first column.
void AddEntries(const OuterProducts& pairs, const OuterBlock& block, std::size_t row,
                std::size_t column, double* sums) {
  for (std::size_t k = block.first_pair; k < block.end_pair; ++k) {
    const auto left = static_cast<double>(pairs.left[k * pairs.rows + block.row + row]);
    const float* const right = pairs.right + k * pairs.columns + block.column;
    for (std::size_t j = column; j < block.columns; ++j)
      sums[row * kTileColumns + j] += left * static_cast<double>(right[j]);
  }
}

/// Adds the products of a block's pairs to `sums`, rows of kTileColumns. Entries are independent, so
/// lanes change nothing; a multiplication and an addition, never fused, pair after pair.
void AddBlock(const OuterProducts& pairs, const OuterBlock& block, double* sums) {
  const hn::ScalableTag<double> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  const std::size_t lanes = hn::Lanes(wide);
  std::size_t row = 0;
  for (; row + kRows <= block.rows; row += kRows) {
    std::size_t j = 0;
    for (; j + 2 * lanes <= block.columns; j += 2 * lanes) {
      double* const s0 = sums + row * kTileColumns + j;
      double *const s1 = s0 + kTileColumns, *const s2 = s1 + kTileColumns,
                    *const s3 = s2 + kTileColumns;
      auto a0 = hn::LoadU(wide, s0), a1 = hn::LoadU(wide, s0 + lanes);
      auto b0 = hn::LoadU(wide, s1), b1 = hn::LoadU(wide, s1 + lanes);
      auto c0 = hn::LoadU(wide, s2), c1 = hn::LoadU(wide, s2 + lanes);
      auto e0 = hn::LoadU(wide, s3), e1 = hn::LoadU(wide, s3 + lanes);
      for (std::size_t k = block.first_pair; k < block.end_pair; ++k) {
        const float* const right = pairs.right + k * pairs.columns + block.column + j;
        const float* const left = pairs.left + k * pairs.rows + block.row + row;
        const auto r0 = hn::PromoteTo(wide, hn::LoadU(narrow, right));
        const auto r1 = hn::PromoteTo(wide, hn::LoadU(narrow, right + lanes));
        const auto l0 = hn::Set(wide, static_cast<double>(left[0]));
        const auto l1 = hn::Set(wide, static_cast<double>(left[1]));
        a0 = hn::Add(a0, hn::Mul(l0, r0));
        a1 = hn::Add(a1, hn::Mul(l0, r1));
        b0 = hn::Add(b0, hn::Mul(l1, r0));
        b1 = hn::Add(b1, hn::Mul(l1, r1));
        const auto l2 = hn::Set(wide, static_cast<double>(left[2]));
        const auto l3 = hn::Set(wide, static_cast<double>(left[3]));
        c0 = hn::Add(c0, hn::Mul(l2, r0));
        c1 = hn::Add(c1, hn::Mul(l2, r1));
        e0 = hn::Add(e0, hn::Mul(l3, r0));
        e1 = hn::Add(e1, hn::Mul(l3, r1));
      }
      hn::StoreU(a0, wide, s0), hn::StoreU(a1, wide, s0 + lanes);
      hn::StoreU(b0, wide, s1), hn::StoreU(b1, wide, s1 + lanes);
      hn::StoreU(c0, wide, s2), hn::StoreU(c1, wide, s2 + lanes);
      hn::StoreU(e0, wide, s3), hn::StoreU(e1, wide, s3 + lanes);
    }
    for (std::size_t i = 0; i < kRows; ++i) AddEntries(pairs, block, row + i, j, sums);
  }
  for (; row < block.rows; ++row) AddEntries(pairs, block, row, 0, sums);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
namespace {

HWY_EXPORT(AddBlock);

constexpr std::size_t kTileRows = 64;
/// Pairs whose stretches of both vectors stay in a near cache while a tile's rows pass over them.
constexpr std::size_t kBlockPairs = 64;

}  // namespace

Status sum_outer_products(const OuterProducts& pairs, cpu::DecodeMode mode, float* y,
                          Executor* executor) noexcept {
  std::atomic<bool> overflow{false};
  run_ranges(executor, pairs.rows, kTileRows, [&](std::size_t begin, std::size_t end) {
    double sums[kTileRows * kTileColumns];
    float values[kTileColumns];
    for (std::size_t first = 0; first < pairs.columns; first += kTileColumns) {
      const std::size_t columns = std::min(kTileColumns, pairs.columns - first);
      OuterBlock block{begin, end - begin, first, columns, 0, 0};
      std::fill_n(sums, block.rows * kTileColumns, 0.0);
      for (; block.first_pair < pairs.count; block.first_pair = block.end_pair) {
        block.end_pair = std::min(pairs.count, block.first_pair + kBlockPairs);
        HWY_DYNAMIC_DISPATCH(AddBlock)(pairs, block, sums);
      }
      for (std::size_t i = 0; i < block.rows; ++i) {
        for (std::size_t j = 0; j < columns; ++j)
          values[j] = static_cast<float>(sums[i * kTileColumns + j] * pairs.scale);
        if (emit(values, columns, mode, y + (begin + i) * pairs.columns + first))
          overflow.store(true, std::memory_order_relaxed);
      }
    }
  });
  return overflow.load(std::memory_order_relaxed) ? Status::overflow : Status::ok;
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
