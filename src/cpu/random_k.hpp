// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Random-k: k of n entries, or of blocks of 64 of them, drawn without replacement, segment by segment
/// (math/subset_sampling.hpp), scaled by n/k on decode; unbiased, every entry kept with probability
/// k/n. The positions follow from the key without its worker, so nothing but k values travels, all
/// workers of a step send the same entries, and payloads add value by value. Entries below 2^-126 land on f32's grid after scaling, which can bias them by up
/// to 2^-150.
///
/// ```cpp
/// atomo::RandomKConfig config{.keep = n / 100};
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

/// The size of every body: 4 bytes an entry kept, 256 a block.
[[nodiscard]] std::size_t max_encoded_bytes(const RandomKConfig& config, std::size_t n) noexcept;

/// Writes `max_encoded_bytes` bytes to `body`, with the draws of `key` at worker 0. `executor` may
/// be null.
Status encode(const RandomKConfig& config, const float* x, std::size_t n, const Key& key,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept;
/// y[i] = x[i] * (n/k) where kept, else 0, with the encoder's key. Any bytes give a Status:
/// `truncated`, or `corrupt` for a wrong length, a value not finite or one of no entry; `overflow` (done) where x[i]
/// * (n/k) became an infinity.
Status decode(const RandomKConfig& config, ConstBytes body, float* y, std::size_t n, const Key& key,
              Executor* executor) noexcept;
/// y[i] = y[i] + (alpha * v), two roundings, v as `decode` gives it, zeros included.
void decode_add(const RandomKConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept;

}  // namespace atomo::cpu
