// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a codec is inside: one `Method` (the encoder, made from a spec) and one `BodyDecoder`
/// (found by the method's number on the wire, so any container can be read without its spec).
/// Everything around a layer's body (container, dtypes, non-finite layers, prices, checksums) is
/// done once, in codec.cpp, compressor.cpp and container.cpp.

#include <cstdint>
#include <memory>
#include <string>

#include "atomo/types.hpp"
#include "format/kind.hpp"
#include "format/thinning.hpp"
#include "price/price.hpp"
#include "price/price_rule.hpp"

namespace atomo::codec {

/// A layer on its way in: finite, f32, at least one element.
struct LayerInput {
  const float* x = nullptr;
  std::size_t n = 0;
  const Shape* shape = nullptr;
  Key key;                       ///< `tensor` is this layer's
  Executor* executor = nullptr;  ///< may be null
};

struct BodyResult {
  std::size_t bytes = 0;
  bool lossless = false;  ///< the body went through a lossless stage
  std::uint8_t form = 0;  ///< which of its forms the method chose, 0..3
};

/// The encoder of one codec: immutable, thread-safe. A priced method works in two steps: `analyse`
/// leaves what the price search needs in `demand` (kept by a Compressor for its controller) and
/// what `encode` needs in `state`; then, the price known, `encode`. Sizes are functions of the
/// shape alone; memory is aligned to 64 bytes.
class Method {
 public:
  virtual ~Method() = default;

  [[nodiscard]] virtual std::string to_string() const = 0;
  [[nodiscard]] virtual Traits traits() const = 0;
  [[nodiscard]] virtual Kind kind(const Shape& shape, DType dtype) const = 0;

  /// True when bodies may go through a lossless stage.
  [[nodiscard]] virtual bool lossless() const noexcept { return false; }
  /// The method that a lossless stage stands behind; null where there is none.
  [[nodiscard]] virtual std::shared_ptr<const Method> without_lossless() const noexcept {
    return nullptr;
  }
  /// Puts a finished body of that method behind the stage. Returns its bytes in `out`, 0 when there
  /// is no stage, or the body is to be stored: it would not shrink, or would shrink to less than
  /// pays for it (lossless_stage.hpp). Takes heap memory.
  [[nodiscard]] virtual std::size_t pack(const Kind&, ConstBytes /*body*/,
                                         Bytes /*out*/) const noexcept {
    return 0;
  }

  [[nodiscard]] virtual std::size_t max_body_bytes(const Shape& shape) const = 0;
  [[nodiscard]] virtual std::size_t scratch_bytes(const Shape&) const { return 0; }

  // Priced methods.
  [[nodiscard]] virtual Pool pool() const noexcept { return Pool::none; }
  /// Bits a parameter that this method may spend, 0 when its price does not come from a budget.
  [[nodiscard]] virtual double budget_bits() const noexcept { return 0; }
  [[nodiscard]] virtual PriceRule price_rule(const Shape&) const noexcept { return {}; }
  [[nodiscard]] virtual std::size_t demand_bytes(const Shape&) const { return 0; }
  [[nodiscard]] virtual std::size_t state_bytes(const Shape&) const { return 0; }
  /// Bits a parameter that no message exceeds, 0 without a cap.
  [[nodiscard]] virtual double cap_bits() const noexcept { return 0; }
  /// Of a method with a cap: bytes that a body of this shape can always be thinned to.
  [[nodiscard]] virtual std::size_t least_limit_bytes(const Shape&) const { return 0; }
  /// Likewise: what a body of this form holds that can be left out.
  [[nodiscard]] virtual ThinnedLayer thinned_layer(const Shape&, std::uint8_t /*form*/) const {
    return {};
  }
  /// Of a method with sketches: rounds of the iteration that finds their pairs.
  [[nodiscard]] virtual unsigned sketch_iterations() const noexcept { return 1; }
  virtual Status analyse(const LayerInput&, Bytes /*demand*/, Bytes /*state*/,
                         Bytes /*scratch*/) const noexcept {
    return Status::ok;
  }
  /// What the body comes to at a price; falls as the price rises.
  [[nodiscard]] virtual Expected expected(const Shape&, ConstBytes /*demand*/,
                                          float) const noexcept {
    return {};
  }
  /// Expected bits and what the expected variance is worth in bits at that price, in 1/256 bit: the
  /// better of two ways has less. For methods among which `automatic` chooses.
  [[nodiscard]] virtual std::uint64_t expected_loss256(const Shape&, ConstBytes /*demand*/,
                                                       float) const noexcept {
    return 0;
  }
  /// The lowest price this layer can be sent at, as a code (the upper 16 bits of the f32), at
  /// least 1.
  [[nodiscard]] virtual std::uint16_t lowest_price(const Shape&,
                                                   ConstBytes /*demand*/) const noexcept {
    return 1;
  }
  /// For methods with a price but no budget (`delta=`, `keep=`, `price=`): the price of this layer.
  [[nodiscard]] virtual float own_price(const Shape&, ConstBytes /*demand*/) const noexcept {
    return 0;
  }

