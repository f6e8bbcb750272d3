// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One way to send a layer of dithered atoms: rows or blocks, singular pairs, or a sketch and the
/// rows of what it leaves. Pairs and residual sum to the layer whatever the pairs are, so every
/// form's estimate is unbiased.

#include <cstddef>
#include <span>

#include "codec/body_encoder.hpp"
#include "cpu/atoms.hpp"
#include "format/dithered_layer.hpp"

namespace atomo::codec {

/// A form of a layer, and how its pairs are found.
struct DitheredForm {
  DitheredLayer layer;
  unsigned iterations = 1;  ///< of a sketch; pairs without atoms are an exact decomposition
  Selection selection = Selection::drawn;

  [[nodiscard]] std::size_t max_body_bytes() const noexcept;
  [[nodiscard]] std::size_t scratch_bytes() const noexcept;
  void carve_price_input(PreparedForm& form, Carver& carver) const noexcept;
  void carve_state(PreparedForm& form, Carver& carver) const noexcept;

  /// Finds pairs and amplitudes; fills what the search for a price needs. A sketch starts from the
  /// rms of the tensor's rows; `row_rms` has them where another form has found them.
  Status prepare(const LayerInput& in, std::span<const double> row_rms, PreparedForm& form,
                 FormInput& input, Bytes scratch) const noexcept;
  /// `bytes` is 0 when nothing was kept. Status::unsupported for a price below the form's least.
  Status write(const LayerInput& in, float price, const PreparedForm& form, const FormInput& input,
               Bytes scratch, Bytes body, std::size_t& bytes) const noexcept;

 private:
  void price_pairs(PreparedForm& form, FormInput& input, Bytes scratch) const noexcept;
  void price_atoms(const cpu::AtomAnalysis& found, PreparedForm& form,
                   FormInput& input) const noexcept;
  /// The kept rows of a sketch's residual: drawn, computed, written.
  Status write_rows(const LayerInput& in, float price, const PreparedForm& form, Bytes scratch,
                    Bytes body, cpu::AtomBody& atoms) const noexcept;
};

}  // namespace atomo::codec
