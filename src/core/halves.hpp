// SPDX-License-Identifier: Apache-2.0
#pragma once
/// f16 and bf16 entries from and to f32, over the caller's executor.

#include <cstddef>

#include "atomo/types.hpp"
#include "core/philox.hpp"

namespace atomo::core {

/// Rounds n values to half, stochastically (word i mod 4 of index i/4 of `purpose`), into `out`, 2
/// bytes each. `overflow` where a value became infinite.
Status round_to_half(const float* x, std::size_t n, const Key& key, Purpose purpose, DType dtype,
                     void* out, Executor* executor) noexcept;

/// Writes the n halves at `from`, 2 bytes each, as f32.
void widen_halves(const void* from, DType dtype, std::size_t n, float* to,
                  Executor* executor) noexcept;

}  // namespace atomo::core
