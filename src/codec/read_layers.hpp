// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Decodes all layers of a message, several at once where there is an executor.

#include <array>
#include <numeric>
#include <span>

#include "codec/layer.hpp"
#include "codec/layer_order.hpp"
#include "core/run_tasks.hpp"
#include "core/status.hpp"

namespace atomo::codec {

/// At most so many layers are decoded at once: what is known of them lies on the stack.
inline constexpr std::size_t kLayersAtOnce = 64;

/// Decodes every layer of `head` into the view `target(index)`. With an executor, consecutive layers
/// are taken together as long as the workspace has room for each (layer_order.hpp). Values and status
/// are those of one layer after the other: of two that fail the first one's.
template <typename Target>
Status read_layers(const Head& head, bool add, float alpha, const Context& context,
                   Target target) noexcept {
  struct Task {
    LayerEntry layer;
    TensorView view;
    Bytes workspace;
    Status status = Status::ok;
  };
  std::array<Task, kLayersAtOnce> tasks;
  LayerCursor layer(head);
  Status status = Status::ok, walked = Status::ok;
  bool more = layer.next(walked);
  while (more) {
    std::size_t count = 0, used = 0;
    do {
      const TensorView view = target(layer.index);
      const bool lossless = (layer.row.flags & LayerRecord::kLossless) != 0;
      const std::size_t need = view.shape == layer.kind.shape
                                   ? read_layer_workspace(layer.kind, view.dtype, lossless)
                                   : 0;  // refused
      const std::size_t free = context.workspace.size() - used;
      if (count > 0 && need > free) break;
      tasks[count++] = {layer, view, context.workspace.subspan(used, std::min(need, free)),
                        Status::ok};
      used += std::min(need, free);
      more = layer.next(walked);
    } while (more && context.executor != nullptr && count < kLayersAtOnce);
    std::array<std::size_t, kLayersAtOnce> order;
    const std::span<std::size_t> sorted(order.data(), count);
    std::iota(sorted.begin(), sorted.end(), std::size_t{0});
    const auto size_of = [&](std::size_t i) { return tasks[i].layer.kind.shape.elements(); };
    sort_by_size(sorted, size_of);
    const auto read = [&](Task& task, Executor* executor) {
      task.status =
          read_layer(task.layer, head.header(), task.view, add, alpha, task.workspace, executor);
    };
    const std::size_t alone =
        count_alone(std::span<const std::size_t>(sorted), context.executor, size_of);
    for (const std::size_t i : sorted.first(alone)) read(tasks[i], context.executor);
    Executor* const inside = count - alone == 1 ? context.executor : nullptr;
    run_tasks(context.executor, count - alone,
              [&](std::size_t k) { read(tasks[sorted[alone + k]], inside); });
    for (const Task& task : std::span(tasks).first(count)) {
      if (failed(task.status)) return task.status;
      status |= task.status;
    }
  }
  return failed(walked) ? walked : status;
}

}  // namespace atomo::codec