  /// Writes the body. `price` is 0 when the pool is none, or when the layer has nothing to send.
  virtual Status encode(const LayerInput& in, float price, Bytes demand, Bytes state, Bytes scratch,
                        Bytes body, BodyResult& result) const noexcept = 0;
};

/// A layer on its way out. `add`: y[i] = y[i] + (alpha * v), else y[i] = v for every i.
struct LayerOutput {
  ConstBytes body;
  const Kind* kind = nullptr;
  Key key;
  float price = 0;
  float* y = nullptr;
  std::size_t n = 0;
  bool add = false;
  float alpha = 1;
  bool thinned = false;   ///< the row's flag
  std::uint8_t form = 0;  ///< the row's
  Bytes workspace;
  Executor* executor = nullptr;
};

/// The decoder of one method. Bodies are any bytes at all; nothing is read outside `body`.
struct BodyDecoder {
  /// Empty when the parameters or the shape are not valid for this method; else e.g.
  /// "qsgd:bits=4,bucket=512".
  std::string (*describe)(const Kind&);
  /// Upper bound of a body of this kind: what a lossless stage may unpack to.
  std::size_t (*max_body_bytes)(const Kind&) noexcept;
  std::size_t (*workspace_bytes)(const Kind&) noexcept;
  Status (*decode)(const LayerOutput&) noexcept;
  /// Atoms of the layer and those kept in this body (0, 0 where the method has none).
  Status (*count)(ConstBytes body, const Kind&, std::uint8_t form, std::uint64_t& atoms,
                  std::uint64_t& kept) noexcept;
};

/// Null for an unknown number.
[[nodiscard]] const BodyDecoder* find_decoder(MethodId id) noexcept;

// One a method; methods/*.cpp.
extern const BodyDecoder kIdentityDecoder, kAtomsDecoder, kCoordinateDecoder, kQsgdDecoder,
    kTernaryDecoder, kSignDecoder, kTopkDecoder, kRandomKDecoder, kFactorsDecoder,
    kAutomaticDecoder;

/// Puts a lossless stage behind a method.
struct BloscOptions {
  std::string codec = "lz4";     ///< lz4, zstd, blosclz
  int level = 5;                 ///< 0..9
  std::string shuffle = "byte";  ///< none, byte, bit
  friend bool operator==(const BloscOptions&, const BloscOptions&) = default;
};
[[nodiscard]] std::shared_ptr<const Method> make_blosc(std::shared_ptr<const Method> inner,
                                                       BloscOptions options);

/// Unpacks a lossless body into `out` (its whole size is `bytes` on return). Any input gives a
/// Status.
Status blosc_unpack(ConstBytes body, Bytes out, std::size_t& bytes) noexcept;
/// What it says that it unpacks to; 0 where it is too short to say.
[[nodiscard]] std::uint64_t lossless_raw_bytes(ConstBytes body) noexcept;

}  // namespace atomo::codec
