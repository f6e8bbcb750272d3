// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// QSGD (arXiv 1610.02132, section 3): stochastic rounding to L = 2^(bits-1) - 1 levels a side of
/// each bucket's norm; at one bit, +-N with P(+) = (1 + x/N) / 2. Unbiased: probabilities are
/// 32-bit integers, and the norm used is an upper bound of every entry.
///
/// ```cpp
/// atomo::QsgdConfig config{.bits = 4};
/// std::vector<std::byte> body(atomo::cpu::max_encoded_bytes(config, n));
/// std::size_t bytes = 0;
/// auto status = atomo::cpu::encode(config, x, n, {.seed = 1}, nullptr, body, bytes);
/// ```
///
/// Nothing here allocates or throws; the bytes do not depend on the executor. `x` and `y` are n f32
/// in host memory, of their own alignment; inputs are finite. The processor must not flush
/// subnormals to zero (a Codec sees to that).

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "cpu/add_bodies.hpp"
#include "format/method_configs.hpp"

namespace atomo::cpu {

/// The size of every body of n entries: 4 a bucket and ceil(n * bits / 8).
[[nodiscard]] std::size_t max_encoded_bytes(const QsgdConfig& config, std::size_t n) noexcept;
/// Neither `encode` nor `decode` needs any: 0.
[[nodiscard]] std::size_t workspace_bytes(const QsgdConfig& config, std::size_t n) noexcept;

/// Writes `max_encoded_bytes` bytes to `body`, with the draws of `key`. `executor` may be null.
Status encode(const QsgdConfig& config, const float* x, std::size_t n, const Key& key,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept;
/// y[i] = +-level * step. Any bytes give a Status: `truncated`, or `corrupt` for a wrong length,
/// padding or norm.
Status decode(const QsgdConfig& config, ConstBytes body, float* y, std::size_t n,
              Executor* executor) noexcept;
/// y[i] = y[i] + (alpha * v), v as `decode` gives it, two roundings.
void decode_add(const QsgdConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept;

}  // namespace atomo::cpu
