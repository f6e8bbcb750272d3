// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The stages of a message in their order, whatever has its layers. Adding an operation is a line in
/// `EncodePlans` and one in `DecodePlans`.

#include <algorithm>
#include <concepts>
#include <span>
#include <tuple>

#include "cuda/atoms.cuh"
#include "cuda/atoms_decode.cuh"
#include "cuda/chunk_topk.cuh"
#include "cuda/container.cuh"
#include "cuda/coordinate.cuh"
#include "cuda/coordinate_decode.cuh"
#include "cuda/cub.cuh"
#include "cuda/factors.cuh"
#include "cuda/factors_decode.cuh"
#include "cuda/fixed_length.cuh"
#include "cuda/fp8.cuh"
#include "cuda/half_sums.cuh"
#include "cuda/identity.cuh"
#include "cuda/memory.cuh"
#include "cuda/qsgd.cuh"
#include "cuda/random_k.cuh"
#include "cuda/sign.cuh"
#include "cuda/streaming.cuh"
#include "cuda/ternary.cuh"
#include "cuda/topk.cuh"
#include "cuda/topk_decode.cuh"

namespace atomo::cuda {

// Those of methods.def come first.
using EncodePlans = std::tuple<
#define ATOMO_FIXED_LENGTH(id) fixed_length::Plan<MethodId::id>,
#include "format/methods.def"
    identity::Plan, fp8::Plan, qsgd::Plan, ternary::Plan, sign::Plan, topk::Plan, random_k::Plan,
    chunk_topk::Plan, atoms::Plan, coordinate::Plan, factors::Plan>;
using DecodePlans = std::tuple<
#define ATOMO_FIXED_LENGTH(id) fixed_length::Plan<MethodId::id>,
#include "format/methods.def"
    identity::Plan, fp8::Plan, qsgd::Plan, ternary::Plan, sign::Plan, topk::DecodePlan,
    random_k::Plan, chunk_topk::DecodePlan, atoms::DecodePlan, coordinate::DecodePlan,
    factors::DecodePlan>;

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
  Split halves;             ///< decoding: a job a layer, without units where the view is f32
  CallScratch<float> room;  ///< decoding: f32 values of the other views
  CallScratch<FirstKey> first_key;  ///< decoding several messages
  std::uint32_t messages = 1;       ///< that the workspace has parts for

