// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a layer can be sent as in dithered atoms: one family, or, of the method automatic, several
/// of which a body has one. On the host, for the plans of both directions.

#include "atomo/atoms.hpp"
#include "cuda/plan.hpp"
#include "kind_rules.hpp"
#include "matrix_view.hpp"
#include "pairs.hpp"

namespace atomo::cuda {

/// Atoms are all of a body, or one of the two parts of a sketch's.
enum class BodyPart : std::uint32_t { whole, pairs, rows };

struct LayerAtoms {
  AtomLayout layout;        ///< of pairs: their frame
  detail::PairLayer pairs;  ///< count 0: blocks or rows
  std::uint32_t form = 0;   ///< of the body; 0 where the method knows one
  BodyPart part = BodyPart::whole;

  [[nodiscard]] bool has_pairs() const noexcept { return pairs.count > 0; }
};

/// Calls `visit(atoms)` for all families of a layer of the methods atoms and automatic in the order
/// of forms, the pairs of a sketch before its rows. Other layers, and empty ones, have none.
template <typename Visit>
void visit_atoms(const PlannedLayer& layer, Visit visit) {
  const Kind& kind = *layer.kind;
  if (layer.n == 0) return;
  const auto rows = [&] {
    const auto count = static_cast<std::uint64_t>(kind.shape[0]);
    return AtomLayout::rows(count, layer.n / count);
  };
  const auto visit_pairs = [&](std::size_t count, std::uint32_t form, BodyPart part) {
    const detail::PairLayer pairs{detail::matrix_view(kind.shape), count};
    visit(LayerAtoms{detail::pairs_frame(pairs), pairs, form, part});
  };
  const auto visit_sketch = [&](std::uint32_t rank, std::uint32_t form) {
    visit_pairs(rank, form, BodyPart::pairs);
    visit(LayerAtoms{rows(), {}, form, BodyPart::rows});
  };
  if (kind.method == MethodId::automatic) {
    const detail::KindFields fields = detail::fields_of(kind);
    visit(LayerAtoms{AtomLayout::blocks(layer.n), {}, detail::kBlocksForm, BodyPart::whole});
    if (detail::has_form(fields, detail::kRowsForm))
      visit(LayerAtoms{rows(), {}, detail::kRowsForm, BodyPart::whole});
    if (detail::has_form(fields, detail::kSketchForm))
      visit_sketch(kind.params, detail::kSketchForm);
    return;
  }
  if (kind.method != MethodId::atoms) return;
  switch (detail::family_of(kind.params)) {
    case detail::kBlocks:
      return visit(LayerAtoms{AtomLayout::blocks(layer.n), {}, 0, BodyPart::whole});
    case detail::kRows:
      return visit(LayerAtoms{rows(), {}, 0, BodyPart::whole});
    case detail::kPairs:
      return visit_pairs(detail::matrix_view(kind.shape).shorter(), 0, BodyPart::whole);
    default:
      return visit_sketch(detail::rank_of(kind.params), 0);
  }
}

}  // namespace atomo::cuda
