// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Coordinates as atoms: unbiased stochastic rounding of every entry to one grid step, written as
/// Rice lists of the entries that are not zero, or as dense levels where that is shorter.
///
/// With atoms that are single coordinates, ATOMO (arXiv 1806.04090, Algorithm 1) keeps entry x with
/// probability min(1, |x|/step) and sends +-step; rounding the certain ones to the same grid makes
/// it QSGD (arXiv 1610.02132) with one norm for the whole tensor. The probabilities are drawn
/// systematically, so the number of entries kept is known to one in a chunk of 4,096.
///
/// ```cpp
/// atomo::CoordinateConfig config{.step = 0.01f};
/// std::vector<std::byte> body(atomo::cpu::max_encoded_bytes(config, n));
/// std::vector<std::byte> workspace(atomo::cpu::workspace_bytes(config, n));
/// std::size_t bytes = 0;
/// auto status = atomo::cpu::encode(config, x, n, key, workspace, nullptr, body, bytes);
/// ```
///
/// Nothing here allocates, throws or synchronises; the bytes do not depend on the executor. `x` and
/// `y` are n f32 in host memory; inputs are finite.

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "cpu/add_bodies.hpp"
#include "format/method_configs.hpp"

namespace atomo::cpu {

/// Upper bound of a body of n entries, whatever their values: 4 bytes a segment of 32,768 entries
/// and 31 bits an entry. It does not depend on the step.
[[nodiscard]] std::size_t max_encoded_bytes(const CoordinateConfig& config, std::size_t n) noexcept;

/// What `encode`, `decode` and `decode_add` need, of any alignment. It does not depend on the step.
[[nodiscard]] std::size_t workspace_bytes(const CoordinateConfig& config, std::size_t n) noexcept;
/// What `decode` and `decode_add` need alone: about 4 bytes an entry at most.
[[nodiscard]] std::size_t decode_workspace_bytes(const CoordinateConfig& config,
                                                 std::size_t n) noexcept;

/// Rounds x to multiples of the step and writes the body; `bytes` is its size, 0 when every entry
/// became zero. Draws under `Purpose::select_coordinate`. `executor` may be null.
/// Status::unsupported when the step is not positive and finite, or below
/// `min_grid_step` of the data; Status::buffer_too_small, Status::workspace_too_small.
Status encode(const CoordinateConfig& config, const float* x, std::size_t n, const Key& key,
              Bytes workspace, Executor* executor, Bytes body, std::size_t& bytes) noexcept;

/// Writes all of y. Any bytes give a Status: `corrupt` when they break the format, y is then
/// unspecified.
Status decode(const CoordinateConfig& config, ConstBytes body, float* y, std::size_t n,
              Bytes workspace, Executor* executor) noexcept;

/// y[i] = y[i] + (alpha * decoded[i]) for every i and for each body in its order, two roundings each.
/// A body's step is its price.
void decode_add(std::span<LayerBody> bodies, float alpha, float* y, std::size_t n, Bytes workspace,
                Executor* executor) noexcept;

/// How many entries of a body are not zero.
Status coordinate_count(ConstBytes body, std::size_t n, std::uint64_t& kept) noexcept;

}  // namespace atomo::cpu
