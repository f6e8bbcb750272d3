// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The decoders of bodies. One is found by the method's number on the wire, so any container can be
/// read without the spec that made it.

#include <cstdint>
#include <string>

#include "atomo/types.hpp"
#include "cpu/add_bodies.hpp"
#include "format/kind.hpp"
#include "format/layer_body.hpp"

namespace atomo::codec {

/// A layer on its way out. `add`: y[i] = y[i] + (alpha * v) for each body in its order, else y[i] = v
/// of the one body, for every i.
struct LayerOutput {
  std::span<LayerBody> bodies;  ///< kBodiesAtOnce at most; `decode` sets their statuses
  const Kind* kind = nullptr;   ///< of all bodies
  float* y = nullptr;
  std::size_t n = 0;
  bool add = false;
  float alpha = 1;
  Bytes workspace;
  Executor* executor = nullptr;
};

/// The decoder of one method. Bodies are any bytes at all; nothing is read outside them. Values are
/// those of one body after the other; where the method allows it y is read and written once for all.
struct BodyDecoder {
  /// Empty when the parameters or the shape are not valid for this method; else e.g.
  /// "qsgd:bits=4,bucket=512".
  std::string (*describe)(const Kind&);
  /// Upper bound of a body of this kind: what a lossless stage may unpack to.
  std::size_t (*max_body_bytes)(const Kind&) noexcept;
  std::size_t (*workspace_bytes)(const Kind&) noexcept;
  void (*decode)(const LayerOutput&) noexcept;
  /// Atoms of the layer and those kept in this body (0, 0 where the method has none).
  Status (*count)(ConstBytes body, const Kind&, std::uint8_t form, std::uint64_t& atoms,
                  std::uint64_t& kept) noexcept;
};

/// `decode` of methods whose bodies take a whole layer each.
template <Status (*kDecode)(const LayerOutput&, const LayerBody&) noexcept>
void decode_each(const LayerOutput& out) noexcept {
  for (LayerBody& body : out.bodies) body.status = kDecode(out, body);
}

/// `count` of methods whose bodies have no atoms.
inline Status count_no_atoms(ConstBytes, const Kind&, std::uint8_t, std::uint64_t& atoms,
                             std::uint64_t& kept) noexcept {
  atoms = kept = 0;
  return Status::ok;
}

/// Null for an unknown number.
[[nodiscard]] const BodyDecoder* find_decoder(MethodId id) noexcept;

/// One a method (format/methods.def), in the files of codec/methods/.
namespace decoders {
#define ATOMO_METHOD(number, id, price, row, parameters) extern const BodyDecoder id;
#include "format/methods.def"
}  // namespace decoders

}  // namespace atomo::codec
