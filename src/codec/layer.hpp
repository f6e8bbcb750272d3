// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One layer through a method: what a single tensor (codec.cpp) and a model (compressor.cpp) do
/// alike.

#include <algorithm>

#include "backend/backend.hpp"
#include "codec/method.hpp"
#include "core/status.hpp"
#include "core/workspace.hpp"
#include "format/container_head.hpp"
#include "price/allotment.hpp"

namespace atomo::codec {

/// A layer and the method that encodes it.
struct EncoderPlan : LayerPlan {
  const Method* method = nullptr;
  std::size_t demand_bytes = 0;
  std::size_t thinning_bytes = 0;  ///< under a cap: memory for thinning

  EncoderPlan() = default;
  EncoderPlan(const Method& method, const Shape& shape, DType dtype);
};

/// The backend for devices, which can run this layer. \throws Error when this build has none, or it
/// cannot.
[[nodiscard]] const DeviceBackend& device_backend_for(const EncoderPlan& plan);

/// A layer being encoded: its memory and what `open` found.
struct LayerWork {
  Bytes demand;  ///< outlives the message (the controller reads it)
  Bytes state, scratch;
  Bytes whole, thinning;       ///< under a cap: the body before `finish_layer`, and memory for that
  std::span<float> converted;  ///< f32 copy of a half input
  LayerInput input;
  bool non_finite = false;
  float price = 0;  ///< that the body was written at
  [[nodiscard]] bool sends() const noexcept { return input.n > 0 && !non_finite; }

  /// Takes state, scratch and conversion buffer from `carver`; the demand too when `with_demand`.
  void carve(const EncoderPlan& plan, Carver& carver, bool with_demand);
};

/// Converts, looks for non-finite entries, analyses priced methods. `key` carries the layer's
/// tensor.
Status open_layer(const EncoderPlan& plan, const ConstTensorView& view, const Key& key,
                  Executor* executor, LayerWork& work) noexcept;

/// Where a layer's price comes from.
struct Prices {
  float atoms = 0, grid = 0;  ///< shared by the layers of a pool
  bool solve_alone = false;   ///< layers with a budget find their own (the first step of a stream)
  std::uint64_t limit = 0;    ///< of a layer that comes alone under a cap; 0: none
};

/// Writes one body (not its padding) and fills its row but for the kind. `fixed_bits`: what a layer
/// that solves alone must leave of its budget for the rest of its message. Under a cap the body is
/// not in `body` before `finish_layer`.
Status write_layer(const EncoderPlan& plan, LayerWork& work, const Prices& prices,
                   double fixed_bits, Bytes body, Row& row) noexcept;

/// What is written of a layer under a cap, `with_least` when it has to be thinned.
[[nodiscard]] CappedBody capped_body(const EncoderPlan& plan, const LayerWork& work, const Row& row,
                                     bool with_least) noexcept;
/// Puts the body of a layer under a cap, thinned to what is allotted and behind its lossless stage,
/// into `body`, which has as many bytes, or as `row` has. Nothing to do without a cap.
Status finish_layer(const EncoderPlan& plan, const LayerWork& work, const Allotment& allotment,
                    Bytes body, Row& row) noexcept;

/// Decodes one layer.
Status read_layer(const LayerEntry& layer, const Header& header, const TensorView& view, bool add,
                  float alpha, Bytes workspace, Executor* executor) noexcept;
/// Workspace `read_layer` needs for a layer of this kind into a view of this dtype.
std::size_t read_layer_workspace(const Kind& kind, DType view, bool lossless) noexcept;

}  // namespace atomo::codec
