// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The stages of a message in their order, whatever has its layers. Adding an operation is a line in
/// `EncodePlans` and one in `DecodePlans`.

#include <algorithm>
#include <span>
#include <tuple>

#include "cuda/atoms.cuh"
#include "cuda/atoms_decode.cuh"
#include "cuda/container.cuh"
#include "cuda/coordinate.cuh"
#include "cuda/coordinate_decode.cuh"
#include "cuda/cub.cuh"
#include "cuda/factors.cuh"
#include "cuda/factors_decode.cuh"
#include "cuda/fixed_length.cuh"
#include "cuda/half_sums.cuh"
#include "cuda/identity.cuh"
#include "cuda/qsgd.cuh"
#include "cuda/random_k.cuh"
#include "cuda/sign.cuh"
#include "cuda/streaming.cuh"
#include "cuda/ternary.cuh"
#include "cuda/topk.cuh"

namespace atomo::cuda {

// Those of methods.def come first.
using EncodePlans = std::tuple<
#define ATOMO_FIXED_LENGTH(id) fixed_length::Plan<MethodId::id>,
#include "format/methods.def"
    identity::Plan, qsgd::Plan, ternary::Plan, sign::Plan, topk::Plan, random_k::Plan, atoms::Plan,
    coordinate::Plan, factors::Plan>;
using DecodePlans = std::tuple<
#define ATOMO_FIXED_LENGTH(id) fixed_length::Plan<MethodId::id>,
#include "format/methods.def"
    identity::Plan, qsgd::Plan, ternary::Plan, sign::Plan, topk::Plan, random_k::Plan,
    atoms::DecodePlan, coordinate::DecodePlan, factors::DecodePlan>;

/// The layers of a message as plans take them, with the head's tables.
struct MessageShape {
  std::span<const LayerPlan> layers;
  std::span<const std::uint16_t> kind_of;
  std::uint32_t kinds = 0;
  ConstBytes head_tables;
  std::uint16_t flags = 0;  ///< of the header
};

/// Plans of one direction: the frame's and each operation's.
template <typename Plans>
struct MessagePlan {
  FramePlan frame;
  Plans operations;
  Split halves;            ///< decoding: a job a layer, without units where the view is f32
  Scratch<float> room;     ///< decoding: f32 values of the other views
  Scratch<Key> first_key;  ///< decoding: of the first of several messages
  std::uint64_t more_bytes =
      0;  ///< decoding: of the states of messages that are decoded with another

