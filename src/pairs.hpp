// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Singular pairs with dithered factors at a price (kind `atoms`, family 2). The decoding side is
/// called by methods/atoms.cpp, the encoding side by methods/svd.cpp, where the body's layout
/// stands.
///
/// The pair sigma u v^T, u of m entries along the shorter side and v of n along the longer, is
/// (u sqrt m)(sigma v / sqrt m)^T: the first factor has rms 1, the second sigma / sqrt(m n). Its
/// amplitude is A = sigma / (kappa sqrt(m + n)), kappa a table's entry for the aspect n / m; its
/// ratio r = A / a decides, as an atom's does, whether it is certain, its class and its
/// probability.

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/atoms.hpp"
#include "atomo/svd.hpp"
#include "atomo/types.hpp"

namespace atomo::detail {

/// True when a tensor has a matrix view (dim0 x rest) worth pairs: two dimensions or more, at least
/// 2 rows of at least 16 entries, sides that `cpu::svd` takes.
[[nodiscard]] bool has_pairs(const Shape& shape) noexcept;
/// min(m, n) of the matrix view.
[[nodiscard]] std::uint64_t pair_count(const Shape& shape) noexcept;
[[nodiscard]] std::size_t max_pairs_body_bytes(const Shape& shape) noexcept;
[[nodiscard]] std::size_t decode_pairs_workspace_bytes(const Shape& shape) noexcept;

/// Any bytes at all give `ok`, `overflow` (a value became infinite) or `corrupt`; `workspace` holds
/// `decode_pairs_workspace_bytes`.
Status decode_pairs(ConstBytes body, const Shape& shape, float price, const Key& key, float* y,
                    cpu::DecodeMode mode, Bytes workspace) noexcept;
/// Walks the index of a body: how many pairs it holds.
Status inspect_pairs(ConstBytes body, const Shape& shape, std::uint64_t& kept) noexcept;

/// The body's frame as that of atoms: pairs of up to 1,024 entries in all share groups or have one,
/// larger ones have a group for each piece of their factors.
[[nodiscard]] AtomLayout pairs_frame(const MatrixShape& shape) noexcept;

/// How one factor of a class is coded.
struct FactorStep {
  std::uint32_t step = 0;  ///< of kCodingSteps
  unsigned escape_bits = 0;
  float size = 1;  ///< the step; of the second factor in units of the price
};
struct PairStep {
  FactorStep shorter, longer;
};
[[nodiscard]] PairStep pair_step(const MatrixShape& shape, std::size_t atom_class) noexcept;

/// Half octaves of longer / shorter side, rounded: the row of the pairs' tables.
[[nodiscard]] std::size_t pair_aspect(const MatrixShape& shape) noexcept;
/// Amplitude of a pair of sigma 1.
[[nodiscard]] double pair_amplitude(const MatrixShape& shape) noexcept;
[[nodiscard]] cpu::PriceCosts pair_costs(const MatrixShape& shape) noexcept;
/// What a pair weighs in the price search.
[[nodiscard]] std::uint64_t pair_weight(const MatrixShape& shape) noexcept;

[[nodiscard]] std::size_t encode_pairs_workspace_bytes(const MatrixShape& shape) noexcept;
/// `amplitudes` are sigma times `pair_amplitude`; `price` is at least `cpu::price_floor`
/// (`unsupported` otherwise). `bytes` is 0 when no pair was kept.
Status encode_pairs(const SingularPairs& pairs, const MatrixShape& shape,
                    std::span<const double> amplitudes, float price, const Key& key, Bytes body,
                    Bytes workspace, std::size_t& bytes) noexcept;

}  // namespace atomo::detail
