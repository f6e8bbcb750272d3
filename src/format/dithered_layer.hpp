// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the bodies of the methods atoms and automatic hold: singular pairs, rows or blocks, or a
/// sketch's pairs and then the rows of its residual.

#include <cstddef>
#include <cstdint>

#include "format/atom_layout.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"

namespace atomo::format {

/// One way to send a layer. A family that it does not have counts 0.
struct DitheredLayer {
  PairLayer pairs;
  AtomLayout atoms;

  [[nodiscard]] bool has_pairs() const noexcept { return pairs.count > 0; }
  [[nodiscard]] bool has_atoms() const noexcept { return atoms.count > 0; }
  [[nodiscard]] bool is_sketch() const noexcept { return has_pairs() && has_atoms(); }
};
/// Before the pairs of a body that has rows too: their bytes, as a u32.
inline constexpr std::size_t kPairBytesField = 4;

/// The rows of a tensor: `has_rows` of its kind.
[[nodiscard]] inline AtomLayout rows_of(const Shape& shape) noexcept {
  const auto count = static_cast<std::uint64_t>(shape[0]);
  return AtomLayout::rows(count, shape.elements() / count);
}

/// Of a valid kind of the methods atoms and automatic and a form that it has (0 for atoms).
[[nodiscard]] inline DitheredLayer dithered_layer(const Kind& kind, std::uint8_t form) noexcept {
  const bool automatic = kind.method == MethodId::automatic;
  const Family family = automatic ? family_of_form(form) : family_of(kind.params);
  if (kind.shape.elements() == 0) return {};
  if (family == Family::pairs) return {PairLayer::all_of(matrix_view(kind.shape)), {}};
  if (family == Family::sketch) {
    const std::uint32_t rank = automatic ? kind.params : rank_of(kind.params);
    return {{matrix_view(kind.shape), rank}, rows_of(kind.shape)};
  }
  return {{},
          family == Family::rows ? rows_of(kind.shape) : AtomLayout::blocks(kind.shape.elements())};
}

/// Calls `visit(form, layer)` for every form of such a kind, in order.
template <typename Visit>
void for_each_form(const Kind& kind, Visit visit) {
  if (kind.shape.elements() == 0) return;
  if (kind.method == MethodId::atoms) return visit(std::uint8_t{0}, dithered_layer(kind, 0));
  for (std::uint8_t form = kBlocksForm; form < kGridForm; ++form) {
    if (has_form(fields_of(kind), form)) visit(form, dithered_layer(kind, form));
  }
}

}  // namespace atomo::format
