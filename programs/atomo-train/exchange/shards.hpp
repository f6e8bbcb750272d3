// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A model cut into runs of layers, one a worker, each with a compressor of its own.

#include <atomo/compressor.hpp>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace train {

/// Layers [first, last) of the model. A model with fewer layers than workers has shards of none.
struct Shard {
  std::size_t first = 0, last = 0;
  std::size_t offset = 0, elements = 0;           ///< in the model's flat arrays
  std::optional<atomo::Compressor> compressor{};  ///< none where there are no layers

  [[nodiscard]] bool empty() const noexcept { return first == last; }
  /// Its layers in a flat array of the whole model.
  [[nodiscard]] std::vector<atomo::TensorView> views_of(std::span<float> model) const;
  [[nodiscard]] std::vector<atomo::ConstTensorView> views_of(std::span<const float> model) const;
};

/// As many shards as workers; the largest is as small as runs of whole layers allow.
[[nodiscard]] std::vector<Shard> cut_into_shards(const std::vector<atomo::LayerSpec>& layers,
                                                 const atomo::Policy& policy, std::size_t workers);

}  // namespace train
