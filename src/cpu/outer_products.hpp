// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sums of outer products: what pairs decode to.

#include <cstddef>
#include <cstdint>

#include "atomo/types.hpp"
#include "cpu/decode_mode.hpp"

namespace atomo::cpu {

/// `count` pairs of a left vector of `rows` and a right vector of `columns` entries, one after
/// another, left and right apart.
struct OuterProducts {
  const float* left = nullptr;
  const float* right = nullptr;
  std::size_t count = 0, rows = 0, columns = 0;
  double scale = 1;  ///< a power of two
};

/// v[i, j] = scale * sum over k of left[k, i] * right[k, j], summed in f64 in the order of k (the
/// products are exact) and rounded once to f32; written or added to the row-major y as `mode` says.
/// The same bits with every instruction set and any executor. Status::overflow when a value became
/// infinite.
Status sum_outer_products(const OuterProducts& pairs, cpu::DecodeMode mode, float* y,
                          Executor* executor) noexcept;

}  // namespace atomo::cpu
