// SPDX-License-Identifier: Apache-2.0
/// A group of columns is added to twice as many sums, from its shift on, which wrap when the row
/// ends: 2 operations an entry, limited by reading the matrix.
#include "cpu/sketch_start.hpp"

#include <algorithm>
#include <cstdint>

#include "format/matrix.hpp"
#include "math/sparse_start.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/sketch_start.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Room for the sums of a row.
constexpr std::size_t kMaxSums = 2 * math::start_width(format::kMaxSketchRank);

/// sums[i] += x[i] weights[i].
HWY_INLINE void add_products(const float* x, const float* weights, std::size_t n, float* sums) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto product = hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, weights + i));
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), product), d, sums + i);
  }
  for (; i < n; ++i) sums[i] += x[i] * weights[i];
}

void MultiplyStart(const float* x, std::size_t rows, const SparseStart& start, float* y) {
  const std::size_t rank = start.rank, width = math::start_width(rank);
  alignas(64) float sums[kMaxSums];
  for (std::size_t i = 0; i < rows; ++i, x += start.columns, y += rank) {
    std::fill_n(sums, 2 * width, 0.0f);
    for (std::size_t c = 0, q = 0; c < start.columns; c += width, ++q) {
      add_products(x + c, start.weights.data() + c, std::min(width, start.columns - c),
                   sums + start.shifts[q]);
    }
    for (std::size_t k = 0; k < rank; ++k) {
      float sum = 0;
      for (std::size_t at = k; at < 2 * width; at += rank) sum += sums[at];
      y[k] = sum;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {

HWY_EXPORT(MultiplyStart);

void SparseStart::draw(const Philox& draws) const noexcept {
  for (std::size_t c = 0; c < weights.size(); c += 4) {
    const PhiloxWords words = draws(c / 4);
    for (std::size_t k = 0; k < 4 && c + k < weights.size(); ++k)
      weights[c + k] = math::start_weight(words[k]);
  }
  const std::size_t first = math::first_shift_block(weights.size());
  for (std::size_t q = 0; q < shifts.size(); q += 4) {
    const PhiloxWords words = draws(first + q / 4);
    for (std::size_t k = 0; k < 4 && q + k < shifts.size(); ++k)
      shifts[q + k] = math::start_shift(words[k], rank);
  }
}

void multiply_start(const float* x, std::size_t rows, const SparseStart& start, float* y) noexcept {
  HWY_DYNAMIC_DISPATCH(MultiplyStart)(x, rows, start, y);
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
