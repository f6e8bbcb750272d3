// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a program needs for the calls of a model that serve both directions: the size of a workspace,
/// and views of an array that holds the layers one behind the other.

#include <algorithm>
#include <atomo/compressor.hpp>
#include <cstddef>
#include <span>
#include <vector>

namespace atomo::programs {

/// Bytes that suffice for encoding and for decoding whole messages, one call at a time.
inline std::size_t workspace_bytes(const Compressor& model) {
  return std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes());
}

/// Bytes that suffice for encoding and for decoding any of the layers, one call at a time.
inline std::size_t layer_workspace_bytes(const Compressor& model) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < model.layers().size(); ++i)
    bytes = std::max({bytes, model.encode_workspace_bytes(i), model.decode_workspace_bytes(i)});
  return bytes;
}

/// The layers of an array of f32 on `device`, which begins with the first of them.
template <class View, class Value>
std::vector<View> views_of(const Compressor& model, std::span<Value> values, Device device) {
  std::vector<View> views;
  for (const auto& layer : model.layers()) {
    views.push_back({values.data(), DType::f32, layer.shape, device});
    values = values.subspan(layer.shape.elements());
  }
  return views;
}

}  // namespace atomo::programs
