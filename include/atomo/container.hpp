// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The container on the wire: what is in it, reading it without knowing the codec, and joining
/// layers (FORMAT.md).

#include <cstdint>
#include <string>
#include <vector>

#include "atomo/codec.hpp"
#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// One layer of a container, as its row and kind say.
struct LayerInfo {
  std::string name;  ///< empty unless the container carries names
  /// "atomo/rows", "qsgd:bits=4,bucket=512,norm=max", ...; of a codec that is not the library's its spec,
  /// registered here or not, and "own" where the body does not tell.
  std::string codec;
  DType dtype = DType::f32;  ///< what the encoder was given
  Shape shape;               ///< what the encoder was given
  float price =
      0;  ///< the amplitude `a` of an atom that is only just certain, or the grid step; 0 when none
  /// Atoms (or elements) the layer has; 0 where the codec has none, or where a lossless stage
  /// shrank the body more than 256 times (`inspect` does not unpack those).
  std::uint64_t atoms = 0;
  std::uint64_t kept = 0;   ///< of these, kept in this message
  std::uint64_t bytes = 0;  ///< of its body on the wire
  bool non_finite = false;  ///< it held an Inf or NaN and decodes to NaN everywhere
  bool lossless = false;    ///< the body went through a lossless stage
  bool thinned = false;     ///< atoms were left out to keep a cap
};

/// A whole container.
struct ContainerInfo {
  int major = 0;            ///< version of the format
  int minor = 0;            ///< version of the format
  Key key;                  ///< `tensor` is that of the first layer; layers are numbered on from it
  Prices prices;            ///< of the whole message; a layer may have its own
  std::uint64_t bytes = 0;  ///< the whole message
  std::uint64_t head_bytes = 0;   ///< header, rows, kinds, names
  std::vector<LayerInfo> layers;  ///< in the order of the message
  /// The elements of all layers together.
  [[nodiscard]] std::uint64_t elements() const noexcept;
};

/// Reads the head, verifies both checksums and walks every body's index. Allocates (never by an
/// unchecked word). `exact`: refuse bytes after the message. On failure `info` is unspecified.
Status inspect(ConstBytes message, ContainerInfo& info, bool exact = false);

/// Decodes every layer of any container, whatever codec wrote each. `views[i]` must have the shape
/// of layer i, in host memory (a device decodes through the `Codec` or the `Compressor`, which know
/// what to expect). Needs a workspace of `decode_workspace_bytes` of the largest layer. Neither
/// allocates nor synchronises, but for layers behind a lossless stage or an exact SVD.
Status decode(ConstBytes message, std::span<const TensorView> views,
              const Context& context) noexcept;

/// `view[i] + (alpha * decoded[i])`, otherwise as `decode`; f32 views only.
Status decode_add(ConstBytes message, float alpha, std::span<const TensorView> views,
                  const Context& context) noexcept;

/// Adds several messages in the order given, bit for bit what a `decode_add` of each gives, in less
/// time: those of the same layers and codecs go through memory together. A message that is refused
/// keeps none of the others from being added; `Context::statuses` tells which it was.
Status decode_add_all(std::span<const ConstBytes> messages, float alpha,
                      std::span<const TensorView> views, const Context& context) noexcept;

/// Workspace that `decode`, `decode_add` and `decode_add_all` above need for a layer of this shape,
/// whatever its codec.
[[nodiscard]] std::size_t decode_workspace_bytes(const Shape& shape, DType dtype = DType::f32);

/// Puts each body behind the lossless stage (`+blosc`) of its layer's codec, on the CPU: what is
/// left to do with a message, in host memory, that a device made with `Codec::without_lossless`.
/// `codecs` holds one a layer, or one for all; the bytes are those of encoding with them. A
/// capacity of `message.size()` suffices; `payload` is other memory. Takes heap memory.
/// Status::shape_mismatch when `codecs` are more or fewer than the layers, Status::codec_mismatch
/// when a layer is another codec's, or behind a stage already.
Status pack_lossless(ConstBytes message, std::span<const Codec> codecs,
                     const Payload& payload) noexcept;

/// Takes every body out of its lossless stage: a message that decodes alike, on a device too. Needs
/// a capacity of `unpacked_bytes`, which a hostile message can make as large as its layers' shapes
/// allow; `payload` is other memory. Takes heap memory.
Status unpack_lossless(ConstBytes message, const Payload& payload) noexcept;
/// The bytes that the message has without lossless stages; 0 when it is not a message. The call
/// neither allocates nor unpacks.
[[nodiscard]] std::uint64_t unpacked_bytes(ConstBytes message) noexcept;

/// Joins containers of consecutive layers (by `Key::tensor`) into one: the same bytes as encoding
/// them together at the same prices. `parts` are in ascending order of tensor. Status::shape_mismatch
/// for a part whose key is not that of the layers behind the part before, Status::price_mismatch for
/// different prices.
Status join(std::span<const ConstBytes> parts, const Payload& payload) noexcept;

/// Capacity that suffices for `join` of parts of these sizes.
[[nodiscard]] std::size_t joined_bytes_bound(std::span<const ConstBytes> parts) noexcept;

}  // namespace atomo
