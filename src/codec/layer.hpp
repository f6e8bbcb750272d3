// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One layer on its way into a message and out of it: what a single tensor (codec.cpp) and a model
/// (model/) do alike. A layer is prepared, costs so much at a price, is written at a price, and is
/// fitted to what a cap leaves it.

#include <cstdint>
#include <span>

#include "backend/backend.hpp"
#include "codec/layer_memory.hpp"
#include "codec/stages.hpp"
#include "core/status.hpp"
#include "core/workspace.hpp"
#include "format/container_head.hpp"
#include "format/layer_body.hpp"
#include "price/allotment.hpp"

namespace atomo::codec {

/// A layer and the codec that encodes it; fixed at set-up.
struct EncoderPlan : LayerPlan {
  const Stages* stages = nullptr;
  std::size_t thinning_bytes = 0;  ///< under a cap: memory for thinning

  EncoderPlan() = default;
  EncoderPlan(const Stages& stages, const Shape& shape, DType dtype);

  [[nodiscard]] const BodyEncoder& body() const noexcept { return *stages->body; }
  [[nodiscard]] bool capped() const noexcept { return min_limit_bytes > 0; }
};

/// The backend for devices, which can run this layer. \throws Error when this build has none, or it
/// cannot.
[[nodiscard]] const DeviceBackend& device_backend_for(const EncoderPlan& plan);

/// The prices that a layer may be sent at.
struct LayerPrices {
  float atoms = 0, grid = 0;  ///< shared by the layers of a pool
  bool finds_own_price =
      false;                ///< layers with a budget find their own (the first step of a stream)
  std::uint64_t limit = 0;  ///< of a layer that comes alone under a cap; 0: none
  /// Bits of its budget that a layer that solves alone leaves for the rest of its message.
  double fixed_bits = 0;
};

/// Encodes one layer. The plan outlives it.
class LayerEncoder {
 public:
  LayerEncoder() = default;
  explicit LayerEncoder(const EncoderPlan& plan) noexcept : plan_(&plan) {}

  /// Takes the memory that the price input points to, which outlives the message.
  void carve_price_input(Carver& carver);
  /// Takes the memory of one message.
  void carve(Carver& carver);
  /// The memory of a layer that has one, which outlives the encoder.
  void use(LayerMemory& memory) noexcept { memory_ = &memory; }

  /// Converts, looks for non-finite entries, prepares what follows from a price. `key` carries the
  /// layer's tensor. A sketch looks for `rank` pairs at most.
  Status prepare(const ConstTensorView& view, const Key& key, Executor* executor,
                 std::size_t rank = price::RankState::kAll) noexcept;
  /// What `write` works on, where that is not what `prepare` did.
  void use(Executor* executor) noexcept { input_.executor = executor; }
  /// There is something to send: entries, all finite.
  [[nodiscard]] bool sends() const noexcept { return input_.n > 0 && !non_finite_; }

  /// The cost of the layer at any price. The layer sends something.
  [[nodiscard]] const PriceInput& price_input() const noexcept { return prepared_.price; }

  /// Writes the body (not its padding) and fills the row but for the kind. Where the body is
  /// `staged`, it is not in `body` before `fit`. `first`: it will be the first of its message.
  Status write(const LayerPrices& prices, Bytes body, bool first = false) noexcept;
  [[nodiscard]] const LayerRecord& row() const noexcept { return row_; }
  /// Blocks of the message that were hashed on the way.
  [[nodiscard]] const HashedBlocks& hashed() const noexcept { return hashed_; }

  /// What the next step takes for the layer's sketches, once the layer is written.
  [[nodiscard]] price::RankState learn_rank(price::RankState state) const noexcept;

  /// The written body under a cap, `with_least` when it has to be thinned; nothing without a cap.
  [[nodiscard]] CappedBody capped_body(bool with_least) const noexcept;
  /// Puts a staged body, thinned to what is allotted and behind its lossless stage, into `body`,
  /// which has as many bytes as `max_body_bytes`, or as are allotted.
  Status fit(const Allotment& allotment, Bytes body) noexcept;

  /// Of a layer with a memory, once it is fitted into `body` of a message at these prices: takes what
  /// the message says of the layer from what was to be said. The memory stays as it is.
  Status take_sent(const LayerPrices& prices, ConstBytes body) noexcept;
  /// And keeps the rest, where it sends anything. Returns whether the memory moved.
  bool keep_unsent() noexcept {
    if (memory_ == nullptr || !sends()) return false;
    memory_->keep(gradient_, converted_.data(), input_.key, input_.executor);
    return true;
  }

 private:
  /// A body that is changed after it is written is written to `staged_` first.
  [[nodiscard]] bool is_staged() const noexcept {
    return plan_->capped() || plan_->stages->lossless.has_value();
  }

  const EncoderPlan* plan_ = nullptr;
  Prepared prepared_;
  LayerMemory* memory_ = nullptr;
  Bytes scratch_, staged_, thinning_, reading_;
  std::span<float> converted_;  ///< f32 copy of a half input, or what a memory makes of the input
  ConstTensorView gradient_;    ///< of a layer with a memory
  LayerInput input_;
  bool non_finite_ = false;
  float price_ = 0;  ///< that the body was written at
  LayerRecord row_;
  HashedBlocks hashed_;
};

/// Decodes a layer of messages whose kind of it is the same, and sets the bodies' statuses. `bodies`
/// are what rows and header say, cpu::kBodiesAtOnce at most, and one unless `add`.
void read_layer(const Kind& kind, std::span<LayerBody> bodies, const TensorView& view, bool add,
                float alpha, Bytes workspace, Executor* executor) noexcept;
/// The same of one message.
Status read_layer(const LayerEntry& layer, const Header& header, const TensorView& view, bool add,
                  float alpha, Bytes workspace, Executor* executor) noexcept;
/// Workspace `read_layer` needs for a layer of this kind into a view of this dtype.
[[nodiscard]] std::size_t read_layer_workspace(const Kind& kind, DType view,
                                               bool lossless) noexcept;

}  // namespace atomo::codec
