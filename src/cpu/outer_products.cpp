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

#include "cpu/emit.hpp"
#include "cpu/run_tasks.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::detail {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// One row of the result, from column `first` to `end`. Columns are independent, so lanes change
/// nothing; a multiplication and an addition, never fused.
void SumRow(const OuterProducts& pairs, std::size_t row, std::size_t first, std::size_t end,
            float* values) {
  const hn::ScalableTag<double> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  const std::size_t lanes = hn::Lanes(wide);
  const auto scale = hn::Set(wide, pairs.scale);
  std::size_t j = first;
  for (; j + 4 * lanes <= end; j += 4 * lanes) {
    auto sum0 = hn::Zero(wide), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (std::size_t k = 0; k < pairs.count; ++k) {
      const auto left = hn::Set(wide, static_cast<double>(pairs.left[k * pairs.rows + row]));
      const float* const right = pairs.right + k * pairs.columns + j;
      const auto at = [&](std::size_t v) {
        return hn::Mul(left, hn::PromoteTo(wide, hn::LoadU(narrow, right + v * lanes)));
      };
      sum0 = hn::Add(sum0, at(0));
      sum1 = hn::Add(sum1, at(1));
      sum2 = hn::Add(sum2, at(2));
      sum3 = hn::Add(sum3, at(3));
    }
    const auto store = [&](std::size_t v, decltype(sum0) sum) {
      hn::StoreU(hn::DemoteTo(narrow, hn::Mul(sum, scale)), narrow,
                 values + (j - first) + v * lanes);
    };
    store(0, sum0);
    store(1, sum1);
    store(2, sum2);
    store(3, sum3);
  }
  for (; j < end; ++j) {
    double sum = 0;
    for (std::size_t k = 0; k < pairs.count; ++k) {
      sum += static_cast<double>(pairs.left[k * pairs.rows + row]) *
             static_cast<double>(pairs.right[k * pairs.columns + j]);
    }
    values[j - first] = static_cast<float>(sum * pairs.scale);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace atomo::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::detail {
namespace {

HWY_EXPORT(SumRow);

/// Columns whose right vectors stay in a near cache while all rows pass over them.
constexpr std::size_t kTileColumns = 512;

}  // namespace

Status sum_outer_products(const OuterProducts& pairs, cpu::DecodeMode mode, float* y,
                          Executor* executor) noexcept {
  std::atomic<bool> overflow{false};
  run_ranges(executor, pairs.rows, 64, [&](std::size_t begin, std::size_t end) {
    float values[kTileColumns];
    for (std::size_t first = 0; first < pairs.columns; first += kTileColumns) {
      const std::size_t last = std::min(pairs.columns, first + kTileColumns);
      for (std::size_t row = begin; row < end; ++row) {
        HWY_DYNAMIC_DISPATCH(SumRow)(pairs, row, first, last, values);
        if (emit(values, last - first, mode, y + row * pairs.columns + first)) {
          overflow.store(true, std::memory_order_relaxed);
        }
      }
    }
  });
  return overflow.load(std::memory_order_relaxed) ? Status::overflow : Status::ok;
}

}  // namespace atomo::detail
#endif  // HWY_ONCE
