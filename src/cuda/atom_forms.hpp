// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a layer can be sent as in dithered atoms: one family, or, of the method automatic, several
/// of which a body has one. On the host, for the plans of both directions.

#include "cuda/plan.hpp"
#include "format/atom_layout.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"

namespace atomo::cuda {

/// Atoms are all of a body, or one of the two parts of a sketch's.
enum class BodyPart : std::uint32_t { whole, pairs, rows };

struct LayerAtoms {
  AtomLayout layout;        ///< of pairs: their frame
  format::PairLayer pairs;  ///< count 0: blocks or rows
  std::uint32_t form = 0;   ///< of the body; 0 where the method knows one
  BodyPart part = BodyPart::whole;

  [[nodiscard]] bool has_pairs() const noexcept { return pairs.count > 0; }
};

/// Whether a layer's messages have values of several parts or of forms that differ: where values are added,
/// a message's are kept apart (`FramePlan::apart`) until all of its parts are there.
[[nodiscard]] inline bool keeps_apart(const LayerPlan& layer) noexcept {
  if (layer.n == 0) return false;
  if (layer.kind.method == MethodId::automatic) return true;
  return layer.kind.method == MethodId::atoms &&
         format::family_of(layer.kind.params) == format::Family::sketch;
}

/// Calls `visit(atoms)` for all families of a layer of the methods atoms and automatic in the order
/// of forms, the pairs of a sketch before its rows. Other layers, and empty ones, have none.
template <typename Visit>
void visit_atoms(const LayerPlan& layer, Visit visit) {
  const Kind& kind = layer.kind;
  if (layer.n == 0) return;
  const auto rows = [&] {
    const auto count = static_cast<std::uint64_t>(kind.shape[0]);
    return AtomLayout::rows(count, layer.n / count);
  };
  const auto visit_pairs = [&](std::size_t count, std::uint32_t form, BodyPart part) {
    const format::PairLayer pairs{format::matrix_view(kind.shape), count};
    visit(LayerAtoms{format::pairs_frame(pairs), pairs, form, part});
  };
  const auto visit_sketch = [&](std::uint32_t rank, std::uint32_t form) {
    visit_pairs(rank, form, BodyPart::pairs);
    visit(LayerAtoms{rows(), {}, form, BodyPart::rows});
  };
  if (kind.method == MethodId::automatic) {
    const format::KindFields fields = format::fields_of(kind);
    visit(LayerAtoms{AtomLayout::blocks(layer.n), {}, format::kBlocksForm, BodyPart::whole});
    if (format::has_form(fields, format::kRowsForm))
      visit(LayerAtoms{rows(), {}, format::kRowsForm, BodyPart::whole});
    if (format::has_form(fields, format::kSketchForm))
      visit_sketch(kind.params, format::kSketchForm);
    return;
  }
  if (kind.method != MethodId::atoms) return;
  switch (format::family_of(kind.params)) {
    case format::Family::blocks:
      return visit(LayerAtoms{AtomLayout::blocks(layer.n), {}, 0, BodyPart::whole});
    case format::Family::rows:
      return visit(LayerAtoms{rows(), {}, 0, BodyPart::whole});
    case format::Family::pairs:
      return visit_pairs(format::matrix_view(kind.shape).shorter(), 0, BodyPart::whole);
    default:
      return visit_sketch(format::rank_of(kind.params), 0);
  }
}

}  // namespace atomo::cuda
