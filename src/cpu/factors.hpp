// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Writes and reads bodies of singular pairs with f32 factors (format/factors_body.hpp).

#include <cstddef>
#include <cstdint>

#include "atomo/types.hpp"
#include "cpu/decode_mode.hpp"
#include "format/matrix.hpp"

namespace atomo::cpu {

[[nodiscard]] std::size_t encode_factors_workspace_bytes(const MatrixShape& shape) noexcept;
Status encode_factors(const float* g, const MatrixShape& shape, std::uint64_t keep, const Key& key,
                      Bytes workspace, Bytes body, std::size_t& bytes) noexcept;

/// Any bytes at all give a Status.
Status decode_factors(ConstBytes body, const MatrixShape& shape, cpu::DecodeMode mode, float* y,
                      Bytes workspace, Executor* executor) noexcept;
[[nodiscard]] std::size_t decode_factors_workspace_bytes(const MatrixShape& shape) noexcept;
Status count_factors(ConstBytes body, const MatrixShape& shape, std::uint64_t& kept) noexcept;

}  // namespace atomo::cpu
