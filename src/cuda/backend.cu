// SPDX-License-Identifier: Apache-2.0
/// Messages of one tensor, whose plans are made anew at each call, and of a model, which keeps its own.

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "cuda/message_plan.cuh"
#include "format/container_rules.hpp"
#include "price/budget.hpp"

namespace atomo::cuda {
namespace {

using price::Pool;

/// Whether a layer can be encoded and decoded here. Those that mark entries have 2^32 - 1 at most.
bool runs(const LayerPlan& layer) noexcept {
  const MethodId id = layer.kind.method;
  const std::uint64_t most = id == MethodId::topk       ? topk::kMaxEntries
                             : id == MethodId::random_k ? random_k::kMaxEntries
                                                        : Shape::kMaxElements;
  return layer.has_cuda && layer.n <= most;
}

Status status_of(const Queue& queue, Status sound) noexcept {
  return queue.error() == cudaSuccess ? sound : Status::external;
}

/// Memory of a call: the workspace from its first multiple of 256 bytes on.
constexpr std::size_t kAlignment = 256;
std::byte* aligned(Bytes memory) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (kAlignment - address % kAlignment) % kAlignment;
}

// ---- one tensor

/// Everything of a message of one layer, on the stack.
struct OneLayer {
  const LayerPlan& layer;
  format::OneLayerTables head{};
  std::uint16_t kind_of = 0;
  MessageShape shape;

  explicit OneLayer(const LayerPlan& plan)
      : layer(plan),
        shape{{&plan, 1},
              {&kind_of, 1},
              1,
              {head.data(), format::one_layer_tables(plan.kind, head)}} {}
  OneLayer(const OneLayer&) = delete;
  OneLayer& operator=(const OneLayer&) = delete;
};

/// A plan of one layer whose tables stand behind the rest of the workspace.
template <typename Plans>
struct OneLayerPlan {
  MessagePlan<Plans> plan;
  std::array<std::byte, kTablesInLaunch> tables;
  std::uint64_t table_bytes = 0, tables_at = 0;

