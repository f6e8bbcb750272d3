// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A codec: an immutable, thread-safe value made from a spec string, which turns one tensor into a
/// container and back.
///
/// ```cpp
/// const atomo::Shape shape{128, 784};
/// auto codec = atomo::Codec::parse("atomo:bits=0.5");
/// std::vector<std::byte> payload(codec.max_encoded_bytes(shape));
/// std::vector<std::byte> workspace(codec.encode_workspace_bytes(shape));
/// std::uint64_t bytes = 0;
/// atomo::Status status = codec.encode({gradient.data(), atomo::DType::f32, shape}, {.seed = 1},
///                                     {payload.data(), payload.size(), &bytes},
///                                     {.workspace = workspace});
/// ```

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

namespace codec {
struct Stages;
struct Access;
}  // namespace codec

/// How one tensor becomes a message and a message a tensor.
class Codec {
 public:
  /// Reads a spec: stages joined by `+`, each `name` or `name:key=value,...`. A memory in front,
  /// `ef+topk:keep=0.01`, is kept by a `Compressor`; a Codec has no state, so one with a memory decodes,
  /// and does not encode. Allocates.
  /// \throws Error naming the token, its position, what is accepted there and the nearest known
  /// name.
  static Codec parse(std::string_view spec);

  /// The canonical spec; `parse(to_string())` equals this codec.
  [[nodiscard]] std::string to_string() const;
  /// What this codec promises.
  [[nodiscard]] const Traits& traits() const noexcept;

  /// This codec without the lossless stage behind it, `qsgd:bits=2` for `qsgd:bits=2+blosc`: what a
  /// device runs, before pack_lossless (atomo/container.hpp) on the CPU. Itself where it has none.
  [[nodiscard]] Codec without_lossless() const;
  /// This codec without the memory in front of it, `topk:keep=0.01` for `ef+topk:keep=0.01`: what its
  /// messages are written by, as every receiver sees them. Itself where it has none.
  [[nodiscard]] Codec without_memory() const;

  /// Upper bound of a message of one tensor of this shape, header included: the capacity that
  /// `encode` needs. It is exact when `traits().fixed_size`. A codec whose size follows the values
  /// is bounded for the worst values at the lowest price, whatever its budget: 3.1 to 3.9 bytes a
  /// parameter for `atomo`. A `cap=` bounds it by the cap. \throws Error for a `cap=` that leaves
  /// no room for a message of this shape.
  [[nodiscard]] std::size_t max_encoded_bytes(const Shape& shape, DType dtype = DType::f32) const;
  /// Bytes that a message of this shape is expected to take, header included: all of them when
  /// `traits().fixed_size`, the budget for a codec with `bits=`. Nothing where the values alone say.
  [[nodiscard]] std::optional<std::uint64_t> expected_bytes(const Shape& shape,
                                                            DType dtype = DType::f32) const;
  /// Bytes that every worker can send of its message of this shape, so that lengths need not travel:
  /// `max_encoded_bytes` where `traits().bounded`, nothing otherwise. What stands behind a message is
  /// sent along and not looked at: it may be anything, since the message's head tells where it ends.
  /// \throws Error as `max_encoded_bytes`.
  [[nodiscard]] std::optional<std::size_t> wire_bytes(const Shape& shape,
                                                      DType dtype = DType::f32) const;
  /// Workspace that `encode` needs for this shape; any alignment. For `Device::cuda` it is device
  /// memory. \throws Error when this codec, or this build, has no CUDA twin, and for a codec with a
  /// memory, which a `Compressor` alone encodes.
  [[nodiscard]] std::size_t encode_workspace_bytes(const Shape& shape, DType dtype = DType::f32,
                                                   Device device = Device::cpu) const;
  /// Workspace that `decode`, `decode_add` and `decode_add_all` need for a view of this shape and
  /// dtype. For `Device::cuda` it is device memory. \throws Error when this codec, or this build, has no
  /// CUDA twin.
  [[nodiscard]] std::size_t decode_workspace_bytes(const Shape& shape, DType dtype = DType::f32,
                                                   Device device = Device::cpu) const;

  /// Writes `view` as a container of one layer. Neither allocates nor synchronises unless the
  /// traits say so. Needs `payload.capacity >= max_encoded_bytes` and `context.workspace.size() >=
  /// encode_workspace_bytes`. `unsupported` for a codec with a memory.
  ///
  /// With a view on a CUDA device all pointers (tensor, payload, its length, workspace, `status`,
  /// `step`) are device pointers, the work is queued on `context.stream`, which must not be null, and can be
  /// captured into a graph. The value returned is what the host can see (sizes, pointers, a failed launch); what
  /// the data brings is in `*context.status` when the stream is done. The same holds for the
  /// calls that decode.
  Status encode(const ConstTensorView& view, const Key& key, const Payload& payload,
                const Context& context) const noexcept;

  /// Reads a container of one layer into `view`. `message` may be longer than the message in it (a
  /// padded all-gather). Any bytes at all give a Status; on failure the contents of `view` are
  /// unspecified. A half view is rounded stochastically with the key of the message, so replicas
  /// agree.
  Status decode(ConstBytes message, const TensorView& view, const Context& context) const noexcept;

  /// `view[i] = view[i] + (alpha * decoded[i])`, two roundings, f32 views only.
  Status decode_add(ConstBytes message, float alpha, const TensorView& view,
                    const Context& context) const noexcept;

  /// Adds several messages in the order given, rank order for one: bit for bit what a `decode_add` of
  /// each gives, in less time, as the tensor goes through memory once for many of them. A message
  /// that is refused keeps none of the others from being added; `Context::statuses` tells which it
  /// was.
  Status decode_add_all(std::span<const ConstBytes> messages, float alpha, const TensorView& view,
                        const Context& context) const noexcept;

  /// The same canonical spec.
  friend bool operator==(const Codec& a, const Codec& b) { return a.to_string() == b.to_string(); }

 private:
  friend struct codec::Access;
  explicit Codec(std::shared_ptr<const codec::Stages> stages);
  std::shared_ptr<const codec::Stages> stages_;
  std::shared_ptr<const Traits> traits_;
};

/// A row of the table of codecs, for help texts.
struct CodecHelp {
  std::string name;     ///< "qsgd"
  std::string keys;     ///< "bits=1..8, bucket=512, norm=max|l2"
  std::string summary;  ///< one line
  std::string example;  ///< a spec that parses
  /// Specs that show every choice that changes this codec's messages: what a test of all codecs runs.
  std::vector<std::string> specs;
};

/// Every codec this build knows, in the order of the documentation; behind them those that were
/// registered (atomo/own_codec.hpp).
[[nodiscard]] std::vector<CodecHelp> list_codecs();
/// Every memory that may stand in front of a codec, likewise.
[[nodiscard]] std::vector<CodecHelp> list_memories();

}  // namespace atomo
