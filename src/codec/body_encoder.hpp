// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The encoders of bodies: `BodyEncoder`, and `PricedEncoder` for those whose bodies follow from a
/// price. Everything around a layer's body (container, dtypes, non-finite layers, prices, lossless
/// stages, checksums) is done once, by layer.cpp and what stands above it.

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "atomo/codec.hpp"
#include "core/workspace.hpp"
#include "cpu/svd.hpp"
#include "format/checksum.hpp"
#include "format/kind.hpp"
#include "price/price_input.hpp"
#include "price/price_rule.hpp"
#include "price/sketch_rank.hpp"

namespace atomo::codec {

/// A layer on its way in: f32, at least one element, all finite but where an encoder finds out.
struct LayerInput {
  const float* x = nullptr;
  std::size_t n = 0;
  std::size_t zeros = 0;  ///< entries that are 0, as counted on the look for non-finite ones
  const Shape* shape = nullptr;
  Key key;                       ///< `tensor` is this layer's
  Executor* executor = nullptr;  ///< may be null
  /// Pairs that a sketch looks for at most; 0: none is tried where there are other forms.
  std::size_t rank = price::RankState::kAll;
};

/// One form of a layer, prepared: its memory, filled.
struct PreparedForm {
  // The price input points to these; they outlive the message.
  std::span<PriceBin> pair_bins, atom_bins;
  std::span<PriceCosts> costs;  ///< of pairs, of atoms
  // Until the body is written.
  cpu::SingularPairs pairs;
  std::span<double> amplitudes;  ///< of the pairs
  std::size_t rank = 0;          ///< pairs that a sketch looked for
  std::span<float> residual;     ///< room for the rows that a sketch sends of what its pairs leave
  std::span<double> rms;         ///< of rows or blocks, or of a sketch's residual rows
};

/// A prepared layer: the input of the search for a price, and of its body.
struct Prepared {
  PriceInput price;
  Bytes histogram;              ///< room for magnitudes
  std::span<Setting> settings;  ///< room for those of a registered codec
  std::array<PreparedForm, PriceInput::kForms> forms;
};

/// The input of `BodyEncoder::encode`.
struct BodyInput {
  LayerInput layer;
  float price = 0;                     ///< 0: the layer has none, or nothing to send
  const Prepared* prepared = nullptr;  ///< of an encoder with a price
  Bytes scratch;                       ///< `scratch_bytes` of it
  bool first = false;  ///< the body is the first of its message, whose blocks may be hashed
};

struct BodyResult {
  std::size_t bytes = 0;
  std::uint8_t form = 0;  ///< which of its forms the encoder chose, 0..3
  HashedBlocks hashed;    ///< of the body, where the encoder hashed what it wrote
};

class PricedEncoder;

/// The encoder of one codec: immutable, thread-safe. Sizes are functions of the shape alone; memory
/// is aligned to 64 bytes.
class BodyEncoder {
 public:
  virtual ~BodyEncoder() = default;

  /// The canonical spec.
  [[nodiscard]] virtual std::string to_string() const = 0;
  [[nodiscard]] virtual Traits traits() const = 0;
  [[nodiscard]] virtual Kind kind(const Shape& shape, DType dtype) const = 0;
  [[nodiscard]] virtual std::size_t max_body_bytes(const Shape& shape) const = 0;
  /// At set-up. \throws Error for a shape that it cannot encode.
  virtual void check_shape(const Shape&) const {}
  [[nodiscard]] virtual std::size_t scratch_bytes(const Shape&) const { return 0; }
  [[nodiscard]] virtual PriceRule price_rule(const Shape&) const noexcept { return {}; }
  /// This encoder as one that has a price; null otherwise.
  [[nodiscard]] virtual const PricedEncoder* priced() const noexcept { return nullptr; }
  /// Whether an entry that is not finite is found on the way, which saves a pass over them: `encode`
  /// of an encoder without a price, or `prepare`, then returns `Status::non_finite`.
  [[nodiscard]] virtual bool finds_non_finite() const noexcept { return false; }
  /// Writes the body. Neither allocates nor throws.
  virtual Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept = 0;
};

/// An encoder whose bodies follow from a price: a layer is prepared once, the price is found over
/// any number of layers, then the body is written.
class PricedEncoder : public BodyEncoder {
 public:
  [[nodiscard]] const PricedEncoder* priced() const noexcept final { return this; }
  /// Rounds of the iteration that finds a sketch's pairs.
  [[nodiscard]] virtual unsigned sketch_iterations() const noexcept { return 1; }
  /// How atoms are kept.
  [[nodiscard]] virtual Selection selection() const noexcept { return Selection::drawn; }
  /// Whether the rank of this shape's sketches may follow from earlier steps.
  [[nodiscard]] virtual bool learns_rank(const Shape&) const noexcept { return false; }
  /// What the next step takes from one in which the layer was written at a price, in a form.
  [[nodiscard]] virtual price::RankState learn_rank(price::RankState state, const Prepared&,
                                                    std::uint8_t, float) const noexcept {
    return state;
  }
  /// Memory of what the price input points to.
  virtual void carve_price_input(const Shape&, Prepared&, Carver&) const = 0;
  /// Memory of what is kept until the body is written.
  virtual void carve_state(const Shape&, Prepared&, Carver&) const {}
  /// Fills both.
  virtual Status prepare(const LayerInput&, Prepared&, Bytes scratch) const noexcept = 0;
};

}  // namespace atomo::codec
