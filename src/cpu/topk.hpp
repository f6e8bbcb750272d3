// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Top-k (arXiv 1712.01887 and others): the k entries of largest magnitude as they are, ties by the
/// lowest index; everything else decodes to zero. Exactly k entries, always. Biased; with ||x||^2
/// lost at most (1 - k/n) ||x||^2.
///
/// ```cpp
/// atomo::TopkConfig config{.keep = n / 100};
/// std::vector<std::byte> body(atomo::cpu::max_encoded_bytes(config, n));
/// std::vector<std::byte> workspace(atomo::cpu::workspace_bytes(config, n));
/// std::size_t bytes = 0;
/// auto status = atomo::cpu::encode(config, x, n, workspace, nullptr, body, bytes);
/// ```
///
/// Nothing here allocates, throws or draws; the bytes do not depend on the executor. `x` and `y`
/// are n f32 in host memory, of their own alignment. The processor must not flush subnormals to zero
/// (a Codec sees to that).

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "cpu/add_bodies.hpp"
#include "format/method_configs.hpp"

namespace atomo::cpu {

/// Upper bound of a body: a bit map of n entries, padded, and 4 bytes an entry kept.
[[nodiscard]] std::size_t max_encoded_bytes(const TopkConfig& config, std::size_t n) noexcept;
/// Bytes that `encode` needs, of any alignment.
[[nodiscard]] std::size_t workspace_bytes(const TopkConfig& config, std::size_t n) noexcept;
/// Bytes that `decode` and `decode_add` need, of any alignment: about one an entry, 512 KiB at most.
[[nodiscard]] std::size_t decode_workspace_bytes(const TopkConfig& config, std::size_t n) noexcept;

/// Writes at most `max_encoded_bytes` bytes to `body`. `executor` may be null. `non_finite` when an
/// entry is Inf or NaN.
Status encode(const TopkConfig& config, const float* x, std::size_t n, Bytes workspace,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept;
/// y[i] = x[i] where kept, else 0. Any bytes give a Status: `corrupt` for other than k entries or a
/// value not finite.
Status decode(const TopkConfig& config, ConstBytes body, float* y, std::size_t n, Bytes workspace,
              Executor* executor) noexcept;
/// y[i] = y[i] + (alpha * v), two roundings, v as `decode` gives it, zeros included.
void decode_add(const TopkConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Bytes workspace, Executor* executor) noexcept;

}  // namespace atomo::cpu
