// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Sign compression: one bit an entry (signSGD, arXiv 1802.04434, algorithm 1), decoded to +-1, to
/// +-mean|x| (the compressor of EF-signSGD, arXiv 1901.09847, section 4: with that scale it is the
/// best of all +-s and a contraction), or to the mean of the entries of that sign (1-bit SGD, Seide
/// et al., Interspeech 2014: the best two values for these bits), of the layer or of a bucket. The
/// sign of zero, of either sign, is +. Biased.
///
/// ```cpp
/// atomo::SignConfig config{.scale = atomo::SignScale::mean};
/// std::vector<std::byte> body(atomo::cpu::max_encoded_bytes(config, n));
/// std::vector<std::byte> workspace(atomo::cpu::workspace_bytes(config, n));
/// std::size_t bytes = 0;
/// auto status = atomo::cpu::encode(config, x, n, workspace, nullptr, body, bytes);
/// ```
///
/// Nothing here allocates, throws or draws; the bytes do not depend on the executor. `x` and `y`
/// are n f32 in host memory, of their own alignment; inputs are finite. The processor must not
/// flush subnormals to zero (a Codec sees to that).

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "cpu/add_bodies.hpp"
#include "format/method_configs.hpp"

namespace atomo::cpu {

/// The size of every body of n entries: ceil(n / 8), and 4 for a scale, 8 a bucket for means.
[[nodiscard]] std::size_t max_encoded_bytes(const SignConfig& config, std::size_t n) noexcept;
/// What `encode` needs beside its output, of any alignment; `decode` needs none.
[[nodiscard]] std::size_t workspace_bytes(const SignConfig& config, std::size_t n) noexcept;

/// Writes `max_encoded_bytes` bytes to `body`. `executor` may be null.
Status encode(const SignConfig& config, const float* x, std::size_t n, Bytes workspace,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept;
/// y[i] = +-scale, or the mean of its side. Any bytes give a Status: `truncated`, or `corrupt` for a
/// wrong length, padding or scale.
Status decode(const SignConfig& config, ConstBytes body, float* y, std::size_t n,
              Executor* executor) noexcept;
/// y[i] = y[i] + (alpha * v), v as `decode` gives it, two roundings.
void decode_add(const SignConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept;

/// Checks everything a body can break; where its bits begin.
Status sign_bits(const SignConfig& config, ConstBytes body, std::size_t n,
                 const std::byte*& bits) noexcept;

/// y[i] = the sign of the sum of bodies' signs, 0 where as many are + as -: `bits` are those that
/// `sign_bits` gave, of n entries each, at most 2^31 of them.
void count_votes(std::span<const std::byte* const> bits, float* y, std::size_t n,
                 Executor* executor) noexcept;

}  // namespace atomo::cpu
