// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Few outer products on top of a matrix: what a sketch decodes to.

#include <cstddef>

#include "atomo/types.hpp"
#include "cpu/decode_mode.hpp"

namespace atomo::cpu {

/// `count` pairs of a left vector of `rows` and a right vector of `columns` entries, one after
/// another, left and right apart.
struct LowRank {
  const float* left = nullptr;
  const float* right = nullptr;
  std::size_t count = 0, columns = 0, rows = 0;
  float scale = 1;  ///< a power of two
};

/// v[i, j] = scale * s + rest[i, j], s the sum over k of left[k, i] * right[k, j] in the order of
/// k, each step one fused multiply-add of f32 from 0; written or added to the row-major y as `mode`
/// says. Rows `first` to before `end`; `rest` and y start at row `first`, and may be the same
/// unless `mode.add`. The same bits with every instruction set. True when a value is infinite.
bool add_low_rank(const LowRank& pairs, std::size_t first, std::size_t end, const float* rest,
                  cpu::DecodeMode mode, float* y) noexcept;

}  // namespace atomo::cpu
