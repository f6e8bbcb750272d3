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
  template <class Value>
  [[nodiscard]] std::span<Value> part_of(std::span<Value> model) const {
    return model.subspan(offset, elements);
  }
};

/// As many shards as workers; the largest is as small as runs of whole layers allow. `device`: of
/// the compressors.
[[nodiscard]] std::vector<Shard> cut_into_shards(const std::vector<atomo::LayerSpec>& layers,
                                                 const atomo::Policy& policy, std::size_t workers,
                                                 atomo::Device device);

}  // namespace train
