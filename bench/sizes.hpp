// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The tensors that benchmarks work on, and what makes them cold.

#include <hwy/cache_control.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "models.hpp"

namespace atomo::bench {

/// One tensor, or a model.
struct Size {
  const char* name;
  std::vector<LayerSpec> layers;
  bool is_model = false;
  bool is_cold = false;   ///< what a call reads and writes is flushed from all caches before it
  float low_rank = 1.0f;  ///< factor of the part of low rank
};

/// The exact SVD of a square matrix of 25 M takes minutes: `flat` gives it a flat one.
inline std::vector<Size> sizes(bool flat = false) {
  const Shape cold = flat ? Shape{512, 48828} : Shape{5000, 5000};
  return {{"1M_hot", {{"tensor", {1024, 1024}}}},
          {"25M_cold", {{"tensor", cold}}, false, true},
          {"lenet", lenet(), true},
          {"resnet18", resnet18(), true},
          {"resnet50", resnet50(), true},
          {"gpt2", gpt2_small(), true}};
}

/// Writes the lines of these bytes back to memory and drops them from every cache.
inline void flush(const void* data, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const char* const first = static_cast<const char*>(data);
  for (std::size_t at = 0; at < bytes; at += kLine) hwy::FlushCacheline(first + at);
  if (bytes > 0) hwy::FlushCacheline(first + bytes - 1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace atomo::bench
