// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Pairs with dithered factors at a price: singular ones (method atoms, family 2) and those of a
/// sketch (family 3). FORMAT.md ("Singular pairs") has the body, price/pair_costs.hpp what pairs cost,
/// cpu/pairs.hpp the loops.
///
/// The pair sigma u v^T, u of m entries along the shorter side and v of n along the longer, is
/// (u sqrt m)(sigma v / sqrt m)^T: the first factor has rms 1, the second sigma / sqrt(m n). Its
/// amplitude is A = sigma / (kappa sqrt(m + n)), kappa a table's entry for the aspect n / m; its
/// ratio r = A / a decides, as an atom's does, whether it is certain, its class and its
/// probability.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "format/atom_body.hpp"
#include "format/matrix.hpp"

namespace atomo::format {

/// The pairs of a layer: all min(rows, columns) of a decomposition, or those of a sketch.
struct PairLayer {
  MatrixShape view;
  std::size_t count = 0;

  [[nodiscard]] static constexpr PairLayer all_of(const MatrixShape& view) noexcept {
    return {view, view.shorter()};
  }
};

[[nodiscard]] std::size_t max_pairs_body_bytes(const PairLayer& layer) noexcept;
/// Most bits of the content of a pair.
[[nodiscard]] std::uint64_t max_pair_content_bits(const MatrixShape& shape) noexcept;

/// The body's frame as that of atoms: pairs of up to 1,024 entries in all share groups or have one,
/// larger ones have a group for each piece of their factors.
[[nodiscard]] AtomLayout pairs_frame(const PairLayer& layer) noexcept;
/// How kept pairs fall into groups (atom_body.hpp).
[[nodiscard]] GroupShape group_shape(const MatrixShape& shape) noexcept;

/// Upper end of r in a class; an uncertain pair's content is below 2 a, for P is rounded down.
[[nodiscard]] inline double top_of_class(std::size_t c) noexcept {
  return c == 0 ? 2.0 : std::ldexp(c % 2 == 0 ? 1.0 : 1.5, static_cast<int>(c / 2));
}

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
}  // namespace atomo::format
