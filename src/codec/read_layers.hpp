// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Decodes all layers of one message or of several, several layers at once where there is an
/// executor. Messages of the same layers go together, layer by layer, so that a layer of the output
/// stays in a cache while one message after the other is added to it.

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "codec/layer.hpp"
#include "codec/layer_order.hpp"
#include "core/run_tasks.hpp"
#include "core/status.hpp"
#include "cpu/add_bodies.hpp"

namespace atomo::codec {

/// At most so many layers are decoded at once: what is known of them lies on the stack.
inline constexpr std::size_t kLayersAtOnce = 64;

/// A message under way.
struct OpenMessage {
  Head head;
  std::size_t number = 0;   ///< among those of the call
  std::size_t body_at = 0;  ///< of its next layer
  Status status = Status::ok;
};

/// What a call on several messages comes to: the failure of the first that failed, or all notices.
class CallStatus {
 public:
  /// `each` is null or has room for one status a message.
  explicit CallStatus(Status* each) noexcept : each_(each) {}

  void note(std::size_t message, Status status) noexcept {
    if (each_ != nullptr) each_[message] = status;
    if (!failed(status)) {
      notices_ |= status;
    } else if (!failed(failure_) || message < failed_) {
      failure_ = status;
      failed_ = message;
    }
  }
  [[nodiscard]] Status status() const noexcept { return failed(failure_) ? failure_ : notices_; }

 private:
  Status* each_;
  Status notices_ = Status::ok, failure_ = Status::ok;
  std::size_t failed_ = 0;
};

/// What a message says of a layer whose body is at `at`.
inline LayerBody body_of(const Head& head, const LayerEntry& layer, std::size_t at) noexcept {
  LayerBody body;
  body.row = head.row(layer.index);
  body.bytes = head.message().subspan(at, static_cast<std::size_t>(body.row.bytes));
  body.key = head.header().key;
  body.key.tensor = static_cast<std::uint16_t>(body.key.tensor + layer.index);
  body.price = format::header_price(head.header(), layer.kind.method);
  return body;
}

/// Decodes every layer of messages that have the same layers into the view `target(index)`; one
/// message unless `add`. With an executor, consecutive layers are taken together as long as the
/// workspace has room for each (layer_order.hpp). Values and statuses are those of one message after
/// the other, layer by layer: of two layers that fail the first one's. A message that failed is read
/// no further.
template <typename Target>
void read_layers(std::span<OpenMessage> messages, bool add, float alpha, const Context& context,
                 Target target) noexcept {
  struct Task {
    LayerEntry layer;  // of the first message
    TensorView view;
    Bytes workspace;
    std::array<std::size_t, kBodiesAtOnce> body_at;
    std::array<Status, kBodiesAtOnce> statuses;
  };
  std::array<Task, kLayersAtOnce> tasks;
  for (OpenMessage& message : messages) message.body_at = message.head.head_bytes();
  LayerCursor layer(messages.front().head);
  Status walked = Status::ok;
  bool more = layer.next(walked);
  const auto is_sound = [](const OpenMessage& message) { return !failed(message.status); };
  while (more && std::any_of(messages.begin(), messages.end(), is_sound)) {
    std::size_t count = 0, used = 0;
    do {
      const TensorView view = target(layer.index);
      bool lossless = false;
      for (const OpenMessage& message : messages)
        lossless |= (message.head.row(layer.index).flags & LayerRecord::kLossless) != 0;
      const std::size_t need = view.shape == layer.kind.shape
                                   ? read_layer_workspace(layer.kind, view.dtype, lossless)
                                   : 0;  // refused
      const std::size_t free = context.workspace.size() - used;
      if (count > 0 && need > free) break;
      Task& task = tasks[count++];
      task = {layer, view, context.workspace.subspan(used, std::min(need, free)), {}, {}};
      used += std::min(need, free);
      for (std::size_t m = 0; m < messages.size(); ++m) {
        task.body_at[m] = messages[m].body_at;
        messages[m].body_at +=
            static_cast<std::size_t>(format::padded(messages[m].head.row(layer.index).bytes));
      }
      more = layer.next(walked);
    } while (more && context.executor != nullptr && count < kLayersAtOnce);
    std::array<std::size_t, kLayersAtOnce> order;
    const std::span<std::size_t> sorted(order.data(), count);
    std::iota(sorted.begin(), sorted.end(), std::size_t{0});
    const auto size_of = [&](std::size_t i) { return tasks[i].layer.kind.shape.elements(); };
    sort_by_size(sorted, size_of);
    const auto read = [&](Task& task, Executor* executor) {
      std::array<LayerBody, kBodiesAtOnce> bodies;
      std::array<std::size_t, kBodiesAtOnce> of;  // messages
      std::size_t sound = 0;
      for (std::size_t m = 0; m < messages.size(); ++m) {
        if (failed(messages[m].status)) continue;
        bodies[sound] = body_of(messages[m].head, task.layer, task.body_at[m]);
        of[sound++] = m;
      }
      read_layer(task.layer.kind, std::span(bodies).first(sound), task.view, add, alpha,
                 task.workspace, executor);
      for (std::size_t k = 0; k < sound; ++k) task.statuses[of[k]] = bodies[k].status;
    };
    const std::size_t alone =
        count_alone(std::span<const std::size_t>(sorted), context.executor, size_of);
    for (const std::size_t i : sorted.first(alone)) read(tasks[i], context.executor);
    Executor* const inside = count - alone == 1 ? context.executor : nullptr;
    run_tasks(context.executor, count - alone,
              [&](std::size_t k) { read(tasks[sorted[alone + k]], inside); });
    for (const Task& task : std::span(tasks).first(count)) {
      for (std::size_t m = 0; m < messages.size(); ++m) {
        Status& status = messages[m].status;
        if (!failed(status))
          status = failed(task.statuses[m]) ? task.statuses[m] : status | task.statuses[m];
      }
    }
  }
  for (OpenMessage& message : messages) {
    if (!failed(message.status) && failed(walked)) message.status = walked;
  }
}

/// Decodes messages one after the other, as many together as may be, into the views `target(index)`;
/// one message unless `add`. `check(head)`, which is called in their order, refuses those of other
/// layers. A message that is refused keeps none of the others from being added.
template <typename Check, typename Target>
Status read_messages(std::span<const ConstBytes> messages, bool add, float alpha,
                     const Context& context, const Check& check, const Target& target) noexcept {
  CallStatus outcome(context.statuses);
  std::array<OpenMessage, kBodiesAtOnce> open;
  std::size_t count = 0;
  const auto read = [&] {
    if (count == 0) return;
    const std::span<OpenMessage> together = std::span(open).first(count);
    read_layers(together, add, alpha, context, target);
    for (const OpenMessage& message : together) outcome.note(message.number, message.status);
    count = 0;
  };
  for (std::size_t m = 0; m < messages.size(); ++m) {
    OpenMessage next;
    next.number = m;
    next.status = Head::parse(messages[m], false, next.head, context.executor);
    if (!failed(next.status)) next.status = check(next.head);
    if (failed(next.status)) {
      outcome.note(m, next.status);
      continue;
    }
    if (count == open.size() || (count > 0 && !next.head.has_layers_of(open[0].head))) read();
    open[count++] = next;
  }
  read();
  return outcome.status();
}

}  // namespace atomo::codec
