// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One layer through a method: what a single tensor (codec.cpp) and a model (compressor.cpp) do
/// alike.

#include <algorithm>

#include "allotment.hpp"
#include "head.hpp"
#include "method.hpp"
#include "workspace.hpp"

namespace atomo::detail {

/// Sizes of one layer, fixed at set-up.
struct LayerPlan {
  const Method* method = nullptr;
  Kind kind;
  std::size_t n = 0;
  std::size_t max_body_bytes = 0;  ///< own price included, padding not
  std::size_t demand_bytes = 0;
  std::size_t least_limit_bytes = 0;  ///< under a cap: what a body can always be thinned to, own
                                      ///< price included; 0 without one
  std::size_t thinning_bytes = 0;     ///< under a cap: memory for that

  LayerPlan() = default;
  LayerPlan(const Method& method, const Shape& shape, DType dtype);
};

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
  void carve(const LayerPlan& plan, Carver& carver, bool with_demand);
};

/// Converts, looks for non-finite entries, analyses priced methods. `key` carries the layer's
/// tensor.
Status open_layer(const LayerPlan& plan, const ConstTensorView& view, const Key& key,
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
Status write_layer(const LayerPlan& plan, LayerWork& work, const Prices& prices, double fixed_bits,
                   Bytes body, Row& row) noexcept;

/// What is written of a layer under a cap, `with_least` when it has to be thinned.
[[nodiscard]] CappedBody capped_body(const LayerPlan& plan, const LayerWork& work, const Row& row,
                                     bool with_least) noexcept;
/// Puts the body of a layer under a cap, thinned to what is allotted and behind its lossless stage,
/// into `body`, which has as many bytes, or as `row` has. Nothing to do without a cap.
Status finish_layer(const LayerPlan& plan, const LayerWork& work, const Allotment& allotment,
                    Bytes body, Row& row) noexcept;

/// Decodes one layer.
Status read_layer(const LayerEntry& layer, const Header& header, const TensorView& view, bool add,
                  float alpha, Bytes workspace, Executor* executor) noexcept;
/// Workspace `read_layer` needs for a layer of this kind into a view of this dtype.
std::size_t read_layer_workspace(const Kind& kind, DType view, bool lossless) noexcept;


/// Of `cap` bits a parameter for n parameters, what `head` bytes leave for bodies; 0 when they
/// leave nothing.
[[nodiscard]] std::size_t capped_bytes(double cap, std::size_t n, std::size_t head) noexcept;

/// Bytes the body of a message of one layer may have under its codec's cap (at least 1, so that a
/// cap without room is seen), 0 without one.
[[nodiscard]] std::size_t limit_of(const LayerPlan& plan, std::size_t head) noexcept;

/// Bits that may go into bodies when `budget` is meant to pay for `fixed` too: never under half of
/// the budget, so that a message smaller than its head still says something.
[[nodiscard]] constexpr double body_budget(double budget, double fixed) noexcept {
  return std::max(budget - fixed, budget / 2);
}

/// Leaves the status where the caller looks for it, and hands it on.
inline Status report(const Context& context, Status status) noexcept {
  if (context.status != nullptr) *context.status = status;
  return status;
}

/// The budget of a price was exceeded: told where there is nothing else to tell.
[[nodiscard]] constexpr Status with_overspent(Status status, bool overspent) noexcept {
  return status == Status::ok && overspent ? Status::overspent : status;
}

[[nodiscard]] constexpr Status worse(Status a, Status b) noexcept {
  return static_cast<int>(a) >= static_cast<int>(b) ? a : b;
}

}  // namespace atomo::detail