  void make(const MessageShape& shape, Layout& layout, bool decodes) {
    plan_frame(shape.layers, shape.kind_of, shape.kinds, shape.head_tables, layout, frame,
               shape.flags);
    if (decodes) {
      plan_halves(shape.layers, layout);
      more_bytes = (kMessagesAtOnce - 1) * Frames::state_bytes(frame);
    }
    std::apply([&](auto&... p) { (plan(shape.layers, layout, p), ...); }, operations);
    frame.zeroed_bytes = layout.zeroed_bytes();
  }
  void plan_halves(std::span<const LayerPlan> layers, Layout& layout) {
    SplitMaker split(layout, layers.size());
    std::uint64_t entries = 0;
    for (const LayerPlan& layer : layers) {
      const std::uint64_t n = layer.kind.dtype == DType::f32 ? 0 : layer.n;
      split.add(divide_up(n, kHalfUnit));
      entries += n;
    }
    halves = split.split();
    room = layout.scratch<float>(entries);
    first_key = layout.scratch<Key>(1);
  }
  /// Whether an operation calls the caller's libraries.
  [[nodiscard]] bool uses_handles() const {
    const auto needs = []<typename Plan>(const Plan& p) {
      if constexpr (Plan::kStages.handles) return needs_handles(p);
      return false;
    };
    return std::apply([&](const auto&... p) { return (needs(p) || ...); }, operations);
  }
  /// Calls `stage(plan)` for the operations that have layers.
  template <typename Stage>
  void each(Stage stage) const {
    std::apply([&](const auto&... p) { ((p.empty() ? void() : stage(p)), ...); }, operations);
  }
};

/// An operation has the stages that it declares and no other: a function whose parameters are not
/// quite a stage's would never be called.
template <typename Plan>
concept HasDeclaredStages = requires(const Frame& frame, const Plan& p, Queue& queue) {
  requires Plan::kStages.analyse == requires { analyse(frame, p, queue); };
  requires Plan::kStages.price == requires { find_price(frame, p, queue); };
  requires Plan::kStages.size == requires { size(frame, p, queue); };
  requires Plan::kStages.write == requires { write(frame, p, queue); };
  requires Plan::kStages.handles == requires { needs_handles(p); };
};

/// Launches all stages of an encode.
inline void encode_message(const Frame& frame, const MessagePlan<EncodePlans>& plan,
                           ConstBytes tables, const MessageCall& call,
                           std::span<const ConstTensorView> views, std::uint64_t* bytes,
                           Status* status, Queue& queue) {
  begin(frame, tables, call, views, queue);
  plan.each([&]<typename Plan>(const Plan& p) {
    static_assert(HasDeclaredStages<Plan>);
    if constexpr (Plan::kStages.analyse) analyse(frame, p, queue);
  });
  plan.each([&]<typename Plan>(const Plan& p) {
    if constexpr (Plan::kStages.price) find_price(frame, p, queue);
  });
  plan.each([&]<typename Plan>(const Plan& p) {
    if constexpr (Plan::kStages.size) size(frame, p, queue);
  });
  place(frame, queue);
  plan.each([&]<typename Plan>(const Plan& p) {
    if constexpr (Plan::kStages.write) write(frame, p, queue);
  });
  assemble(frame, queue);
  seal(frame, bytes, status, queue);
}

/// Operations that decode several messages in one go. The others use the workspace for one message.
template <typename Plan>
concept DecodesTogether = requires(const Frames& frames, const Plan& p, DecodeInto into,
                                   Queue& queue) {
  decode(frames, p, into, queue);
};

/// Values of messages that are open. A layer is one operation's, or, where its form is told by each
/// message, of several that decode one message after the other: so its messages are added in order.
inline void decode_layers(const Frames& frames, const MessagePlan<DecodePlans>& plan,
                          DecodeInto into, Queue& queue) {
  bool others = false;
  plan.each([&]<typename Plan>(const Plan& p) {
    if constexpr (DecodesTogether<Plan>)
      decode(frames, p, into, queue);
    else
      others = true;
  });
  for (std::uint32_t m = 0; others && m < frames.count; ++m) {
    const Frame frame = frames[m];
    if (m != 0) clear_between(frame, queue);
    plan.each([&]<typename Plan>(const Plan& p) {
      if constexpr (!DecodesTogether<Plan>) decode(frame, p, into, queue);
    });
  }
}

/// Launches all stages of decoding messages, as many at once as go together. `frame` has the plan's
/// places; `more` is memory for the states of later messages.
inline void decode_messages(const Frame& frame, std::byte* more,
                            const MessagePlan<DecodePlans>& plan, ConstBytes tables,
                            std::span<const ConstBytes> messages, DecodeInto into,
                            std::span<const TensorView> views, const Context& context,
                            Queue& queue) {
  const bool halves = plan.halves.units > 0, sums = halves && into.add;
  for (std::size_t m = 0; m < messages.size(); m += kMessagesAtOnce) {
    Frames frames;
    frames.first = frame;
    frames.more = more;
    for (const ConstBytes message :
         messages.subspan(m, std::min<std::size_t>(kMessagesAtOnce, messages.size() - m)))
      frames.places[frames.count++] = {const_cast<std::byte*>(message.data()), message.size()};
    frames.first = frames[0];
    const bool last = m + frames.count == messages.size();
    const StatusWords words{context.status,
                            context.statuses == nullptr ? nullptr : context.statuses + m};
    open(frames, tables, views, plan.room, queue);
    if (sums && m == 0) begin_half_sums(frames.first, plan.halves, plan.first_key, queue);
    decode_layers(frames, plan, into, queue);
    if (halves && !sums) round_halves(frames.first, plan.halves, queue);
    close(frames, into, words, queue, m != 0);
    if (!sums || !last) continue;
    round_half_sums(frames.first, plan.halves, plan.first_key, queue);
    close(frames, into, {words.all, nullptr}, queue, true);
  }
}

}  // namespace atomo::cuda
