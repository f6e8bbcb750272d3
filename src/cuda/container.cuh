// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The container on the device (container.cu): the stages of a message that belong to no method.

#include "cuda/frame.cuh"

namespace atomo::cuda {

/// Takes its part of tables and workspace. `head_tables` is what follows the rows of the head.
void plan_frame(std::span<const PlannedLayer> layers, std::span<const std::uint16_t> kind_of,
                std::uint32_t kinds, ConstBytes head_tables, Layout& layout, FramePlan& plan);

/// What a call is given, beside its tensors.
struct MessageCall {
  Key key;
  const std::uint32_t* step = nullptr;  ///< device word that overrides the key's, or null
  std::uint64_t budget_256[2] = {};     ///< of the pools
  /// Device words, or null: the prices of the step in the pools' order; a layer with a budget finds
  /// its own where they are 0.
  const float* given = nullptr;
};

/// Pointers that travel with a launch, so that a captured graph keeps them.
inline constexpr std::uint32_t kPointersInLaunch = 3800;

/// First launch of an encode: clears what must be zero and fills the states. `tables` on the host
/// (of at most kTablesInLaunch bytes) are put at `frame.tables` first; empty when they are there.
inline constexpr std::size_t kTablesInLaunch = 8192;
void begin(const Frame& frame, ConstBytes tables, const MessageCall& call,
           std::span<const ConstTensorView> views, Queue& queue);

void place(const Frame& frame, Queue& queue);
void assemble(const Frame& frame, Queue& queue);
/// `bytes` and `status` are device words; `status` may be null.
void seal(const Frame& frame, std::uint64_t* bytes, Status* status, Queue& queue);

/// First launches of a decode: parses and checks the head against the plan's layers, whose states
/// then say what to decode where. The kinds' dtypes (of what was encoded) are not compared: any of the
/// three may be decoded into any view, as on the CPU. `f32_room` holds the f32 values of all half views, one after
/// another.
void open(const Frame& frame, ConstBytes tables, std::span<const TensorView> views,
          Scratch<float> f32_room, Queue& queue);
/// Entries of a unit of `round_halves`.
inline constexpr std::uint64_t kHalfUnit = 1024;
/// Rounds the values of half views (purpose `output`); job i is layer i, without units where its
/// view is f32.
void round_halves(const Frame& frame, Split halves, Queue& queue);
/// Layers that are empty, non-finite or without a body (NaNs, zeros), the checksum of the bodies,
/// the call's status.
void close(const Frame& frame, DecodeInto into, Status* status, Queue& queue);

}  // namespace atomo::cuda
