// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The interface of a backend for device tensors. A build without CUDA has none.
///
/// Pointers in views, messages, payloads, workspaces and contexts (status, step, bytes) are device
/// pointers. No call but those that set up allocates, waits for the device or uses the default
/// stream; a context without a stream is refused.

#include <memory>
#include <span>

#include "backend/layer_plan.hpp"
#include "format/container_head.hpp"
#include "price/price_controller.hpp"
#include "price/sketch_rank.hpp"

namespace atomo::backend {

/// How a layer takes part in streamed steps.
struct StreamedLayer {
  Pool pool = Pool::none;  ///< whose price it shares; none where it has no budget
  double budget_bits = 0;
  double fixed_bits = 0;  ///< of these, what stands beside the body of its message
  std::size_t limit = 0;  ///< under a cap: its limit in the first step
};

/// A model's tables on the device and what they say.
class DeviceModel {
 public:
  virtual ~DeviceModel() = default;
  [[nodiscard]] virtual std::size_t encode_workspace_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::size_t decode_workspace_bytes() const noexcept = 0;
  /// `budget_bits`: what the budgets leave for bodies, by pool (atoms, grid). `step`: of a part, the
  /// prices of the whole's step; null of a whole message.
  virtual Status encode(std::span<const ConstTensorView> views, const Key& key,
                        const double (&budget_bits)[2], const StepPrices* step,
                        const Payload& payload, const Context& context) const noexcept = 0;
  /// Several messages are added in order; halves are rounded once, with the first one's key.
  virtual Status decode(std::span<const ConstBytes> messages, bool add, float alpha,
                        std::span<const TensorView> views,
                        const Context& context) const noexcept = 0;

  /// The signs of the sums of the messages' signs, into f32 views: `unsupported` where the layers are not
  /// all of `sign`. At most 2^24 messages. Workspace as of `decode`.
  virtual Status vote(std::span<const ConstBytes> messages, std::span<const TensorView> views,
                      const Context& context) const noexcept = 0;

  /// Sets up, as `make_model`: the layers from `first` on, whose messages belong to the steps of this
  /// model, which outlives them.
  [[nodiscard]] virtual std::unique_ptr<DeviceModel> make_part(std::span<const LayerPlan> layers,
                                                               const HeadLayout& head,
                                                               std::size_t first) const = 0;

  // Streaming. What one call leaves on the device the others read: streams must be in order.
  /// `budget_bits`: what the layer's own budget leaves for its body.
  virtual Status encode_layer(std::size_t layer, const ConstTensorView& view, const Key& key,
                              const StepPrices& prices, double budget_bits, const Payload& payload,
                              const Context& context) const noexcept = 0;
  virtual Status end_step(const StepPrices& prices, const StepShares& shares,
                          const Context& context) const noexcept = 0;
  /// Both wait for the device.
  virtual Status read_prices(LearntPrices& prices) const noexcept = 0;
  virtual Status write_prices(const LearntPrices& prices) const noexcept = 0;
  /// The ranks that the sketches of all layers have learnt for the next message or step. Both wait
  /// for the device.
  virtual Status read_ranks(std::span<RankState> ranks) const noexcept = 0;
  virtual Status write_ranks(std::span<const RankState> ranks) const noexcept = 0;
  /// The bytes that the layers under a cap may take in the next step, in the layers' order. Both
  /// wait for the device.
  virtual Status read_limits(std::span<std::uint64_t> limits) const noexcept = 0;
  virtual Status write_limits(std::span<const std::uint64_t> limits) const noexcept = 0;

  // Memories of layers that have one, which encoding moves; of a whole model.
  /// What is kept of a layer, in `MemoryPlan::bytes` bytes. These three wait for the device.
  virtual Status read_memory(std::size_t layer, Bytes values) const noexcept = 0;
  virtual Status write_memory(std::size_t layer, ConstBytes values) const noexcept = 0;
  virtual Status clear_memories() const noexcept = 0;
  /// All that they take on the device.
  [[nodiscard]] virtual std::size_t memory_bytes() const noexcept = 0;
  /// What the last message of each layer of [first, first + count) moved becomes what it was, where
  /// `only_if`, a device word, is null or has `non_finite`.
  virtual Status take_memories_back(std::size_t first, std::size_t count, const Status* only_if,
                                    const Context& context) const noexcept = 0;
};

struct DeviceBackend {
  /// Whether it can encode and decode this layer.
  bool (*runs)(const LayerPlan&) noexcept;
  // One codec, one tensor.
  std::size_t (*encode_workspace_bytes)(const LayerPlan&) noexcept;
  std::size_t (*decode_workspace_bytes)(const LayerPlan&) noexcept;
  Status (*encode)(const LayerPlan&, const ConstTensorView&, const Key&, const Payload&,
                   const Context&) noexcept;
  /// Several messages are added in order.
  Status (*decode)(const LayerPlan&, std::span<const ConstBytes> messages, bool add, float alpha,
                   const TensorView&, const Context&) noexcept;
  /// Sets up: allocates and copies on the current device. \throws Error
  /// `cap_room`: bytes that the caps leave for the bodies of a streamed step beside the reserve.
  /// `takes_back`: what memories were before a message is kept too.
  std::unique_ptr<DeviceModel> (*make_model)(std::span<const LayerPlan>, const HeadLayout&,
                                             std::span<const StreamedLayer>, std::size_t cap_room,
                                             bool takes_back);
};

/// Null when there is no CUDA backend in this build.
[[nodiscard]] const DeviceBackend* device_backend() noexcept;
}  // namespace atomo::backend
