// SPDX-License-Identifier: Apache-2.0
/// \file
/// Shards are cut greedily: a run of layers takes the next one as long as it stays within a limit
/// of elements. A bisection finds the smallest limit for which there are no more runs than workers,
/// and workers beyond the last run get an empty shard.

#include "exchange/shards.hpp"

#include <algorithm>

namespace train {
namespace {

using Layers = std::vector<atomo::LayerSpec>;

/// Behind which layer each run ends when none may have more than `limit` elements.
std::vector<std::size_t> ends_of_runs(const Layers& layers, std::size_t limit) {
  std::vector<std::size_t> ends;
  std::size_t elements = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::size_t n = layers[i].shape.elements();
    if (elements != 0 && elements + n > limit) {
      ends.push_back(i);
      elements = 0;
    }
    elements += n;
  }
  ends.push_back(layers.size());
  return ends;
}

/// The smallest limit with at most `runs` runs, by bisection.
std::size_t smallest_limit(const Layers& layers, std::size_t runs) {
  std::size_t low = 0, high = 0;
  for (const auto& layer : layers) {
    low = std::max(low, layer.shape.elements());
    high += layer.shape.elements();
  }
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (ends_of_runs(layers, middle).size() <= runs)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace

std::vector<Shard> cut_into_shards(const Layers& layers, const atomo::Policy& policy,
                                   std::size_t workers, atomo::Device device) {
  auto ends = ends_of_runs(layers, smallest_limit(layers, workers));
  ends.resize(workers, layers.size());
  std::vector<Shard> shards;
  std::size_t first = 0, offset = 0;
  for (const std::size_t last : ends) {
    const auto at = [&](std::size_t i) { return layers.begin() + static_cast<std::ptrdiff_t>(i); };
    Shard shard{.first = first, .last = last, .offset = offset};
    for (auto layer = at(first); layer != at(last); ++layer)
      shard.elements += layer->shape.elements();
    if (!shard.empty()) {
      // Checkpoints do not keep what these learn.
      shard.compressor.emplace(Layers(at(first), at(last)), policy,
                               atomo::CompressorOptions{.device = device, .learns_ranks = false});
    }
    first = last;
    offset += shard.elements;
    shards.push_back(std::move(shard));
  }
  return shards;
}

}  // namespace train
