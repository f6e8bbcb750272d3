// SPDX-License-Identifier: Apache-2.0
/// Loops of a read and a write an entry, which the compiler vectorises.
#include "cpu/memory.hpp"

#include <algorithm>
#include <cstring>

#include "core/run_tasks.hpp"
#include "cpu/halves.hpp"
#include "math/memory_rules.hpp"

namespace atomo::cpu {
namespace {

constexpr std::size_t kGrain = 65536;  ///< entries of a task
constexpr std::size_t kTile = 1024;    ///< entries that are widened at once

void copy_range(const ConstTensorView& view, std::size_t begin, std::size_t count,
                float* x) noexcept {
  const auto* const from = static_cast<const std::byte*>(view.data) + begin * size_of(view.dtype);
  if (view.dtype == DType::f32) {
    std::memcpy(x, from, count * sizeof(float));
  } else {
    widen_halves(from, view.dtype, count, x, nullptr);
  }
}

/// x[i] <- rule(g[i], i); halves are widened a tile at a time, while it is in a cache.
template <typename Rule>
void form_each(const ConstTensorView& g, std::size_t n, float* x, Executor* executor,
               Rule rule) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    if (g.dtype == DType::f32) {
      const auto* const from = static_cast<const float*>(g.data);
      for (std::size_t i = begin; i < end; ++i) x[i] = rule(from[i], i);
      return;
    }
    for (std::size_t first = begin; first < end; first += kTile) {
      const std::size_t behind = std::min(first + kTile, end);
      copy_range(g, first, behind - first, x + first);
      for (std::size_t i = first; i < behind; ++i) x[i] = rule(x[i], i);
    }
  });
}

}  // namespace

void copy_entries(const ConstTensorView& view, std::size_t n, float* x,
                  Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    copy_range(view, begin, end - begin, x + begin);
  });
}

void form_with(const ConstTensorView& g, const float* e, std::size_t n, float factor, float* x,
               Executor* executor) noexcept {
  form_each(g, n, x, executor,
            [=](float of_g, std::size_t i) { return with_residual(of_g, factor, e[i]); });
}

void form_with(const ConstTensorView& g, const float* u, const float* v, std::size_t n,
               float factor, float* x, Executor* executor) noexcept {
  form_each(g, n, x, executor,
            [=](float of_g, std::size_t i) { return with_velocity(of_g, factor, u[i], v[i]).x; });
}

void scale_entries(float scale, std::size_t n, float* x, Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) x[i] = scale * x[i];
  });
}

void keep_unsent(const ConstTensorView& g, const float* left, std::size_t n, float factor,
                 const float* kept, float* to, Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    float tile[kTile];
    for (std::size_t first = begin; first < end; first += kTile) {
      const std::size_t count = std::min(kTile, end - first);
      copy_range(g, first, count, tile);
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = first + i;
        const Velocity of = with_velocity(tile[i], factor, kept[at], kept[n + at]);
        to[at] = kept_velocity(of, left[at]);
        to[n + at] = left[at];
      }
    }
  });
}

}  // namespace atomo::cpu