  /// Counts; `place` fills.
  OneLayerPlan(const OneLayer& one, bool decodes, bool places,
               std::uint32_t together = kMessagesAtOnce) {
    Layout counted;
    plan.make(one.shape, counted, decodes, together);
    table_bytes = counted.table_bytes();
    tables_at = counted.workspace_bytes(plan.messages);
    if (!places || !fits()) return;
    Layout placed(tables, counted);
    plan.make(one.shape, placed, decodes, together);
  }
  [[nodiscard]] bool fits() const noexcept { return table_bytes <= tables.size(); }
  /// Whether a call has what the plan needs.
  [[nodiscard]] Status check(const Context& context) const noexcept {
    if (!fits()) return Status::unsupported;
    if (context.workspace.size() < workspace_bytes()) return Status::workspace_too_small;
    if (context.stream == nullptr) return Status::invalid_argument;
    const bool lacks_handles = plan.uses_handles() && context.handles == nullptr;
    return lacks_handles ? Status::invalid_argument : Status::ok;
  }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept {
    return tables_at + table_bytes + kAlignment;
  }
  [[nodiscard]] Frame frame(Bytes workspace, std::byte* message = nullptr,
                            std::uint64_t capacity = 0) const {
    std::byte* const work = aligned(workspace);
    return {plan.frame, work + tables_at, work, work + plan.frame.messages_bytes,
            message,    capacity};
  }
  [[nodiscard]] ConstBytes used_tables() const noexcept {
    return {tables.data(), static_cast<std::size_t>(table_bytes)};
  }
};

std::size_t encode_workspace_bytes(const LayerPlan& layer) noexcept {
  const OneLayer one(layer);
  const std::size_t encoding = OneLayerPlan<EncodePlans>(one, false, false).workspace_bytes();
  if (!layer.remembers()) return encoding;
  const std::size_t own = OneLayerPlan<DecodePlans>(one, true, false, 1).workspace_bytes();
  return MemoryRoom::bytes_of(layer) + std::max(encoding, own);
}
std::size_t decode_workspace_bytes(const LayerPlan& layer) noexcept {
  return OneLayerPlan<DecodePlans>(OneLayer(layer), true, false).workspace_bytes();
}

/// Whether a layer can come from such a view, or go to it, here.
template <typename View>
bool takes(const LayerPlan& layer, const View& view) noexcept {
  return view.device == Device::cuda && format::is_dtype(view.dtype) && runs(layer);
}

Status encode_tensor(const LayerPlan& layer, const ConstTensorView& view, const Key& key,
                     const Payload& payload, const Context& context) noexcept {
  if (!takes(layer, view)) return Status::unsupported;
  if (payload.data == nullptr || payload.bytes == nullptr) return Status::invalid_argument;
  const OneLayer one(layer);
  if (layer.n > 0 && view.data == nullptr) return Status::invalid_argument;
  const std::size_t head = format::one_layer_head_bytes(layer.kind),
                    most = backend::max_message_bytes(layer, head);
  if (most == 0) return Status::unsupported;
  if (payload.capacity < most) return Status::buffer_too_small;
  const OneLayerPlan<EncodePlans> plan(one, false, true);
  if (const Status s = plan.check(context); failed(s)) return s;

  MessageCall call{key, context.key, context.step};
  const std::uint64_t budget =
      price::budget_cost_256(backend::single_body_budget(layer, 8.0 * static_cast<double>(head)));
  call.budget_256[kAtomsPool] = call.budget_256[kGridPool] = budget;
  Queue queue(context.stream, context.handles, plan.tables.data());
  encode_message(plan.frame(context.workspace, payload.data, payload.capacity), plan.plan,
                 plan.used_tables(), call, {&view, 1}, {}, payload.bytes, context.status, queue);
  return status_of(queue, Status::ok);
}

Status decode_tensor(const LayerPlan& layer, std::span<const ConstBytes> messages, bool add,
                     float alpha, const TensorView& view, const Context& context) noexcept {
  if (!takes(layer, view)) return Status::unsupported;
  const OneLayer one(layer);
  if (layer.n > 0 && view.data == nullptr) return Status::invalid_argument;
  if (add && view.dtype != DType::f32) return Status::unsupported;
  const OneLayerPlan<DecodePlans> plan(one, true, true);
  if (const Status s = plan.check(context); failed(s)) return s;
  Queue queue(context.stream);
  decode_messages(plan.frame(context.workspace), plan.plan, plan.used_tables(), messages,
                  {add, alpha}, {&view, 1}, context, queue);
  return status_of(queue, Status::ok);
}

// ---- a model

/// Tables on the device, made once.
template <typename Plans>
class ResidentPlan {
 public:
  ResidentPlan(const MessageShape& shape, bool decodes) {
    Layout counted;
    plan_.make(shape, counted, decodes);
    host_tables_.resize(counted.table_bytes());
    Layout placed(host_tables_, counted);
    plan_.make(shape, placed, decodes);
    workspace_ = placed.workspace_bytes(plan_.messages) + kAlignment;
    workspace_of_one_ = placed.workspace_bytes(1) + kAlignment;
    tables_ = on_device(host_tables_, "a model's tables");
  }
  [[nodiscard]] const MessagePlan<Plans>& plan() const noexcept { return plan_; }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return workspace_; }
  /// Of one message, where others have room for several.
  [[nodiscard]] std::size_t workspace_bytes_of_one() const noexcept { return workspace_of_one_; }
  [[nodiscard]] const std::byte* host_tables() const noexcept { return host_tables_.data(); }
  /// Of encoding.
  [[nodiscard]] std::vector<KeptPlaces> kept_places(std::size_t layers) const {
    return find_places(std::get<atoms::Plan>(plan_.operations),
                       std::get<coordinate::Plan>(plan_.operations), layers, host_tables_);
  }
  [[nodiscard]] Frame frame(Bytes workspace, std::byte* message = nullptr,
                            std::uint64_t capacity = 0) const {
    std::byte* const work = aligned(workspace);
    return {plan_.frame, tables_.get(), work, work + plan_.frame.messages_bytes, message, capacity};
  }
  [[nodiscard]] Frame frame_of_one(Bytes workspace, const Payload& message) const {
    Frame frame = this->frame(workspace, message.data, message.capacity);
    frame.call_work = frame.work + plan_.frame.message_bytes;
    return frame;
  }

 private:
  MessagePlan<Plans> plan_;
  std::size_t workspace_ = 0, workspace_of_one_ = 0;
  std::vector<std::byte> host_tables_;
  DeviceBytes tables_;
};

