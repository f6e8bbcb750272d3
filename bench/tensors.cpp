// SPDX-License-Identifier: Apache-2.0
// The tensors of the benchmarks for programs in other languages, as functions of C.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "sizes.hpp"

namespace {

/// The size of that name, or nothing.
const atomo::bench::Size* find(const char* name) {
  static const std::vector<atomo::bench::Size> all = atomo::bench::sizes();
  const auto found = std::find_if(all.begin(), all.end(), [&](const atomo::bench::Size& size) {
    return std::string_view(size.name) == name;
  });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

extern "C" {

/// Writes rows and columns of each layer's matrix, its first dimension by all others, into `matrices`
/// unless it is null; a layer of one dimension has one column. Returns the number of layers, -1 for
/// an unknown size.
[[gnu::visibility("default")]] std::int64_t bench_layers(const char* name,
                                                         std::int64_t* matrices) noexcept {
  const atomo::bench::Size* const size = find(name);
  if (size == nullptr) return -1;
  for (std::size_t i = 0; matrices != nullptr && i < size->layers.size(); ++i) {
    const atomo::Shape& shape = size->layers[i].shape;
    matrices[2 * i] = shape[0];
    matrices[2 * i + 1] = static_cast<std::int64_t>(shape.elements()) / shape[0];
  }
  return static_cast<std::int64_t>(size->layers.size());
}

/// Writes the gradients of all layers, one after another.
[[gnu::visibility("default")]] void bench_fill(const char* name, float* values) {
  const std::vector<float> made = atomo::bench::make_gradients(find(name)->layers);
  std::copy(made.begin(), made.end(), values);
}

/// Drops these bytes from every cache.
[[gnu::visibility("default")]] void bench_flush(const void* data, std::uint64_t bytes) noexcept {
  atomo::bench::flush(data, bytes);
}
}
