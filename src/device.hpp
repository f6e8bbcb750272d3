// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Where calls on device tensors go. A build without a CUDA backend has none.
///
/// Pointers in views, messages, payloads, workspaces and contexts (status, step, bytes) are device
/// pointers. No call but those that set up allocates, waits for the device or uses the default
/// stream.

#include <memory>
#include <span>

#include "head.hpp"
#include "layer.hpp"
#include "method.hpp"

namespace atomo::detail {

/// A model's tables on the device and what they say.
class DeviceModel {
 public:
  virtual ~DeviceModel() = default;
  /// For encode, decode and decode_add.
  [[nodiscard]] virtual std::size_t workspace_bytes() const noexcept = 0;
  /// `budget_bits`: what the budgets leave for bodies, by pool (atoms, grid).
  virtual Status encode(std::span<const ConstTensorView> views, const Key& key,
                        const double (&budget_bits)[2], const Payload& payload,
                        const Context& context) const noexcept = 0;
  /// Several messages are added in order; halves are rounded once, with the first one's key.
  virtual Status decode(std::span<const ConstBytes> messages, bool add, float alpha,
                        std::span<const TensorView> views,
                        const Context& context) const noexcept = 0;
};

struct DeviceBackend {
  /// Whether it can encode and decode tensors of this shape.
  bool (*runs)(const Method&, const Shape&);
  // One codec, one tensor.
  std::size_t (*workspace_bytes)(const Method&, const Shape&, DType) noexcept;
  Status (*encode)(const Method&, const ConstTensorView&, const Key&, const Payload&,
                   const Context&) noexcept;
  Status (*decode)(const Method&, ConstBytes message, bool add, float alpha, const TensorView&,
                   const Context&) noexcept;
  /// Sets up: allocates and copies on the current device. \throws Error
  std::unique_ptr<DeviceModel> (*make_model)(std::span<const LayerPlan>, const HeadLayout&);
};

/// Null when there is no CUDA backend in this build.
[[nodiscard]] const DeviceBackend* device_backend() noexcept;
/// \throws Error when there is none, or it cannot run this method for this shape.
[[nodiscard]] const DeviceBackend& device_backend_for(const Method& method, const Shape& shape);

}  // namespace atomo::detail