class Model final : public backend::DeviceModel {
 public:
  Model(std::span<const LayerPlan> layers, const format::HeadLayout& head,
        std::span<const backend::StreamedLayer> streamed, std::size_t cap_room)
      : layers_(layers.begin(), layers.end()),
        shape_{layers_, head.kinds_of(), head.kinds(), head.tables(), head.flags()},
        encode_(shape_, false),
        decode_(shape_, true),
        streaming_(layers_, streamed, cap_room),
        room_(layers_) {}
  /// A whole model, with its memories.
  Model(std::span<const LayerPlan> layers, const format::HeadLayout& head,
        std::span<const backend::StreamedLayer> streamed, std::size_t cap_room, bool takes_back)
      : Model(layers, head, streamed, cap_room) {
    own_memories_.emplace(layers, takes_back);
    memories_ = &*own_memories_;
  }
  /// A part of `whole`.
  Model(std::span<const LayerPlan> layers, const format::HeadLayout& head, const Model& whole,
        std::size_t first)
      : Model(layers, head, std::vector<backend::StreamedLayer>(layers.size()), 0) {
    part_.emplace(whole.streaming_, first, layers_, encode_.kept_places(layers.size()));
    memories_ = whole.memories_;
    first_ = first;
  }

  std::size_t encode_workspace_bytes() const noexcept override {
    if (room_.at.empty()) return encode_.workspace_bytes();
    return room_.bytes + std::max(encode_.workspace_bytes(), decode_.workspace_bytes_of_one());
  }
  std::size_t decode_workspace_bytes() const noexcept override { return decode_.workspace_bytes(); }

  Status encode(std::span<const ConstTensorView> views, const Key& key,
                const double (&budget_bits)[2], const price::StepPrices* step,
                const Payload& payload, const Context& context) const noexcept override {
    if (const Status s = check_views(views); failed(s)) return s;
    if (context.workspace.size() < encode_workspace_bytes()) return Status::workspace_too_small;
    if (context.stream == nullptr) return Status::invalid_argument;
    if (encode_.plan().uses_handles() && context.handles == nullptr)
      return Status::invalid_argument;
    MessageCall call{key, context.key, context.step};
    for (int pool = 0; pool < 2; ++pool)
      call.budget_256[pool] = price::budget_cost_256(budget_bits[pool]);
    if (part_) {
      part_->fill(*step, call);
    } else {
      call.learnt = streaming_.learnt();
      call.ranks = {streaming_.ranks(), streaming_.next_ranks(), streaming_.ranks()};
    }
    const MemoryCall memory(room_.bytes, room_.at, memories_->range(first_, layers_.size()),
                            context.workspace);
    const Frame frame = encode_.frame(memory.rest, payload.data, payload.capacity);
    Queue queue(context.stream, context.handles, encode_.host_tables());
    encode_message(frame, encode_.plan(), {}, call, views, memory.remembered, payload.bytes,
                   context.status, queue);
    if (part_) part_->keep(frame, queue);
    keep_unsent(frame, decode_.frame_of_one(memory.rest, payload), decode_.plan(), {}, views,
                memory.remembered, context.status, queue);
    return status_of(queue, Status::ok);
  }

  Status decode(std::span<const ConstBytes> messages, bool add, float alpha,
                std::span<const TensorView> views, const Context& context) const noexcept override {
    if (const Status s = check_views(views); failed(s)) return s;
    if (context.workspace.size() < decode_.workspace_bytes()) return Status::workspace_too_small;
    if (context.stream == nullptr) return Status::invalid_argument;
    Queue queue(context.stream);
    decode_messages(decode_.frame(context.workspace), decode_.plan(), {}, messages, {add, alpha},
                    views, context, queue);
    return status_of(queue, Status::ok);
  }

  Status vote(std::span<const ConstBytes> messages, std::span<const TensorView> views,
              const Context& context) const noexcept override {
    constexpr std::size_t kMost = std::size_t{1} << 24;  // sums of signs are whole numbers in f32
    if (messages.empty() || messages.size() > kMost) return Status::invalid_argument;
    const auto counts = [](const LayerPlan& layer) {
      return layer.kind.method == MethodId::sign && layer.kind.dtype == DType::f32;
    };
    if (!std::ranges::all_of(layers_, counts)) return Status::unsupported;
    if (const Status s = check_views(views); failed(s)) return s;
    if (context.workspace.size() < decode_.workspace_bytes()) return Status::workspace_too_small;
    if (context.stream == nullptr) return Status::invalid_argument;
    Queue queue(context.stream);
    count_votes(decode_.frame(context.workspace), decode_.plan(), messages, views, context, queue);
    return status_of(queue, Status::ok);
  }

