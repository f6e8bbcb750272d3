// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The container on the device (container.cu): the stages of a message that belong to no method.

#include "cuda/frame.cuh"

namespace atomo::cuda {

/// Takes its part of tables and workspace; `zeroed_bytes` is left to the caller. `head_tables` is
/// what follows the rows of the head, `flags` the header's (HeadLayout::flags).
void plan_frame(std::span<const LayerPlan> layers, std::span<const std::uint16_t> kind_of,
                std::uint32_t kinds, ConstBytes head_tables, Layout& layout, FramePlan& plan,
                std::uint16_t flags = 0);

/// What a call is given, beside its tensors.
struct MessageCall {
  Key key;
  const Key* device_key = nullptr;      ///< in device memory, overrides the key; or null
  const std::uint32_t* step = nullptr;  ///< device word that overrides the key's, or null
  std::uint64_t budget_256[2] = {};     ///< of the pools
  /// A layer of a streamed step: it is sent at the pools' `given` prices, or, where there is
  /// `predicted` on the device, at its; it finds its own where they are 0.
  bool streamed = false;
  bool shares =
      false;  ///< a part of a streamed step: where they are 0, its layers find one together
  float given[2] = {};
  const price::LearntPrices* predicted = nullptr;
  price::StreamedCap cap{};               ///< of this layer, but for its limit:
  const std::uint64_t* limit = nullptr;   ///< device word, or null
  price::LearntPrices* learnt = nullptr;  ///< on the device: takes the message's prices; or null
  LearntRanks ranks{};
};

/// Tensors whose pointers travel with a launch, so that a captured graph keeps them; more take more
/// launches. Tables may take the place of some.
inline constexpr std::uint32_t kTensorsInLaunch = 1900;
inline constexpr std::size_t kTablesInLaunch = 12288;

/// Where f32 values of tensors are that are not worked on where the caller has them: room in the
/// workspace, and of each layer where in it, in entries. No layers: none is elsewhere.
struct Elsewhere {
  static constexpr std::uint64_t kNot = ~std::uint64_t{0};
  float* room = nullptr;
  std::span<const std::uint64_t> at;

  [[nodiscard]] std::uint64_t of(std::size_t layer) const { return at.empty() ? kNot : at[layer]; }
};

/// First launch of an encode: clears what must be zero and fills the states. `tables` on the host
/// (of at most kTablesInLaunch bytes) are put at `frame.tables` first; empty when they are there.
/// The tensors of a message need one launch for every kTensorsInLaunch of them. `elsewhere`: what is
/// encoded in place of gradients.
void begin(const Frame& frame, ConstBytes tables, const MessageCall& call,
           std::span<const ConstTensorView> views, const Elsewhere& elsewhere, Queue& queue);

/// The same for decoding: `open` calls them.
void begin(const Frames& frames, ConstBytes tables, std::span<const TensorView> views,
           CallScratch<float> f32_room, Queue& queue);
void begin_own(const Frames& frames, ConstBytes tables, std::span<const ConstTensorView> views,
               const Elsewhere& elsewhere, Queue& queue);

/// Where bodies go; everything of the head but the header; the zeros behind bodies. One launch, none where
/// all bodies are of fixed length, since `begin` has done it.
void place(const Frame& frame, Queue& queue);
/// Bodies of varying length, from the workspace. One launch, none without such layers.
void assemble(const Frame& frame, Queue& queue);
/// Gaps closed, checksums and header. `bytes` and `status` are device words; `status` may be null. One
/// launch.
void seal(const Frame& frame, std::uint64_t* bytes, Status* status, Queue& queue);

/// First launches of a decode, over all messages at once: `begin`, then one that parses and checks
/// heads against the plan's layers, whose states then say what to decode where, and one that checks the
/// bodies' checksums. From then on `decodes` is 1 only where head, checksums and row are sound, so the outputs of
/// damaged messages stay as they are. The dtypes of what was encoded are not compared: any of the
/// three may be decoded into any view, as on the CPU. `f32_room` holds the f32 values of all half
/// views, one after another.
void open(const Frames& frames, ConstBytes tables, std::span<const TensorView> views,
          CallScratch<float> f32_room, Queue& queue);
/// The same for the message that was encoded: the layers that are `elsewhere` are decoded to where they
/// are, with the gradients `views` as the caller's tensors; the others nowhere.
void open_own(const Frames& frames, ConstBytes tables, std::span<const ConstTensorView> views,
              const Elsewhere& elsewhere, Queue& queue);
/// Entries of a unit of `round_halves`.
inline constexpr std::uint64_t kHalfUnit = 1024;
/// Rounds the values of half views (purpose `output`); job i is layer i, without units where its
/// view is f32. One launch, none without units.
void round_halves(const Frame& frame, Split halves, Queue& queue);
/// Where the statuses of a call go, device words, or null.
struct StatusWords {
  Status* all = nullptr;   ///< the first failure of its messages, or else the notices of all
  Status* each = nullptr;  ///< one a message
};
/// NaNs for the layers that are non-finite in one of the messages, and their statuses. `follows`: the
/// words hold those of other messages of the same call. One launch.
void close(const Frames& frames, DecodeInto into, StatusWords words, Queue& queue,
           bool follows = false);

}  // namespace atomo::cuda