  /// `together`: messages that are decoded at once at most.
  void make(const MessageShape& shape, Layout& layout, bool decodes,
            std::uint32_t together = kMessagesAtOnce) {
    plan_frame(shape.layers, shape.kind_of, shape.kinds, shape.head_tables, layout, frame,
               shape.flags);
    if (decodes) {
      messages = together;
      frame.apart =
          layout.call_scratch<float>(std::min(together, kMessagesOfTurn) * frame.apart_entries);
      plan_halves(shape.layers, layout);
    }
    std::apply([&](auto&... p) { (plan(shape.layers, layout, p), ...); }, operations);
    frame.zeroed_bytes = layout.zeroed_bytes();
    frame.message_bytes = layout.message_bytes();
    frame.messages_bytes = messages * layout.message_bytes();
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
    room = layout.call_scratch<float>(entries);
    first_key = layout.call_scratch<FirstKey>(1);
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

/// Launches all stages of an encode. `memory`: of layers that have one.
inline void encode_message(const Frame& frame, const MessagePlan<EncodePlans>& plan,
                           ConstBytes tables, const MessageCall& call,
                           std::span<const ConstTensorView> views, const Remembered& memory,
                           std::uint64_t* bytes, Status* status, Queue& queue) {
  begin(frame, tables, call, views, memory.x, queue);
  if (!memory.empty()) form(frame, memory.range, true, queue);
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

/// Operations with layers whose values are made for some messages after the others, such as pairs,
/// whose vectors take the call's part of the workspace.
template <typename Plan>
concept DecodesInTurn = requires(const Frames& frames, const MessageRange& turn, const Plan& p,
                                 DecodeInto into, Queue& queue) {
  { has_turns(frames, p, into) } -> std::same_as<bool>;
  decode_in_turn(frames, turn, p, into, queue);
};
/// Those that add what operations kept apart in a turn.
template <typename Plan>
concept AddsApart = requires(const Frames& frames, const MessageRange& turn, const Plan& p,
                             DecodeInto into, Queue& queue) {
  add_apart(frames, turn, p, into, queue);
};

/// Values of messages that are open: those of all of them together first, then, turn by turn, what
/// is left. A layer's values are all added by one of the two, so that its messages are added in order.
inline void decode_layers(const Frames& frames, const MessagePlan<DecodePlans>& plan,
                          DecodeInto into, Queue& queue) {
  plan.each([&]<typename Plan>(const Plan& p) { decode(frames, p, into, queue); });
  const std::uint32_t together = into.add ? kMessagesOfTurn : 1;
  for (std::uint32_t m = 0; m < frames.count; m += together) {
    const MessageRange turn{m, std::min(together, frames.count - m)};
    plan.each([&]<typename Plan>(const Plan& p) {
      if constexpr (DecodesInTurn<Plan>) {
        if (has_turns(frames, p, into)) decode_in_turn(frames, turn, p, into, queue);
      }
    });
    plan.each([&]<typename Plan>(const Plan& p) {
      if constexpr (AddsApart<Plan>) add_apart(frames, turn, p, into, queue);
    });
  }
}

/// Behind an encode with memories: takes what the message says from what was to be said, and keeps the
/// rest. `own` has the places of decoding one message, and the message; its part of the workspace may be
/// that of `encoded`.
inline void keep_unsent(const Frame& encoded, const Frame& own,
                        const MessagePlan<DecodePlans>& plan, ConstBytes tables,
                        std::span<const ConstTensorView> views, const Remembered& memory,
                        Status* status, Queue& queue) {
  if (memory.empty()) return;
  if (memory.range.scales) form(encoded, memory.range, false, queue);
  Frames one;
  one.first = own;
  one.places[0] = {own.message, own.capacity};
  one.count = 1;
  open_own(one, tables, views, memory.x, queue);
  decode_layers(one, plan, {true, -1}, queue);
  keep(one.first, memory.range, status, queue);
}

/// Launches all stages of decoding messages, as many at once as go together. `frame` has the plan's
/// places.
inline void decode_messages(const Frame& frame, const MessagePlan<DecodePlans>& plan,
                            ConstBytes tables, std::span<const ConstBytes> messages,
                            DecodeInto into, std::span<const TensorView> views,
                            const Context& context, Queue& queue) {
  const bool halves = plan.halves.units > 0, sums = halves && into.add;
  if (messages.empty() && context.status != nullptr)
    queue.note(cudaMemsetAsync(context.status, 0, sizeof *context.status, queue.stream()));
  for (std::size_t m = 0; m < messages.size(); m += kMessagesAtOnce) {
    Frames frames;
    frames.first = frame;
    for (const ConstBytes message :
         messages.subspan(m, std::min<std::size_t>(kMessagesAtOnce, messages.size() - m)))
      frames.places[frames.count++] = {const_cast<std::byte*>(message.data()), message.size()};
    frames.first = frames[0];
    const bool last = m + frames.count == messages.size();
    const StatusWords words{context.status,
                            context.statuses == nullptr ? nullptr : context.statuses + m};
    open(frames, tables, views, plan.room, queue);
    if (sums && m == 0) begin_half_sums(frames.first, plan.halves, queue);
    if (sums) keep_first_key(frames, plan.first_key, m == 0, queue);
    decode_layers(frames, plan, into, queue);
    if (halves && !sums) round_halves(frames.first, plan.halves, queue);
    close(frames, into, words, queue, m != 0);
    if (!sums || !last) continue;
    round_half_sums(frames.first, plan.halves, plan.first_key, queue);
    close(frames, into, {words.all, nullptr}, queue, true);
  }
}

/// Launches all stages of a vote over messages whose layers are all signs in f32, as many at once as go
/// together.
inline void count_votes(const Frame& frame, const MessagePlan<DecodePlans>& plan,
                        std::span<const ConstBytes> messages, std::span<const TensorView> views,
                        const Context& context, Queue& queue) {
  for (std::size_t m = 0; m < messages.size(); m += kMessagesAtOnce) {
    Frames frames;
    frames.first = frame;
    for (const ConstBytes message :
         messages.subspan(m, std::min<std::size_t>(kMessagesAtOnce, messages.size() - m)))
      frames.places[frames.count++] = {const_cast<std::byte*>(message.data()), message.size()};
    frames.first = frames[0];
    const StatusWords words{context.status,
                            context.statuses == nullptr ? nullptr : context.statuses + m};
    open(frames, {}, views, plan.room, queue);
    const sign::VoteInto into{m != 0, m + frames.count == messages.size()};
    const auto& signs = std::get<sign::Plan>(plan.operations);
    if (!signs.empty()) sign::count(frames, signs, into, queue);
    close(frames, {}, words, queue, m != 0);
  }
}

}  // namespace atomo::cuda