  std::unique_ptr<DeviceModel> make_part(std::span<const LayerPlan> layers,
                                         const format::HeadLayout& head,
                                         std::size_t first) const override {
    return std::make_unique<Model>(layers, head, *this, first);
  }

  Status encode_layer(std::size_t i, const ConstTensorView& view, const Key& key,
                      const price::StepPrices& prices, double budget_bits, const Payload& payload,
                      const Context& context) const noexcept override {
    const LayerPlan& layer = layers_[i];
    if (const Status s = check_view(view, layer); failed(s)) return s;
    if (!device_.is_current()) return Status::unsupported;
    const OneLayer one(layer);
    const OneLayerPlan<EncodePlans> plan(one, false, true);
    if (const Status s = plan.check(context); failed(s)) return s;
    if (layer.remembers() && context.workspace.size() < cuda::encode_workspace_bytes(layer))
      return Status::workspace_too_small;
    MessageCall call{key, nullptr, context.step};
    call.budget_256[kAtomsPool] = call.budget_256[kGridPool] = price::budget_cost_256(budget_bits);
    streaming_.fill(i, prices, call);
    constexpr std::uint64_t kFirst[] = {0};
    const MemoryCall memory(
        MemoryRoom::bytes_of(layer),
        layer.remembers() ? std::span(kFirst) : std::span<const std::uint64_t>(),
        memories_->range(i, 1), context.workspace);
    const Frame frame = plan.frame(memory.rest, payload.data, payload.capacity);
    Queue queue(context.stream, context.handles, plan.tables.data());
    encode_message(frame, plan.plan, plan.used_tables(), call, {&view, 1}, memory.remembered,
                   payload.bytes, context.status, queue);
    streaming_.keep(i, frame, std::get<atoms::Plan>(plan.plan.operations),
                    std::get<coordinate::Plan>(plan.plan.operations), queue);
    if (layer.remembers()) keep_of_layer(one, frame, memory, view, payload, context, queue);
    return status_of(queue, Status::ok);
  }

  Status end_step(const price::StepPrices& prices, const price::StepShares& shares,
                  const Context& context) const noexcept override {
    if (context.stream == nullptr) return Status::invalid_argument;
    if (!device_.is_current()) return Status::unsupported;
    Queue queue(context.stream);
    streaming_.end_step(prices, shares, context.status, queue);
    return status_of(queue, Status::ok);
  }

  Status read_prices(price::LearntPrices& prices) const noexcept override {
    return wait_and_copy(&prices, streaming_.learnt(), 1, cudaMemcpyDeviceToHost);
  }
  Status write_prices(const price::LearntPrices& prices) const noexcept override {
    return wait_and_copy(streaming_.learnt(), &prices, 1, cudaMemcpyHostToDevice);
  }
  Status read_ranks(std::span<price::RankState> ranks) const noexcept override {
    if (ranks.size() != layers_.size()) return Status::shape_mismatch;
    return wait_and_copy(ranks.data(), streaming_.next_ranks(), ranks.size(),
                         cudaMemcpyDeviceToHost);
  }
  Status write_ranks(std::span<const price::RankState> ranks) const noexcept override {
    if (ranks.size() != layers_.size()) return Status::shape_mismatch;
    for (price::RankState* const to : {streaming_.ranks(), streaming_.next_ranks()}) {
      const Status s = wait_and_copy(to, ranks.data(), ranks.size(), cudaMemcpyHostToDevice);
      if (failed(s)) return s;
    }
    return Status::ok;
  }
  Status read_limits(std::span<std::uint64_t> limits) const noexcept override {
    return each_limit(limits, [this](std::uint64_t* on_device, std::uint64_t* here) {
      return wait_and_copy(here, on_device, 1, cudaMemcpyDeviceToHost);
    });
  }
  Status write_limits(std::span<const std::uint64_t> limits) const noexcept override {
    return each_limit(limits, [this](std::uint64_t* on_device, const std::uint64_t* here) {
      return wait_and_copy(on_device, here, 1, cudaMemcpyHostToDevice);
    });
  }

