// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Singular pairs with dithered factors (kind `atoms`, family 2): the decoding side, which methods/atoms.cpp calls.

#include "atomo/atoms.hpp"
#include "atomo/types.hpp"

namespace atomo::detail {

/// True when a tensor has a matrix view (dim0 x rest) worth pairs: two dimensions or more, at least 2 rows of at least
/// 16 entries.
[[nodiscard]] bool has_pairs(const Shape& shape) noexcept;
/// min(m, n) of the matrix view.
[[nodiscard]] std::uint64_t pair_count(const Shape& shape) noexcept;
[[nodiscard]] std::size_t max_pairs_body_bytes(const Shape& shape) noexcept;
[[nodiscard]] std::size_t decode_pairs_workspace_bytes(const Shape& shape) noexcept;

/// Any bytes at all give `ok` or `corrupt`; `workspace` holds `decode_pairs_workspace_bytes`.
Status decode_pairs(ConstBytes body, const Shape& shape, float price, const Key& key, float* y, cpu::DecodeMode mode,
                    Bytes workspace) noexcept;
/// Walks the index of a body: how many pairs it holds.
Status inspect_pairs(ConstBytes body, const Shape& shape, std::uint64_t& kept) noexcept;

}  // namespace atomo::detail
