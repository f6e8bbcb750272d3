// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TernGrad (arXiv 1705.07878, section 3): every entry becomes -N, 0 or +N, N = max|x| of the
/// layer, with P(+-N) = |x| / N. Unbiased, at 1.6 bits an entry. With a clip (its section 3.3)
/// entries are first limited to clip * sigma, and N is taken after that: less noise, but biased.
/// sigma is the root mean square (about zero, so that a constant layer is not clipped away).
///
/// ```cpp
/// atomo::TernaryConfig config;
/// std::vector<std::byte> body(atomo::cpu::max_encoded_bytes(config, n));
/// std::vector<std::byte> workspace(atomo::cpu::workspace_bytes(config, n));
/// std::size_t bytes = 0;
/// auto status = atomo::cpu::encode(config, x, n, {.seed = 1}, workspace, nullptr, body, bytes);
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

/// The size of every body of n entries: 4 and ceil(n / 5).
[[nodiscard]] std::size_t max_encoded_bytes(const TernaryConfig& config, std::size_t n) noexcept;
/// What `encode` needs beside its output, of any alignment; `decode` needs none.
[[nodiscard]] std::size_t workspace_bytes(const TernaryConfig& config, std::size_t n) noexcept;

/// Writes `max_encoded_bytes` bytes to `body`, with the draws of `key`. `executor` may be null.
Status encode(const TernaryConfig& config, const float* x, std::size_t n, const Key& key,
              Bytes workspace, Executor* executor, Bytes body, std::size_t& bytes) noexcept;
/// y[i] is -N, 0 or N. Any bytes give a Status: `truncated`, or `corrupt` for a wrong length,
/// padding, norm or digit.
Status decode(const TernaryConfig& config, ConstBytes body, float* y, std::size_t n,
              Executor* executor) noexcept;
/// y[i] = y[i] + (alpha * v), two roundings, v as `decode` gives it.
void decode_add(const TernaryConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept;

}  // namespace atomo::cpu
