// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Where calls on device tensors go. A build without a CUDA backend has none.

#include <memory>

#include "atomo/compressor.hpp"
#include "method.hpp"

namespace atomo::detail {

/// The device side of one codec's calls on one tensor; pointers in views, payload, workspace and
/// context are device pointers. Sizes are functions of the shape alone.
struct DeviceBackend {
  std::size_t (*workspace_bytes)(const Method&, const Shape&, DType) noexcept;
  Status (*encode)(const Method&, const ConstTensorView&, const Key&, const Payload&,
                   const Context&) noexcept;
  Status (*decode)(const Method&, ConstBytes message, DType encoded, bool add, float alpha,
                   const TensorView&, const Context&) noexcept;
};

/// Null when there is no CUDA backend in this build.
[[nodiscard]] const DeviceBackend* device_backend() noexcept;

}  // namespace atomo::detail