  Status read_memory(std::size_t layer, Bytes values) const noexcept override {
    return memories_->read(layer, values);
  }
  Status write_memory(std::size_t layer, ConstBytes values) const noexcept override {
    return memories_->write(layer, values);
  }
  Status clear_memories() const noexcept override { return memories_->clear(); }
  std::size_t memory_bytes() const noexcept override { return memories_->bytes(); }
  Status take_memories_back(std::size_t first, std::size_t count, const Status* only_if,
                            const Context& context) const noexcept override {
    if (context.stream == nullptr) return Status::invalid_argument;
    if (!device_.is_current()) return Status::unsupported;
    Queue queue(context.stream);
    take_back(memories_->range(first, count), only_if, queue);
    return status_of(queue, Status::ok);
  }

 private:
  /// The memories of a call, and the workspace behind their room.
  struct MemoryCall {
    Remembered remembered;
    Bytes rest;

    MemoryCall(std::size_t room_bytes, std::span<const std::uint64_t> at, const MemoryRange& range,
               Bytes workspace)
        : rest(workspace) {
      if (at.empty()) return;
      std::byte* const room = aligned(workspace);
      remembered = {range, {reinterpret_cast<float*>(room), at}};
      rest = workspace.subspan(static_cast<std::size_t>(room - workspace.data()) + room_bytes);
    }
  };
  /// Behind the message of a layer with a memory; the plan of reading it is made anew.
  static void keep_of_layer(const OneLayer& one, const Frame& encoded, const MemoryCall& memory,
                            const ConstTensorView& view, const Payload& payload,
                            const Context& context, Queue& queue) {
    const OneLayerPlan<DecodePlans> plan(one, true, true, 1);
    keep_unsent(encoded, plan.frame(memory.rest, payload.data, payload.capacity), plan.plan,
                plan.used_tables(), {&view, 1}, memory.remembered, context.status, queue);
  }
  /// Calls `copy(on the device, in limits)` for each layer under a cap.
  template <typename Limit, typename Copy>
  Status each_limit(std::span<Limit> limits, Copy copy) const noexcept {
    std::size_t next = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      std::uint64_t* const on_device = streaming_.limit(i);
      if (on_device == nullptr) continue;
      if (next == limits.size()) return Status::shape_mismatch;
      if (const Status s = copy(on_device, &limits[next++]); failed(s)) return s;
    }
    return Status::ok;
  }
  template <typename T>
  Status wait_and_copy(T* to, const T* from, std::size_t count,
                       cudaMemcpyKind kind) const noexcept {
    return device_.wait_on(
        [&] { return cudaMemcpy(to, from, count * sizeof *to, kind) == cudaSuccess; });
  }
  template <typename View>
  Status check_views(std::span<const View> views) const noexcept {
    if (views.size() != layers_.size()) return Status::shape_mismatch;
    if (!device_.is_current()) return Status::unsupported;
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (const Status s = check_view(views[i], layers_[i]); failed(s)) return s;
    }
    return Status::ok;
  }
  template <typename View>
  static Status check_view(const View& view, const LayerPlan& layer) noexcept {
    if (view.shape != layer.kind.shape) return Status::shape_mismatch;
    if (view.device != Device::cuda || view.dtype != layer.kind.dtype) return Status::unsupported;
    return layer.n > 0 && view.data == nullptr ? Status::invalid_argument : Status::ok;
  }

  OwnDevice device_;
  std::vector<LayerPlan> layers_;
  MessageShape shape_;
  ResidentPlan<EncodePlans> encode_;
  ResidentPlan<DecodePlans> decode_;
  Streaming streaming_;
  std::optional<PartOfSteps> part_;  ///< of a part: what its messages leave to the whole's steps
  MemoryRoom room_;
  std::optional<Memories> own_memories_;  ///< of a whole model
  const Memories* memories_ = nullptr;    ///< the whole's
  std::size_t first_ = 0;                 ///< of a part: its first layer in the whole
};

std::unique_ptr<backend::DeviceModel> make_model(std::span<const LayerPlan> layers,
                                                 const format::HeadLayout& head,
                                                 std::span<const backend::StreamedLayer> streamed,
                                                 std::size_t cap_room, bool takes_back) {
  return std::make_unique<Model>(layers, head, streamed, cap_room, takes_back);
}

}  // namespace
}  // namespace atomo::cuda

namespace atomo::backend {

const DeviceBackend* device_backend() noexcept {
  static constexpr DeviceBackend kBackend{
      cuda::runs,          cuda::encode_workspace_bytes, cuda::decode_workspace_bytes,
      cuda::encode_tensor, cuda::decode_tensor,          cuda::make_model};
  return &kBackend;
}

}  // namespace atomo::backend
